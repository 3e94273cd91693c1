"""One step: one forward pass and one sampling call for all slices; masks are computed during the forward or before."""

from __future__ import annotations

from collections.abc import Sequence as Row
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from forearm.array_types import Float32Array
from forearm.engine.batch import Sampled, pack
from forearm.engine.constraints.output_constraint import AllowedTokens
from forearm.engine.executor import Executor
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.sampling import SampleRow, StepColumns, alternatives, position_logprobs
from forearm.engine.sequence import Slice
from forearm.errors import ForearmError
from forearm.wire import PositionLogprobs, TokenLogprob


class SampledToken(NamedTuple):
    """The token sampled for one row. `nan`: the logits have a NaN or allow no token; the token has no meaning."""

    token: int
    nan: bool
    logprobs: PositionLogprobs | None = None


class SliceOutcome(NamedTuple):
    """The result of a slice.

    prompt_logprobs  of the tokens after the scored positions; None: they have a NaN
    sampled          if it samples: the next token, and the token after each of its drafts
    failed           the error of its constraint, or of a pooled vector with a NaN
    vector           if the request pools: float32 [columns], or [tokens, columns] for a vector per token
    """

    piece: Slice
    prompt_logprobs: list[PositionLogprobs] | None
    sampled: list[SampledToken]
    failed: ForearmError | None = None
    vector: Float32Array | None = None


class Stepper:
    """Computes slices by an executor, called by one thread. trace: records the beginning of each part of a step.

    spare_cpu: a CPU is free during the forward, and another thread computes masks on it. On a CPU that computes, all
    others would wait for it at every barrier: 16 masks of strings, 0.3 ms, cost 2.1 to 2.7 % of a step before the
    forward and 3.1 to 3.4 % during it (bench/results/structured/xeon-2-cores.json).
    """

    def __init__(self, executor: Executor, trace: StepTrace, *, spare_cpu: bool = True) -> None:
        self.executor, self.trace = executor, trace
        self._columns = StepColumns(executor.vocab_size)
        self._masking = ThreadPoolExecutor(1, thread_name_prefix="masks") if spare_cpu else None
        if self._masking is not None:
            self._masking.submit(int).result()  # starts its thread now: later it would inherit a pinned core

    def compute(self, slices: list[Slice]) -> list[SliceOutcome]:
        """Compute the whole step; no sequence is changed."""
        constrained = [piece for piece in slices if piece.samples and piece.sequence.constraint is not None]
        masking = self._masking.submit(_choices, constrained) if self._masking is not None and constrained else None
        choices: dict[int, list[AllowedTokens] | ForearmError] = {}
        if constrained and masking is None:
            self.trace.part("masks")
            choices = _choices(constrained)
        self.trace.part("pack")
        batch = pack(slices)
        self.trace.part("forward")
        self.executor.forward(batch)
        if masking is not None:
            self.trace.part("masks")
            choices = masking.result()
        self.trace.part("sample")
        lines: list[SampleRow] = []
        scored: list[list[PositionLogprobs] | None] = []
        row = 0
        for piece in slices:
            scored.append(self._score(piece, row) if piece.scores else [])
            row += len(piece.scores)
            if piece.samples and (piece.drafts or choices):
                lines.extend(_lines(piece, row, choices.get(id(piece))))
                row += 1 + len(piece.drafts)
            elif piece.samples:
                lines.append(SampleRow(row, piece.sequence))
                row += 1
        sampled = self._sample(lines)
        outcomes: list[SliceOutcome] = []
        line = 0
        for piece, found in zip(slices, scored, strict=True):
            end = line + 1 + len(piece.drafts) if piece.samples else line
            failed = choices.get(id(piece)) if choices else None
            failed = failed if isinstance(failed, ForearmError) else None
            outcomes.append(SliceOutcome(piece, found, sampled[line:end], failed))
            line = end
        return outcomes

    def _score(self, piece: Slice, row: int) -> list[PositionLogprobs] | None:
        """Return log-probabilities of the prompt tokens after positions `piece.scores`; their logits start at `row`."""
        params = piece.sequence.request.params
        assert params.prompt_logprobs is not None
        count = alternatives(params.prompt_logprobs, self.executor.vocab_size)
        rows = np.arange(row, row + len(piece.scores), dtype=np.int32)
        tokens = np.array(piece.sequence.tokens[piece.scores.start + 1 : piece.scores.stop + 1], dtype=np.int32)
        scored = self.executor.score(rows, tokens, count)
        if np.isnan(scored.logprob).any():
            return None
        return [position_logprobs(scored, line, token, count) for line, token in enumerate(tokens.tolist())]

    def _sample(self, lines: list[SampleRow]) -> list[SampledToken]:
        if not lines:
            return []
        sampled = self.executor.sample(self._columns.of(lines))
        tokens, nan = sampled.token.tolist(), sampled.nan.tolist()
        if not self._columns.logprobs:
            return [SampledToken(token, bad) for token, bad in zip(tokens, nan, strict=True)]
        named = self._named(lines, sampled)
        found: list[SampledToken] = []
        for i, (line, token) in enumerate(zip(lines, tokens, strict=True)):
            wanted, logprobs = line.sequence.request.params.logprobs, named.get(i)
            if logprobs is None and wanted is not None:
                logprobs = position_logprobs(sampled, i, token, alternatives(wanted, self.executor.vocab_size))
            found.append(SampledToken(token, nan[i], logprobs))
        return found

    def _named(self, lines: list[SampleRow], sampled: Sampled) -> dict[int, PositionLogprobs]:
        """Return the log-probabilities, by line, that `logprob_token_ids` asks for, and those of the sampled token."""
        asked = [
            (number, line.row, token)
            for number, line in enumerate(lines)
            if not sampled.nan[number]
            for token in line.sequence.request.params.logprob_token_ids or ()
        ]
        if not asked:
            return {}
        rows, tokens = (np.array([one[i] for one in asked], np.int32) for i in (1, 2))
        scored = self.executor.score(rows, tokens, 0)
        found: dict[int, PositionLogprobs] = {}
        for i, (number, _, token) in enumerate(asked):
            if number not in found:
                found[number] = position_logprobs(sampled, number, int(sampled.token[number]), 0) * 2
            if token != found[number][0].token_id:
                found[number].append(TokenLogprob(token, float(scored.logprob[i]), int(scored.rank[i])))
        return found


def _choices(slices: list[Slice]) -> dict[int, list[AllowedTokens] | ForearmError]:
    """Return the tokens allowed at each row of a slice, or the error of its constraint, by id of the slice."""
    found: dict[int, list[AllowedTokens] | ForearmError] = {}
    for piece in slices:
        assert piece.sequence.constraint is not None
        try:
            found[id(piece)] = piece.sequence.constraint.choices(piece.drafts)
        except ForearmError as error:
            found[id(piece)] = error
    return found


def _lines(piece: Slice, row: int, choices: Row[AllowedTokens] | ForearmError | None) -> list[SampleRow]:
    count = 1 + len(piece.drafts)
    if choices is None or isinstance(choices, ForearmError):
        choices = [None] * count
    return [SampleRow(row + i, piece.sequence, piece.drafts[:i], choices[i]) for i in range(count)]
