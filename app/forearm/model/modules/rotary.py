"""Rotary embeddings by the native kernel, in modules whose `apply_rotary_pos_emb` is that of Llama.

transformers' function takes some sixteen operations of torch a layer, each of a few microseconds however few the
values: near a tenth of a small model's decode step. Its models call it by a global name of their file, so a module gets
a forward of the same code that finds ours by that name; other users of transformers are left alone.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.llama import modeling_llama

from forearm import _native
from forearm.array_types import Float32Array


class NativeRotary:
    """Takes the place of transformers' function; calls that the kernel has no form of go on to the latter.

    The kernel takes one angle for the two values of a pair, so halves of cos and sin must be equal. That is found once
    a step, as all layers get the same tensors.
    """

    def __init__(self, executor: _native.Executor) -> None:
        self._executor = executor
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None
        self._halves: tuple[Float32Array, Float32Array] | None = None

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotated heads, [1, heads, tokens, dim]."""
        halves = self.halves(cos, sin)
        if halves is None or unsqueeze_dim != 1 or not (_fits(q, cos) and _fits(k, cos)):
            apply: Any = modeling_llama.apply_rotary_pos_emb
            rotated: tuple[torch.Tensor, torch.Tensor] = apply(q, k, cos, sin, unsqueeze_dim)
            return rotated
        rotated_q, rotated_k = (torch.from_numpy(self.rope(x.numpy(), halves)).transpose(1, 2) for x in (q, k))
        return rotated_q, rotated_k

    def halves(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[Float32Array, Float32Array] | None:
        """Return the angles of pairs, [tokens, dim / 2]; None: the two values of a pair have others."""
        if self._given is None or cos is not self._given[0] or sin is not self._given[1]:
            self._given, self._halves = (cos, sin), _halves(cos, sin)
        return self._halves

    def rope(self, x: Float32Array, halves: tuple[Float32Array, Float32Array]) -> Float32Array:
        """Return heads [1, heads, tokens, dim] rotated, [1, tokens, heads, dim]."""
        return self._executor.rope(x, *halves)


def _fits(x: torch.Tensor, cos: torch.Tensor) -> bool:
    return x.dtype is torch.float32 and x.dim() == 4 and x.shape[::2] == cos.shape[:2] and (
        x.shape[3] == cos.shape[2] and x.stride(3) == 1
    )  # fmt: skip


def _halves(cos: torch.Tensor, sin: torch.Tensor) -> tuple[Float32Array, Float32Array] | None:
    halves = []
    for angles in (cos, sin):
        if angles.dtype is not torch.float32 or angles.dim() != 3 or angles.shape[0] != 1 or angles.shape[2] % 2:
            return None
        low, high = angles[0].chunk(2, dim=-1)
        if not torch.equal(low, high):
            return None
        halves.append(low.contiguous().numpy())
    return halves[0], halves[1]
