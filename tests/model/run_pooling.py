"""The native executor over many models that pool, in a process of its own: FOREARM_TIER is read once a process.

    python -m tests.model.run_pooling JOB.json OUT.npz

JOB.json: a list of runs (see Run). OUT.npz: for run i, `together{i}` float32 [texts, columns], all texts in one step on
two threads, as they come out of the last layer (of a classifier of tokens [tokens, columns], text after text);
`alone{i}`, each in a step of its own on one thread; `unit{i}`, with what stands behind the last layer; `tokens{i}`,
rows of the first text's tokens.
On stdout: what the tier rounds operands to, by weight dtype (JSON).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forearm import _native, wire
from forearm.engine.admission import Admission, Terms
from forearm.engine.executor import NativeExecutor
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.pooling import PoolingStepper, PoolingTerms
from forearm.engine.sequence import Slice
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooled_checkpoint import pooled_columns
from forearm.model.pooling.pooling import pooling_plan
from forearm.model.quantization.quantization import Asked


@dataclass(frozen=True)
class Run:
    """Texts on one checkpoint. prompts: token ids, and where a second text begins."""

    folder: str
    prompts: list[tuple[list[int], int]]
    pooler_config: dict[str, Any] | None = None
    kv_dtype: str = "auto"
    quantization: str = "none"


class Pooler:
    """One pooling model in memory. Each text has its place in `blocks`."""

    def __init__(self, executor: NativeExecutor, pooling: PoolingTerms, vocab_size: int) -> None:
        self.pooling = pooling
        self._stepper = PoolingStepper(executor, StepTrace(), pooling)
        self._admission = Admission(Terms(vocab_size, executor.max_model_len, prefix_caching=False, pooling=pooling))

    def compute(self, prompts: list[tuple[list[int], int]], task: Any, activate: bool) -> list[np.ndarray]:
        """Return the outputs of these texts, computed in one step."""
        asked = [wire.PoolingPrompt(ids, second) for ids, second in prompts]
        embed = wire.Embed(request_id="r", prompts=asked, task=task, activate=activate)
        request = self._admission.request(0, embed, 0.0)
        while request.make_output():
            pass
        used = 0
        for sequence in request.sequences:
            needed = -(-sequence.pending // 32)
            sequence.blocks.extend(range(used, used + needed))
            used += needed
        outcomes = self._stepper.compute([Slice.next(one, one.pending) for one in request.sequences])
        assert not any(outcome.failed for outcome in outcomes)
        return [np.asarray(outcome.vector) for outcome in outcomes]


def pooler(run: Run, threads: int) -> Pooler:
    """The model in memory."""
    folder = Path(run.folder)
    plan = pooling_plan(folder, PoolingAsked(runner="pooling", pooler_config=run.pooler_config))
    assert plan is not None
    checkpoint = open_checkpoint(folder, kv_dtype=run.kv_dtype, pooling=plan, quantization=Asked(run.quantization))
    tokens, texts = sum(len(ids) for ids, _ in run.prompts), len(run.prompts)
    native = load_native(
        checkpoint, step_tokens=tokens, step_sequences=texts, step_logit_rows=tokens, cores=(), threads=threads,
        progress=False,
    )  # fmt: skip
    executor = NativeExecutor(native, checkpoint)
    executor.allocate(-(-tokens // 32) + texts, texts)
    model = checkpoint.config
    return Pooler(executor, PoolingTerms(plan, pooled_columns(model), model.token_types), model.vocab_size)


def main(job: str, out: str) -> None:
    """Run the job."""
    arrays: dict[str, np.ndarray] = {}
    for i, given in enumerate(json.loads(Path(job).read_text())):
        run = Run(**given)
        two, one = pooler(run, 2), pooler(run, 1)
        kind = two.pooling.plan.kind
        arrays[f"together{i}"] = np.vstack(two.compute(run.prompts, kind, False))
        arrays[f"alone{i}"] = np.vstack([one.compute([prompt], kind, False)[0] for prompt in run.prompts])
        arrays[f"unit{i}"] = np.vstack(two.compute(run.prompts, kind, True))
        if kind == "embed":
            arrays[f"tokens{i}"] = two.compute(run.prompts, "token_embed", False)[1]
    np.savez(out, **arrays)
    print(json.dumps({dtype: _native.operand_form(dtype) for dtype in ("float32", "float16", "bfloat16")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
