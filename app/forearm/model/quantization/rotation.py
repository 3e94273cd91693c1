"""Rotates a float model while it is loaded, so that its activations have no outliers and int8 rounds them finely.

An orthogonal matrix Q turns the residual stream: the embedding and every matrix that reads the stream are multiplied by
Q from the right, every matrix that writes it by the transpose of Q from the left. RMSNorm commutes with Q once its
weights are folded into the matrices behind it. Values and the columns of o are rotated in each head in the same way.
The rotated model computes the same function. A tied head becomes a matrix of its own, because only the head has the
final norm's weights. Source: Ashkboos et al. 2024, QuaRot, arXiv:2404.00456, section 4, without its rotations at run
time.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from forearm.array_types import Float32Array
from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.matrices import Role

VERSION = 3  # of the rotation in the weight cache's key: raised when Q or turn_groups changes
_INNER = 64  # order of the inner factor of Q: two products of small matrices are cheaper than one of a large matrix
# Roles of matrices that read the residual stream through a norm, and the norm's name, in its layer if it has one.
_NORMS: dict[Role, str] = {"mixer_in": "input_norm", "feed_forward_in": "pre_mlp_norm", "head": "final_norm"}
# Columns of a group that is turned before a down projection; where no such groups fit, the fewest (kernels.h,
# is_turnable).
TURNED, LEAST_TURNED = 512, 128
WRITERS: tuple[Role, ...] = ("mixer_out", "feed_forward_out")  # roles of matrices that write the residual stream


def obstacle(config: ModelConfig) -> str:
    """Return why this model is not rotated; empty if it can be.

    Every norm of the residual stream must be an RMSNorm directly before matrices, and what leaves the model are logits.
    """
    known = all(
        type(layer.mixer) is Attention
        and not (layer.mamba2 or layer.mixer.value_dim)
        and type(layer.feed_forward) is FeedForward
        for layer in config.layers
    )
    obstacles = {
        "it has LayerNorms": config.layer_norm,
        "its norms do not stand directly before matrices": config.norm_placement != "pre" or not config.final_norm,
        "its norms replace the residual stream": config.norm_residual != "none",
        "its norms have no weights, or one stands behind its embedding": config.embed_norm or not config.norm_weight,
        "norms stand before the last matrix of each half of its layers": config.sub_norm,
        "it adds tables to the embeddings": config.learned_positions or config.token_types > 0,
        "it has layers that are not attention and one feed-forward": not known,
        "it computes vectors": config.pooled,
    }
    return next((text for text, holds in obstacles.items() if holds), "")


def norm_before(name: str, role: Role) -> str:
    """Return the name of the norm whose weights belong into a matrix; empty if there is none."""
    norm = _NORMS.get(role, "")
    return f"{name.rpartition('.')[0]}.{norm}".lstrip(".") if norm else ""


def turns_heads(name: str, role: Role) -> bool:
    """Return whether the result of a part, named as by matrices.py, is rotated in each head: v."""
    return role == "mixer_in" and name.endswith(".v")


def rotate_columns(rows: Float32Array, role: Role, norm: Float32Array | None, head_dim: int) -> Float32Array:
    """Return rows of a matrix, float32 [rows, k], for rotated input. norm: weights of the norm before it, or None."""
    if role == "feed_forward_out":
        return rows  # activations before it are no stream; turn_groups is apart
    if role == "mixer_out":
        return _turned(rows.reshape(-1, head_dim)).reshape(rows.shape)
    scaled = _signs(rows.shape[1]) if norm is None else norm * _signs(rows.shape[1])
    return _turned(rows * scaled)


def turned_group(k: int) -> int:
    """Return the columns of a group of activations that are turned in rows of k columns; 0: they cannot be."""
    if k % TURNED in (0, LEAST_TURNED, 2 * LEAST_TURNED):
        return TURNED
    return 0 if k % LEAST_TURNED else LEAST_TURNED


def turn_groups(rows: Float32Array, group: int) -> Float32Array:
    """Return rows of a matrix, float32 [rows, k], for activations that are turned (kernels.h, QuantizeTask)."""
    turned = np.empty_like(rows)
    for begin in range(0, rows.shape[1], group):
        own = rows[:, begin : begin + group]
        height = own.shape[1] // 16
        matrix = _orthogonal(height) / np.float32(math.sqrt(height))  # the kernel's has ones and minus ones
        turned[:, begin : begin + group] = np.matmul(matrix, own.reshape(-1, height, 16)).reshape(own.shape)
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
    """Return a symmetric orthogonal matrix, float32 [n, n]: Hartley's of the odd factor of n by Hadamard's."""
    odd = n // (n & -n)
    angles = 2 * math.pi / odd * (np.outer(np.arange(odd), np.arange(odd)) % odd)
    made = np.cos(angles) + np.sin(angles)
    while len(made) < n:
        made = np.kron(made, np.array([[1.0, 1.0], [1.0, -1.0]]))
    made /= math.sqrt(n)
    return np.asarray(made, np.float32)


@cache
def _signs(n: int) -> Float32Array:
    """Return fixed random signs, 1 or -1: with them no common vector, such as a constant, gathers in one value."""
    bits = np.random.PCG64(0).random_raw(n) >> np.uint64(63)
    return (1.0 - 2.0 * bits.astype(np.float32)).astype(np.float32)
