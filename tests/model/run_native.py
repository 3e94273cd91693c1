"""The native executor over many checkpoints, in a process of its own: FOREARM_TIER is read once a process.

    python -m tests.model.run_native JOB.json OUT.npz

JOB.json: a list of runs (see Run). OUT.npz: for run i, `logits{i}` float32 [prompt + greedy, vocab], the logits after
every token, and `chosen{i}` int64 [greedy], each the largest of the logits before it.
On stdout: what the tier rounds operands to, by weight dtype (JSON).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forearm import _native
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.quantization.quantization import Asked

CHUNK = 33  # prompt tokens a step, chosen so that steps begin inside blocks
BLOCK = 32


@dataclass(frozen=True)
class Run:
    """One prompt on one checkpoint."""

    folder: str
    prompt: list[int]
    greedy: int
    dtype: str = "auto"
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    quantization: str = "none"
    embeddings: str = "auto"
    activations: str = "auto"
    portable: bool = False


class Stepper:
    """One sequence on a native executor, its blocks in descending order."""

    def __init__(self, run: Run) -> None:
        checkpoint = open_checkpoint(
            Path(run.folder),
            dtype=run.dtype,
            kv_dtype=run.kv_dtype,
            max_model_len=run.max_model_len,
            quantization=Asked(run.quantization, run.embeddings, run.activations, run.portable),
        )
        self.executor = load_native(
            checkpoint, step_tokens=CHUNK, step_sequences=1, step_logit_rows=CHUNK, cores=(), threads=2, progress=False
        )
        length = len(run.prompt) + run.greedy
        self.blocks = np.arange(-(-length // BLOCK), dtype=np.int32)[::-1].copy()
        self.executor.allocate_kv(len(self.blocks))
        self.states = None
        if checkpoint.config.has_states:
            self.executor.allocate_states(3)
            self.states = np.array([2], np.int32)
        self.done = 0

    def step(self, tokens: list[int], rows: list[int] | None = None) -> np.ndarray:
        """Logits after each of these tokens, or after some of them."""
        count = len(tokens)
        positions = np.arange(self.done, self.done + count, dtype=np.int32)
        self.done += count
        used = -(-self.done // BLOCK)
        self.executor.forward(
            np.array(tokens, np.int32),
            positions,
            np.array([0, count], np.int32),
            np.array([0, used], np.int32),
            self.blocks[:used],
            np.arange(count, dtype=np.int32) if rows is None else np.array(rows, np.int32),
            states=self.states,
        )
        return self.executor.logits()


def compute(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Logits after every token, and the tokens chosen."""
    stepper = Stepper(run)
    rows = [stepper.step(run.prompt[i : i + CHUNK]) for i in range(0, len(run.prompt), CHUNK)]
    chosen: list[int] = []
    for _ in range(run.greedy):
        chosen.append(int(rows[-1][-1].argmax()))
        rows.append(stepper.step(chosen[-1:]))
    return np.concatenate(rows), np.array(chosen, np.int64)


def main(job: str, out: str) -> None:
    """Run the job."""
    arrays: dict[str, np.ndarray] = {}
    for i, run in enumerate(json.loads(Path(job).read_text())):
        arrays[f"logits{i}"], arrays[f"chosen{i}"] = compute(Run(**run))
    np.savez(out, **arrays)
    print(json.dumps({dtype: _native.operand_form(dtype) for dtype in ("float32", "float16", "bfloat16", "fp8_e4m3")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
