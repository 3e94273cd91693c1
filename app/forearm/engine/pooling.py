"""One step of a pooling model, which makes vectors or scores of whole texts; and the checks of pooling requests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from forearm.array_types import Float32Array, Int32Array
from forearm.engine.batch import Batch, int32, pack
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.sequence import PooledRows, PoolingTask, Slice
from forearm.engine.step import SliceOutcome
from forearm.errors import EngineFailed, InvalidRequest
from forearm.model.pooling.plan import Finish, Pool, PoolingPlan
from forearm.wire import Embed

MAX_TEXTS = 4096  # per message: OpenAI's limit of 2048 inputs, as pairs
_ROWS: dict[Pool, PooledRows] = {"mean": "all", "cls": "first", "last": "last", "late": "all"}


@dataclass(frozen=True)
class PoolingTerms:
    """A pooling model's limits. columns: values of a vector. token_types: number of token types of the model."""

    plan: PoolingPlan
    columns: int
    token_types: int


def pooling_task(embed: Embed, terms: PoolingTerms, vocab_size: int, max_model_len: int, in_turns: bool) -> PoolingTask:
    """Check the request and return its pooling task.

    Raises: InvalidRequest naming the field, the numbers and the limit.
    """
    if not 0 < len(embed.prompts) <= MAX_TEXTS:
        raise InvalidRequest(f"{len(embed.prompts)} texts; a request has 1 to {MAX_TEXTS}", "input")
    if embed.task not in terms.plan.tasks:
        raise InvalidRequest(f"task is {embed.task}; this model supports {' and '.join(terms.plan.tasks)}", "task")
    if embed.dimensions is not None and not 0 < embed.dimensions <= terms.columns:
        raise InvalidRequest(
            f"dimensions is {embed.dimensions}; this model's vectors have {terms.columns} values", "dimensions"
        )
    for prompt in embed.prompts:
        ids = prompt.token_ids
        if not ids:
            raise InvalidRequest("a text has no tokens; write at least one", "input")
        if len(ids) > max_model_len:
            raise InvalidRequest(
                f"This model's maximum context length is {max_model_len} tokens. However, a text has {len(ids)} "
                "tokens. Shorten it, or ask for truncate_prompt_tokens",
                "input",
            )
        for token in (min(ids), max(ids)):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(f"a text has token id {token}; the vocabulary has {vocab_size} tokens", "input")
        if not 0 <= prompt.second < len(ids):
            raise InvalidRequest(f"second is {prompt.second}; it is not the start of a second text", "input")
    if embed.chunk_tokens < 0 or (embed.chunk_tokens and embed.task != "token_embed"):
        raise InvalidRequest(
            "late chunking needs the task token_embed, and chunk_size from 1 on", "late_chunking_params"
        )
    by_token = embed.task in ("token_embed", "token_classify")
    rows = "all" if by_token else _ROWS[terms.plan.pool]
    head = terms.plan.token_heads.get(embed.task)
    chunk = embed.chunk_tokens
    return PoolingTask(embed.prompts, in_turns, rows, by_token, chunk, head, embed.dimensions, embed.activate)


class PoolingExecutor(Protocol):
    """The interface of an executor of a pooling model. `NativeExecutor` implements it; tests have a tiny one."""

    blocks: int
    states: int
    kept_states: int
    folder: Path | None

    def forward(self, batch: Batch) -> None:
        """Compute the whole step, embedding to last hidden states; they stay inside for `pool`."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copy the states in one slot to another."""
        ...

    def merge_page(self) -> bool:
        """Make a huge page of small pages of the KV cache; return whether one was left to be made."""
        ...

    def pool(self, starts: Int32Array, head: int) -> Float32Array:
        """Return a vector for each text, of the rows starts[i] .. starts[i + 1] - 1, through the layers of `head`."""
        ...


