"""Sums of products and norms in float64, with random errors of another arithmetic, for the reference's other files.

`Rounding` turns a reference into an experiment: the same sums with errors of the size that another arithmetic makes.
How far the logits move is the tolerance for that arithmetic, with this model's depth and sizes in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from forearm.model.families.config import ModelConfig

Array = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]


@dataclass
class Rounding:
    """Random errors of an arithmetic.

    sums: unit of the sums (2^-24 for float32). Each of the k additions of a sum of products rounds by up to one unit of
    the partial sum so far. Errors of single roundings are taken as independent and even within their bounds (Higham
    and Mary 2019, "A new approach to probabilistic rounding error analysis", section 2), so they add up like sqrt(k).
    operands: unit to which what is multiplied with weights is rounded, 0 for not at all (2^-8: bfloat16).
    cache: the same for keys and values in the cache.
    int8: what is multiplied with weights has int8 codes, a scale for each token and `group` values (0: all of them).
        "codes" rounds to these, "noise" adds errors as large as theirs: half a step, even. int8_head: also the head's.
        orders: by width, the order in which columns are taken into groups, where that is not as they come.
    """

    sums: float = 0.0
    operands: float = 0.0
    cache: float = 0.0
    seed: int = 0
    int8: Literal["", "codes", "noise"] = ""
    group: int = 0
    int8_head: bool = False
    orders: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def around(self, x: Array, unit: float, terms: int = 1, size: Array | None = None) -> Array:
        """x after `terms` roundings of numbers of this size (absent: |x|), each even within +- one unit of it."""
        if not unit:
            return x
        spread = unit / math.sqrt(3) * math.sqrt(terms) * (np.abs(x) if size is None else size)
        return x + spread * self.random.standard_normal(x.shape)

    def in_codes(self, x: Array) -> Array:
        """x [tokens, k] as int8 holds it: scale = absmax / 127 of each group."""
        width = x.shape[1]
        order = self.orders.get(width, np.arange(width))
        out = np.empty_like(x)
        for first in range(0, width, self.group or width):
            columns = order[first : first + (self.group or width)]
            part = x[:, columns]
            step = np.abs(part).max(axis=1, keepdims=True) / 127
            if self.int8 == "noise":
                out[:, columns] = part + step * self.random.uniform(-0.5, 0.5, part.shape)
            else:
                out[:, columns] = np.rint(part / np.where(step > 0, step, 1)) * step
        return out

    def summed(self, y: Array, squares: Array, terms: int) -> Array:
        """y after adding up `terms` products whose squares add up to `squares`.

        On the way to y the partial sums have a mean square of y^2 / 3 (they drift to y evenly) and squares / 2 (they
        wander).
        """
        return self.around(y, self.sums, terms, np.sqrt(y * y / 3 + squares / 2))


EXACT = Rounding()


def linear(x: Array, w: Array, bias: Array | None, e: Rounding, codes: bool = True) -> Array:
    """x W^T + bias."""
    x = e.in_codes(x) if e.int8 and codes else e.around(x, e.operands)
    y = x @ w.T
    if e.sums:
        y = e.summed(y, (x * x) @ (w * w).T, w.shape[1])
    return y if bias is None else y + bias


def norm(config: ModelConfig, w: dict[str, Array], name: str, x: Array, e: Rounding) -> Array:
    """RMSNorm or LayerNorm over the last axis; x itself where the model has no such norm."""
    if name not in w and (config.norm_weight or name.startswith("post_")):
        return x
    if config.layer_norm:
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.norm_eps)
    weight = w.get(name, np.ones(x.shape[-1])).reshape(-1, x.shape[-1])  # [heads, head_dim] if each has its own
    bias = w.get(f"{name}.bias", np.zeros(weight.size)).reshape(weight.shape)
    weight, bias = (weight, bias) if len(weight) > 1 else (weight[0], bias[0])
    y = x * (weight + (1.0 if config.norm_plus_one else 0.0)) + bias
    return e.around(y, e.sums, 8)


def gated_norm(config: ModelConfig, w: dict[str, Array], half: str, x: Array, e: Rounding) -> Array:
    """The norm before a half of a layer, with the gate that A.X K2 has behind it."""
    y = norm(config, w, f"{half}_norm", x, e)
    if f"{half}_gate_down" not in w:
        return y
    few = e.around(activated("silu", linear(y, w[f"{half}_gate_down"], None, e)), e.sums, 8)
    return e.around(y * sigmoid(linear(few, w[f"{half}_gate_up"], None, e)), e.sums, 4)


def rotated(config: ModelConfig, rope: int, x: Array, positions: Positions, e: Rounding) -> Array:
    """The first 2 * len(inv_freq) values of each head, turned by position * inv_freq; x [tokens, heads, head_dim].

    An angle is rounded as a power, as a frequency and as a product with the position, so its error grows with that.
    """
    turn = config.ropes[rope]
    half = len(turn.inv_freq)
    angles = positions[:, None, None] * turn.inv_freq.astype(np.float64)[None, None, :]
    angles = e.around(angles, e.sums, 3)
    cos, sin = np.cos(angles) * turn.scale, np.sin(angles) * turn.scale
    y = x.copy()
    a, b = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if turn.interleaved else (slice(0, half), slice(half, 2 * half))
    )
    y[..., a] = x[..., a] * cos - x[..., b] * sin
    y[..., b] = x[..., b] * cos + x[..., a] * sin
    return y


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return np.asarray(1 / (1 + np.exp(-x)))


def activated(name: str, x: Array) -> Array:
    """The activation of that name (FeedForward.activation)."""
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "gelu_erf":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return np.maximum(x, 0) ** (2 if name == "relu_squared" else 1)


def xielu(stored: Array, x: Array) -> Array:
    """Apertus' activation. stored: alpha_p, alpha_n, beta and eps. Source: transformers' activations.py."""
    positive, negative, beta, limit = np.logaddexp(0, stored[0]), stored[2] + np.logaddexp(0, stored[1]), *stored[2:]
    up_to_zero = (np.expm1(np.minimum(x, limit)) - x) * negative
    return np.asarray(np.where(x > 0, positive * x * x, up_to_zero) + beta * x)


def head_products(q: Array, k: Array) -> Array:
    """The product of each query with each key, head by head, [heads, tokens, keys]. q, k: [tokens, heads, dim].

    By matmul: einsum of numpy 2 adds such sums up one by one, which takes ten times as long.
    """
    return np.matmul(q.swapaxes(0, 1), k.transpose(1, 2, 0))


def distance_terms(
    config: ModelConfig, w: dict[str, Array], q: Array, k: Array, distance: Positions, e: Rounding
) -> Array:
    """Products of queries and of keys with embeddings of their distances, [heads, tokens, tokens]."""
    reach = len(config.distance_buckets) // 2
    rows = np.array(config.distance_buckets)[np.clip(-distance, -reach, reach) + reach][None]
    table = norm(config, w, "distance_norm", w["distances"], e)
    by = ("distance_k", "distance_q") if config.distance_bias == "embedded_apart" else ("k", "q")
    keys, queries = (linear(table, w[n], w.get(f"{n}.bias"), e).reshape(len(table), config.heads, -1) for n in by)
    by_query, by_key = (head_products(a, b) for a, b in ((q, keys), (k, queries)))
    if e.sums:
        squares = (head_products(a * a, b * b) for a, b in ((q, keys), (k, queries)))
        by_query, by_key = (
            e.summed(y, square, q.shape[-1]) for y, square in zip((by_query, by_key), squares, strict=True)
        )
    by_query = np.take_along_axis(by_query, rows, axis=2)
    return e.around(by_query + np.take_along_axis(by_key, rows.transpose(0, 2, 1), axis=2).transpose(0, 2, 1), e.sums)
