"""Several residual streams in float64: Gemma 3n's alternating updates, with Laurel beside attention; Qwen4-Exp's gates.

And what Qwen4-Exp adds to its streams: embeddings of several tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.model.reference_sums import Array, Rounding, activated, linear, norm, sigmoid

from forearm.model.families.config import ModelConfig
from forearm.model.families.recurrences import HashedNgrams


def first_streams(config: ModelConfig, weights: dict[str, Array], x: Array, e: Rounding) -> list[Array]:
    """The streams that the embedded rows make, each [tokens, hidden]: the rows, and others of the same size."""
    others = range(1, config.alt_up.streams if config.alt_up else 1)
    return [x, *(_sized(linear(x, weights[f"stream_in_{i}"], None, e), x, e) for i in others)]


def one_stream(config: ModelConfig, weights: dict[str, Array], streams: list[Array], e: Rounding) -> Array:
    """The mean of the last streams, all of the first one's size."""
    pairs = enumerate(streams[1:], 1)
    back = [_sized(linear(s, weights[f"stream_out_{i}"], None, e), streams[0], e) for i, s in pairs]
    return e.around(np.mean([streams[0], *back], axis=0), e.sums, len(streams))


def _sized(x: Array, like: Array, e: Rounding) -> Array:
    size = np.sqrt((like**2).mean(axis=1, keepdims=True))
    return e.around(x * size / np.sqrt(np.maximum((x**2).mean(axis=1, keepdims=True), 1e-5)), e.sums, 8)


def _modalities(config: ModelConfig, w: dict[str, Array], x: Array, e: Rounding) -> Array:
    normed = norm(config, w, "alt_up_norm", x, e) / config.hidden
    return np.tanh(linear(normed, w["alt_up_router"].reshape(-1, config.hidden), None, replace(e, operands=0, int8="")))


def predicted(config: ModelConfig, w: dict[str, Array], streams: list[Array], e: Rounding) -> list[Array]:
    """The streams that a layer begins with, each made of all."""
    count = len(streams)
    factors = e.around(_modalities(config, w, streams[0], e) @ w["alt_up_predict"].reshape(-1, count).T, e.sums, 4)
    factors = factors.reshape(-1, count, count)
    mixed = (sum(factors[:, i, j, None] * streams[j] for j in range(count)) for i in range(count))
    return [e.around(one + more, e.sums, count + 1) for one, more in zip(streams, mixed, strict=True)]


def corrected(config: ModelConfig, w: dict[str, Array], streams: list[Array], x: Array, e: Rounding) -> list[Array]:
    """The streams behind a layer that has made `x` of the first one."""
    count = len(streams)
    factors = 1 + _modalities(config, w, x, e) @ w["alt_up_correct"].reshape(-1, count).T
    change = e.around(x - streams[0], e.sums)
    return [e.around(s + factors[:, i, None] * change, e.sums, 4) for i, s in enumerate(streams)]


def with_own_embedding(
    config: ModelConfig, w: dict[str, Array], x: Array, streams: list[Array], inputs: Array, e: Rounding
) -> tuple[Array, list[Array]]:
    """The residual with a layer's embedding, or the streams, corrected by x and with it. inputs: [tokens, width]."""
    if config.alt_up:
        streams = corrected(config, w, streams, x, e)
        x = streams[0] * w.get("alt_up_scale", 1.0)
    gate = activated("gelu_tanh", linear(x, w["per_layer_gate"], None, e))
    y = linear(e.around(gate, e.sums, 8) * inputs, w["per_layer_out"], None, e)
    added = norm(config, w, "per_layer_norm", y, e)
    return x + added, [*streams[:1], *(s + added for s in streams[1:])]


def laurel(config: ModelConfig, w: dict[str, Array], normed: Array, e: Rounding) -> Array:
    """The normed row and a product of low rank of it."""
    right = linear(linear(normed, w["laurel_left"], None, e), w["laurel_right"], None, e)
    return e.around(normed + norm(config, w, "laurel_norm", right, e), e.sums)


def gated(config: ModelConfig, w: dict[str, Array], half: str, streams: Array, e: Rounding) -> tuple[Array, Array]:
    """The mean of gated streams that a half reads, [tokens, hidden], and what weighs its result, [tokens, streams]."""
    count, name = streams.shape[1], f"hyper_{half}"
    normed = norm(config, w, f"{name}_norm", streams, e)
    flat = normed.reshape(len(streams), -1)
    few = linear(flat, w[f"{name}_down"], None, e) / count
    gates = e.around(sigmoid(linear(e.around(few * sigmoid(few), e.sums, 8), w[f"{name}_up"], None, e)), e.sums, 8)
    mean = e.around((gates.reshape(normed.shape) * normed).mean(axis=1), e.sums, count + 1)
    if f"{name}_project" not in w:
        return mean, np.zeros(())
    exact = replace(e, operands=0.0, int8="")
    post = linear(flat, w[f"{name}_project"].reshape(count, -1), None, exact) / count
    return mean, e.around(2 * sigmoid(post), e.sums, 8)


def with_ngrams(
    config: ModelConfig, own: HashedNgrams, w: dict[str, Array], tokens: list[int], streams: Array, e: Rounding
) -> Array:
    """The streams with a layer's embeddings of several tokens, [tokens, streams, hidden]."""
    rows = e.around(w["ngrams"][ngram_rows(own, tokens)].reshape(len(tokens), -1), 0.0)
    key = norm(config, w, "ngrams_key_norm", linear(rows, w["ngrams_key"], None, e).reshape(streams.shape), e)
    value = linear(rows, w["ngrams_value"], None, e)
    product = (key * norm(config, w, "ngrams_query_norm", streams, e)).sum(axis=-1, keepdims=True)
    product = e.around(product / np.sqrt(config.hidden), e.sums, config.hidden)
    gate = np.sqrt(np.maximum(np.abs(product), 1e-6)) * np.sign(product)
    values = e.around(sigmoid(gate), e.sums, 8) * value[:, None]
    normed = norm(config, w, "ngrams_conv_norm", values, e).reshape(len(tokens), -1)
    taps = w["ngrams_conv"].reshape(-1, own.taps)
    mixed = np.zeros_like(normed)
    for i in range(own.taps):
        back = (own.taps - 1 - i) * len(own.multipliers)
        mixed[back:] += taps[:, i] * normed[: len(normed) - back]
    mixed = e.around(mixed, e.sums, own.taps + 8)
    return streams + values + (mixed * sigmoid(mixed)).reshape(streams.shape)


def ngram_rows(own: HashedNgrams, tokens: list[int]) -> list[list[int]]:
    """The rows of the table that each token has, by head."""
    starts = np.cumsum([0, *own.sizes])
    found = []
    for at, token in enumerate(tokens):
        mixed, before, rows = token * own.multipliers[0], token, list[int]()
        for distance, multiplier in enumerate(own.multipliers[1:], 1):
            ended = before == own.end and distance > 1
            before = own.end if ended or at < distance else tokens[at - distance]
            mixed ^= before * multiplier
            heads = range(len(rows), len(rows) + own.heads)
            rows += [int(starts[head]) + mixed % own.sizes[head] for head in heads]
        found.append(rows)
    return found