class PoolingStepper:
    """Computes slices that are whole texts by an executor; the counterpart of `Stepper` for pooling models."""

    def __init__(self, executor: PoolingExecutor, trace: StepTrace, terms: PoolingTerms) -> None:
        self.executor, self.trace = executor, trace
        self._terms = terms

    def compute(self, slices: list[Slice]) -> list[SliceOutcome]:
        """Compute all layers of all texts in one call, then pooling and the layers after it in another."""
        self.trace.part("pack")
        batch = pack(slices)
        tasks = [_task(piece) for piece in slices]
        if self._terms.token_types > 1:  # 0 for a first text's tokens, 1 for a second's
            seconds = [task.texts[piece.sequence.index].second for piece, task in zip(slices, tasks, strict=True)]
            types = [np.arange(piece.end) >= (at or piece.end) for piece, at in zip(slices, seconds, strict=True)]
            if any(seconds):
                batch = batch._replace(types=np.concatenate(types).astype(np.int32))
        # What is pooled: a text's rows; those of each chunk; or each alone, of vectors of tokens or a mean of these.
        rows, late = [len(piece.scores) for piece in slices], self._terms.plan.pool == "late"
        whole = [task.chunk or (1 if task.by_token or late else n) for n, task in zip(rows, tasks, strict=True)]
        lengths = [[min(k, n - at) for at in range(0, n, k)] for n, k in zip(rows, whole, strict=True)]
        starts = int32(accumulate(chain.from_iterable(lengths), initial=0))
        ends = pairwise(accumulate(map(len, lengths), initial=0))
        self.trace.part("forward")
        self.executor.forward(batch)
        self.trace.part("pool")
        outcomes: list[SliceOutcome] = []
        pieces = zip(slices, tasks, ends, strict=True)
        for number, group in groupby(pieces, key=lambda one: one[1].head.dense.head if one[1].head else 0):
            members = list(group)
            first, last = members[0][2][0], members[-1][2][1]
            pooled = self.executor.pool(starts[first : last + 1], number)
            for piece, task, (begin, end) in members:
                outcomes.append(self._outcome(piece, task, pooled[begin - first : end - first]))
        return outcomes

    def _outcome(self, piece: Slice, task: PoolingTask, vectors: Float32Array) -> SliceOutcome:
        """Return the outcome of a text. vectors: float32 [1, columns], or [tokens or chunks, columns] by token."""
        found = vectors if task.by_token else vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        if task.head is not None and not task.chunk:
            found = vectors[task.head.kept(task.texts[piece.sequence.index].token_ids)]
        if not np.isfinite(found).all():
            failed = EngineFailed(
                f"request {piece.sequence.request.request_id}: the model's output has a NaN or an infinity; "
                "it has no valid result"
            )
            return SliceOutcome(piece, [], [], failed, found)
        own = self._terms.plan.finish if task.head is None else task.head.finish
        vector = finish_vector(found, self._terms.plan, own, task.dimensions, task.activate)
        return SliceOutcome(piece, [], [], None, vector)


def finish_vector(
    vector: Float32Array, plan: PoolingPlan, finish: Finish, dimensions: int | None, activate: bool
) -> Float32Array:
    """Return the vector truncated to `dimensions` (matryoshka), then normalized or made probabilities or weights.

    vector: [columns] or [tokens, columns]; weights of tokens ("relu") become [tokens]. Sums are float64 and over one
    text's values alone.
    """
    wide = vector.astype(np.float64)
    if plan.yes_no:
        yes, no = plan.yes_no
        wide = wide[..., yes : yes + 1] - wide[..., no : no + 1]
    wide = wide[..., 0] if finish == "relu" else wide[..., :dimensions]
    if activate and finish == "normalize":
        wide = wide / np.maximum(np.sqrt((wide * wide).sum(axis=-1, keepdims=True)), 1e-12)
    elif activate and finish == "sigmoid":
        wide = 1 / (1 + np.exp(-np.clip(wide, -700, 700)))
    elif activate and finish == "softmax":
        wide = np.exp(wide - wide.max(axis=-1, keepdims=True))
        wide = wide / wide.sum(axis=-1, keepdims=True)
    elif activate and finish == "relu":
        wide = np.maximum(wide, 0)
    return wide.astype("<f4")


def _task(piece: Slice) -> PoolingTask:
    task = piece.sequence.request.pooling
    assert task is not None, "a pooling model accepts only pooling requests"
    return task
