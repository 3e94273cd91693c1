"""The arrays of one step: tokens and KV blocks for the forward, columns for sampling, and what comes back."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float32Array, Int32Array, UInt32Array, UInt64Array
from forearm.engine.sequence import Slice

# The tokens of a sequence to compute in a step, the position of the first one, and the KV blocks of the sequence.
TokenSpan = tuple["array[int]", int, "array[int]"]


class Batch(NamedTuple):
    """The tokens of one step, sequence after sequence.

    tokens, positions  int32 [tokens]
    starts             int32 [sequences + 1]: sequence s has tokens starts[s] .. starts[s + 1] - 1
    block_starts       int32 [sequences + 1] and
    blocks             int32 [...]: sequence s's KV blocks are blocks[block_starts[s] : block_starts[s + 1]]; the first
                       one holds positions 0 .. 31, and so on; they cover the last position of the step. As many
                       follow for each further group of layers (KvGroups)
    logit_rows         int32 [rows], ascending: the tokens (rows of the step) whose logits are wanted
    types              int32 [tokens]: token types of an encoder that has them; None: all 0
    states             int32 [sequences]: slots of the sequences' states; None: the model's layers keep none
    """

    tokens: Int32Array
    positions: Int32Array
    starts: Int32Array
    block_starts: Int32Array
    blocks: Int32Array
    logit_rows: Int32Array
    types: Int32Array | None = None
    states: Int32Array | None = None


class Sampling(NamedTuple):
    """The parameters of sampling, one line per sampled output; several lines may read one row of logits (n > 1).

    row                int32 [lines]: index into Batch.logit_rows
    temperature, top_p, min_p, presence, frequency, repetition   float32 [lines]
    top_k              int32 [lines], 0 is off
    seed, counter      uint64 [lines]: the random number of a line is a function of (seed, counter) alone; counter is
                       the position of the token that is chosen
    prompt_starts, prompt_ids     CSR by line, int32: prompt tokens, for lines with a repetition penalty, else empty
    output_starts, output_ids     CSR by line, int32: tokens so far, only for lines with any penalty, else empty
    bias_starts, bias_ids, bias   CSR by line: added to the logits (-inf forbids); logit_bias, min_tokens, bad_words
    allowed_starts, allowed_ids   CSR by line: when not empty, every other token is forbidden
    logprobs           int32 [lines]: alternatives wanted; -1: no log-probabilities at all; 0: the chosen token alone
    mask               int32 [lines]: row of masks that the line's tokens must be in; -1: any token
    masks              uint32 [masks, words]: bit i % 32 of word i // 32 is set where token i is allowed (grammars)
    """

    row: Int32Array
    temperature: Float32Array
    top_k: Int32Array
    top_p: Float32Array
    min_p: Float32Array
    presence: Float32Array
    frequency: Float32Array
    repetition: Float32Array
    seed: UInt64Array
    counter: UInt64Array
    prompt_starts: Int32Array
    prompt_ids: Int32Array
    output_starts: Int32Array
    output_ids: Int32Array
    bias_starts: Int32Array
    bias_ids: Int32Array
    bias: Float32Array
    allowed_starts: Int32Array
    allowed_ids: Int32Array
    logprobs: Int32Array
    mask: Int32Array
    masks: UInt32Array


@dataclass(frozen=True)
class Sampled:
    """The tokens that the executor sampled.

    token     int32 [lines]
    nan       bool [lines]: the row had a NaN (or nothing left to choose); its token means nothing
    logprob   float32 [lines], rank int32 [lines] (from 1): of the chosen token, from the raw logits; where asked
    top_ids, top_logprobs   int32 and float32 [lines, most alternatives asked for], most likely first (ties: lower id)
    """

    token: Int32Array
    nan: npt.NDArray[np.bool_]
    logprob: Float32Array
    rank: Int32Array
    top_ids: Int32Array
    top_logprobs: Float32Array


@dataclass(frozen=True)
class ScoredTokens:
    """Log-probabilities of given tokens (prompt_logprobs): as in Sampled, one line a (row, token) pair."""

    logprob: Float32Array
    rank: Int32Array
    top_ids: Int32Array
    top_logprobs: Float32Array


def pack(slices: list[Slice]) -> Batch:
    """Return the step as flat arrays. The rows of logits of a slice: those it scores, then the ones it samples."""
    rows: list[int] = []
    first = 0
    for piece in slices:
        before = first + piece.end - piece.start
        if piece.scores:
            rows.extend(first + position - piece.start for position in piece.scores)
        if piece.samples:
            rows.append(before - 1)
        first = before + len(piece.drafts)
        rows.extend(range(before, first))
    batch = flat([(_tokens(piece), piece.start, piece.sequence.blocks) for piece in slices], rows)
    if slices and len(slices[0].sequence.tables) > 1:
        tables = zip(*(piece.sequence.tables for piece in slices), strict=True)
        batch = batch._replace(blocks=np.frombuffer(b"".join(chain.from_iterable(tables)), np.int32))
    slots = [piece.sequence.state for piece in slices if piece.sequence.state is not None]
    return batch._replace(states=int32(slots)) if slots else batch


def flat(parts: list[TokenSpan], rows: list[int]) -> Batch:
    """Return spans of sequences as one batch; `rows` are the tokens whose logits are wanted."""
    starts, tokens = csr([tokens for tokens, _, _ in parts])
    block_starts, blocks = csr([blocks for _, _, blocks in parts])
    positions = chain.from_iterable(range(start, start + len(tokens)) for tokens, start, _ in parts)
    return Batch(tokens, int32(positions), starts, block_starts, blocks, int32(rows))


def _tokens(piece: Slice) -> array[int]:
    tokens = piece.sequence.tokens[piece.start : piece.end]
    if piece.drafts:
        tokens.extend(piece.drafts)
    return tokens


def csr(lines: Row[array[int]]) -> tuple[Int32Array, Int32Array]:
    """Return the start of each line, int32 [lines + 1], and the values of all lines in a row, int32 [...] (CSR).

    Lines are joined as bytes: most are one token long, and a numpy array for each would cost more than its content.
    """
    return int32(accumulate(map(len, lines), initial=0)), np.frombuffer(b"".join(lines), np.int32)


def int32(values: Iterable[int]) -> Int32Array:
    """Return the values as an array.

    A forward evicts numpy from the caches: each further function of numpy costs 15 to 30 us after it.
    """
    return np.frombuffer(array("i", values), np.int32)
