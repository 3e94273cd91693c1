"""Alternating updates of several residual streams, and Laurel beside attention, in float64 (Gemma 3n)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.model.reference_sums import Array, Rounding, linear, norm

from forearm.model.families.config import ModelConfig


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


def laurel(config: ModelConfig, w: dict[str, Array], normed: Array, e: Rounding) -> Array:
    """The normed row and a product of low rank of it."""
    right = linear(linear(normed, w["laurel_left"], None, e), w["laurel_right"], None, e)
    return e.around(normed + norm(config, w, "laurel_norm", right, e), e.sums)
