"""The sampler's rules again, in float64 and with a sort, and Philox in Python."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.kernels.float64 import Doubles, Floats

from forearm.engine.batch import Sampling, csr

MASK = 0xFFFFFFFF


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ low, second & MASK, (first >> 32) ^ d ^ high, first & MASK
        low, high = (low + 0x9E3779B9) & MASK, (high + 0xBB67AE85) & MASK
    return a, b, c, d


def uniform(seed: int, counter: int) -> float:
    """Return a number in [0, 1): the 53 high bits of the first two words."""
    words = philox((counter & MASK, counter >> 32, 0, 0), (seed & MASK, seed >> 32))
    return float((words[0] << 32 | words[1]) >> 11) / 2**53


@dataclass(frozen=True)
class Line:
    """One line of Sampling, with the defaults of a request that asks for nothing."""

    row: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    seed: int = 0
    counter: int = 0
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: Sequence[int] = ()
    logprobs: int = -1
    mask: Sequence[int] | None = None  # the tokens that its mask allows


def columns(lines: Sequence[Line], vocab: int = 6000) -> Sampling:
    """The arrays of engine/batch.py for these lines; masks are as wide as `vocab` needs, at least the logits' width."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(line, name) for line in lines], dtype=dtype)

    masked = [line.mask is not None for line in lines]
    prompt_starts, prompt_ids = csr([array("i", line.prompt) for line in lines])
    output_starts, output_ids = csr([array("i", line.output) for line in lines])
    bias_starts, bias_ids = csr([array("i", line.bias) for line in lines])
    allowed_starts, allowed_ids = csr([array("i", line.allowed) for line in lines])
    floats = {
        name: column(name, np.float32)
        for name in ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")
    }
    return Sampling(
        row=column("row", np.int32),
        top_k=column("top_k", np.int32),
        seed=column("seed", np.uint64),
        counter=column("counter", np.uint64),
        prompt_starts=prompt_starts,
        prompt_ids=prompt_ids,
        output_starts=output_starts,
        output_ids=output_ids,
        bias_starts=bias_starts,
        bias_ids=bias_ids,
        bias=np.array([value for line in lines for value in line.bias.values()], dtype=np.float32),
        allowed_starts=allowed_starts,
        allowed_ids=allowed_ids,
        logprobs=column("logprobs", np.int32),
        mask=np.where(masked, np.cumsum(masked) - 1, -1).astype(np.int32),
        masks=masks([line.mask for line in lines if line.mask is not None], vocab),
        **floats,
    )


def masks(allowed: Sequence[Sequence[int]], vocab: int) -> np.ndarray:
    """uint32 [masks, words] with the bits of these tokens; past the vocabulary all are set: they mean nothing."""
    bits = np.zeros((len(allowed), (vocab + 31) // 32 * 32), np.uint8)
    bits[:, vocab:] = 1
    for row, tokens in enumerate(allowed):
        bits[row, list(tokens)] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


def arrays(lines: Sequence[Line], vocab: int = 6000) -> list[np.ndarray]:
    """Sampling's columns in their order."""
    return list(columns(lines, vocab))


def adjusted(logits: Floats, line: Line) -> Doubles:
    """Logits after allowed tokens, the mask, biases and penalties."""
    x = logits.astype(np.float64)
    for some in (line.allowed or None, line.mask):
        if some is not None:
            x = np.where(np.isin(np.arange(len(x)), list(some)), x, -np.inf)
    for token, bias in line.bias.items():
        x[token] += bias
    seen = sorted({*line.prompt, *line.output})
    x[seen] = np.where(x[seen] > 0, x[seen] / line.repetition, x[seen] * line.repetition)
    for token in set(line.output):
        x[token] -= line.frequency * list(line.output).count(token) + line.presence
    return x


def probabilities(logits: Floats, line: Line) -> Doubles:
    """Return the probability of each token after min-p, then top-k, then top-p of the rest."""
    x = adjusted(logits, line) / line.temperature
    likeliest_first = np.lexsort((np.arange(len(x)), -x))
    kept = x >= x.max() + (np.log(line.min_p) if line.min_p else -np.inf)
    if line.top_k:
        kept[likeliest_first[line.top_k :]] = False
    p = np.where(kept, np.exp(x - x.max()), 0)
    p /= p.sum()
    if line.top_p < 1:
        before = np.cumsum(p[likeliest_first]) - p[likeliest_first]
        p[likeliest_first[before >= line.top_p]] = 0
    return np.asarray(p / p.sum())
