"""The cost of a step in Python, counted in calls, because times vary on a busy machine."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
from tests.history_executor import HistoryExecutor
from tests.unit.engine.client import Client

from forearm.array_types import Float32Array, Int32Array
from forearm.engine.batch import Batch, Sampled, Sampling
from forearm.engine.scheduler import StepLimits

STREAMS = 32


class _Idle(HistoryExecutor):
    """Computes nothing: what is left of a step is the loop's own work."""

    def forward(self, batch: Batch) -> None:
        assert len(batch.logit_rows) == STREAMS

    def sample(self, sampling: Sampling) -> Sampled:
        none: Float32Array = np.zeros((STREAMS, 0), np.float32)
        ids: Int32Array = np.arange(STREAMS, dtype=np.int32)
        return Sampled(ids, np.zeros(STREAMS, bool), none, none.astype(np.int32), none.astype(np.int32), none)


def calls_of_steps(client: Client, steps: int) -> int:
    """Calls, of Python's functions and of C's, in so many steps."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in range(steps):
            client.loop.step()
    finally:
        sys.setprofile(None)
    return calls


def test_a_decode_step_of_32_streams_makes_less_than_95_calls_a_stream() -> None:
    """Measured 86, and 151 before what lasts of a request's columns was worked out once."""
    client = Client(_Idle(blocks=128, vocab_size=STREAMS), StepLimits(64, STREAMS, STREAMS))
    for number in range(STREAMS):
        client.submit(str(number), [number, 1], temperature=0.7, top_p=0.9, seed=1, max_tokens=60, ignore_eos=True)
    client.loop.step()

    assert calls_of_steps(client, 40) / 40 / STREAMS < 95
