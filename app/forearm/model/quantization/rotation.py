"""Rotates what int8 rounds: orthogonal matrices spread outliers over many values, which are then rounded finely.

In a model that is served, the activations before a matrix are turned at run time, row by row (kernels.h, QuantizeTask),
and the columns of the matrix while it is loaded (turn; centred.py).

Other engines turn no activations. For checkpoints that they read, an orthogonal matrix Q turns the residual stream: the
embedding and all matrices that read the stream are multiplied by Q from the right, those that write it by the transpose
of Q from the left. RMSNorm commutes with Q once its weights are folded into the matrices behind it. Values and the
columns of o are rotated in each head in the same way.

The rotated model computes the same function. A tied head becomes a matrix of its own. Source: Ashkboos et al. 2024,
QuaRot, arXiv:2404.00456, section 4.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from forearm.array_types import Float32Array
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.matrix_spec import Role

VERSION = 4  # of the rotation in the weight cache's key: raised when Q, turn or smoothing.py changes
_INNER = 64  # order of the inner factor of Q: two products of small matrices are cheaper than one of a large matrix
# Roles of matrices that read the residual stream through a norm, and the norm's name, in its layer if it has one.
_NORMS: dict[Role, str] = {"mixer_in": "input_norm", "feed_forward_in": "pre_mlp_norm", "head": "final_norm"}
_NORMS_OF_ROUTERS = {"router": "pre_mlp_norm", "delta_gates": "input_norm", "index_in": "input_norm"}
TURNED = 512  # most columns of a group of activations that share a scale
# Roles of matrices before which activations are turned.
TURNED_ROLES: tuple[Role, ...] = (
    "mixer_in", "mixer_shifted", "mixer_out", "feed_forward_in", "feed_forward_out", "head",
)  # fmt: skip
_MOST_ODD = 61  # the largest prime factor of rows that are turned (kernels.h, is_turnable)
WRITERS: tuple[Role, ...] = ("mixer_out", "feed_forward_out")  # roles of matrices that write the residual stream


def obstacle(config: ModelConfig, portable: bool) -> str:
    """Return why this model is not calibrated for 8 bits; empty if it can be.

    portable: the residual stream is rotated, so that every norm of it must be an RMSNorm directly before matrices.
    """
    obstacles = {
        "it predicts further tokens from what the model hands on": config.fuses,
        "its norms replace the residual stream": config.norm_residual != "none",
        "norms stand before the last matrix of each half of its layers": config.sub_norm,
        "its layers cannot be computed one by one": not config.layers_stand_alone,
        "it computes vectors": config.pooled,
        "there is no norm before its output head": not config.final_norm,
        "its norms have gates": config.norm_gates > 0,
    }
    if portable:
        obstacles |= {
            "it has LayerNorms": config.layer_norm,
            "vectors scale its residual stream": config.merges,
            "its norms do not stand directly before matrices": config.norm_placement != "pre",
            "its norms have no weights, or one stands behind its embedding": config.embed_norm
            or not config.norm_weight,
            "it adds tables to the embeddings": config.learned_positions or config.token_types > 0,
            "it has layers that are not attention and one feed-forward": not all(map(_is_plain, config.layers)),
        }
    return next((text for text, holds in obstacles.items() if holds), "")


def _is_plain(layer: Layer) -> bool:
    mixer = layer.mixer
    attends = type(mixer) is Attention and not (layer.mamba2 or mixer.value_dim or mixer.blocks or mixer.convolved)
    return attends and isinstance(layer.feed_forward, FeedForward)


def norm_before(name: str, role: Role) -> str:
    """Return the name of the norm that a matrix reads the residual stream through; empty if there is none."""
    layer, own = ".".join(name.split(".")[:2]), name.rpartition(".")[2]
    norm = _NORMS_OF_ROUTERS.get(own, "") if role == "router" else _NORMS.get(role, "")
    return f"{layer}.{norm}" if norm and name.startswith("layers.") else norm


def turns_heads(name: str, role: Role) -> bool:
    """Return whether the result of a part, named as by matrices.py, is rotated in each head: v."""
    return role == "mixer_in" and name.endswith(".v")


def rotate_columns(rows: Float32Array, role: Role, norm: Float32Array | None, head_dim: int) -> Float32Array:
    """Return rows of a matrix, float32 [rows, k], for rotated input. norm: weights of the norm before it, or None."""
    if role == "feed_forward_out":
        return rows  # activations before it are no stream
    if role == "mixer_out":
        return _turned(rows.reshape(-1, head_dim)).reshape(rows.shape)
    scaled = _signs(rows.shape[1]) if norm is None else norm * _signs(rows.shape[1])
    return _turned(rows * scaled)


def is_turnable(k: int) -> bool:
    """Return whether rows of k columns can be turned as a whole (kernels.h, is_turnable)."""
    return k % 64 == 0 and k > 0 and max(_odd_factors(k // 64), default=1) <= _MOST_ODD


def turned_group(k: int) -> int:
    """Return the columns of a group of activations in rows of k columns that are turned in groups; 0: they cannot be.

    Groups divide rows, but for a last one of a half or a quarter.
    """
    if k % TURNED in (0, TURNED // 2, TURNED // 4):
        return TURNED
    return next((group for group in range(TURNED, 0, -64) if k % group == 0), 0)


def turn(rows: Float32Array, group: int) -> Float32Array:
    """Return rows of a matrix, float32 [rows, k], for activations that are turned (kernels.h, QuantizeTask).

    group: columns that are turned together; 0: all.
    """
    turned = np.empty_like(rows)
    for begin in range(0, rows.shape[1], group or rows.shape[1]):
        own = rows[:, begin : begin + (group or rows.shape[1])]
        mixed = _turned(own) / np.float32(math.sqrt(own.shape[1]))  # the kernel's has ones and minus ones
        digits = mixed.reshape(-1, 4, 4, 4).transpose(0, 2, 3, 1)  # i, q, l of a column become q, l, i
        turned[:, begin : begin + own.shape[1]] = digits.reshape(own.shape)
    return turned


def rotate_stream(matrix: Float32Array) -> Float32Array:
    """Return columns of a matrix that writes the residual stream, or its bias, float32 [hidden, columns]."""
    signed: Float32Array = matrix * _signs(len(matrix))[:, None]
    return _turned(signed.reshape(1, *signed.shape)).reshape(signed.shape)


def rotate_heads(rows: Float32Array, head_dim: int) -> Float32Array:
    """Return rows of whole heads of v, float32 [heads * head_dim, k], or of its bias [heads * head_dim, 1]."""
    return _turned(rows.reshape(-1, head_dim, rows.shape[1])).reshape(rows.shape)


def _turned(values: Float32Array) -> Float32Array:
    """Return values times Q without its signs along the second axis, float32 [outer, n] or [outer, n, inner]."""
    outer, n = values.shape[:2]
    inner = min(_INNER, n & -n)
    if n > inner:
        values = np.matmul(_orthogonal(n // inner), values.reshape(outer, n // inner, -1)).reshape(values.shape)
    if values.ndim == 2:
        turned = values.reshape(-1, inner) @ _orthogonal(inner)
    else:
        turned = np.matmul(_orthogonal(inner), values.reshape(outer * (n // inner), inner, -1))
    return turned.reshape(values.shape)


@cache
def _orthogonal(n: int) -> Float32Array:
    """Return a symmetric orthogonal matrix, float32 [n, n]: Hartley's of the odd prime factors of n by Hadamard's."""
    made = np.ones((1, 1))
    while len(made) < n & -n:
        made = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), made)
    for odd in _odd_factors(n):
        angles = 2 * math.pi / odd * (np.outer(np.arange(odd), np.arange(odd)) % odd)
        made = np.kron(np.cos(angles) + np.sin(angles), made)
    return np.asarray(made / math.sqrt(n), np.float32)


def _odd_factors(n: int) -> list[int]:
    """Return the odd prime factors of n, the smallest first."""
    left, factors = n // (n & -n), []
    for odd in range(3, left + 1, 2):
        while left % odd == 0:
            factors.append(odd)
            left //= odd
    return factors


@cache
def _signs(n: int) -> Float32Array:
    """Return fixed random signs, 1 or -1: with them no common vector, such as a constant, gathers in one value."""
    bits = np.random.PCG64(0).random_raw(n) >> np.uint64(63)
    return (1.0 - 2.0 * bits.astype(np.float32)).astype(np.float32)
