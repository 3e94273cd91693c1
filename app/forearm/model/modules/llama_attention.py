"""Llama's attention without torch between its products: 34 attentions of transformers have its code, and that of
Qwen2 and Mistral differs by a window.

In a decode step of a small model torch's views and calls of modules take longer than the attention itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import torch
from transformers.models.llama import modeling_llama
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from forearm.array_types import Float32Array
from forearm.model.modules.joint import has_code_of, same_code
from forearm.model.modules.linear import JointProduct, PackedLinear, Product
from forearm.model.modules.rotary import NativeRotary

_APPLY = "apply_rotary_pos_emb"
# What the attention function would get of these, NativeAttention does not compute.
_BEYOND = frozenset({"sliding_window", "softcap", "s_aux", "position_bias", "indices", "block_mask", "is_causal"})
# The window of an attention, by whose code it has.
_WINDOWS: dict[type[torch.nn.Module], Callable[[Any], int | None]] = {
    modeling_llama.LlamaAttention: lambda _: None,
    Qwen2Attention: lambda module: module.sliding_window,
    MistralAttention: lambda module: getattr(module.config, "sliding_window", None),
}
Halves = tuple[Float32Array, Float32Array]


class AttendRows(Protocol):
    """Attends in the next layer of the KV cache."""

    def __call__(self, q: Float32Array, k: Float32Array, v: Float32Array, scale: float, window: int) -> Float32Array:
        """Return [tokens, heads, head_dim]; q: [tokens, heads, head_dim], k, v: [tokens, kv_heads, head_dim]."""
        ...


class NativeAttention:
    """The forward of a module whose q, k and v are one product, of heads side by side."""

    def __init__(self, module: Any, window: int, joint: JointProduct, attend: AttendRows, rotary: NativeRotary) -> None:
        self._module, self._joint, self._attend, self._rotary = module, joint, attend, rotary
        self._torch_forward = module.forward
        self._dim = int(module.head_dim)
        self._k = module.q_proj.out_features // self._dim  # the first head of keys
        self._v = self._k + module.k_proj.out_features // self._dim
        self.scale, self.window = float(module.scaling), window

    @property
    def products(self) -> tuple[Product, Product]:
        """Return the product of q, k and v, and that of the output."""
        return self._joint.product, self._module.o_proj.product

    def halves(
        self, position_embeddings: tuple[torch.Tensor, torch.Tensor] | None, *beyond: object, **others: object
    ) -> Halves | None:
        """Return the angles of pairs; None: torch must attend, by a rotation or arguments that are not computed here.

        beyond: arguments that must be None. others: all others.
        """
        if position_embeddings is None or any(one is not None for one in beyond) or not _BEYOND.isdisjoint(others):
            return None
        halves = self._rotary.halves(*position_embeddings)
        return halves if halves is not None and halves[0].shape[1] * 2 == self._dim else None

    def __call__(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return the rows of its output: float32, of the shape of `hidden_states`."""
        halves = self.halves(position_embeddings, attention_mask, past_key_values, **others)
        if halves is None:
            rows: tuple[torch.Tensor, None] = self._torch_forward(
                hidden_states, position_embeddings, attention_mask, past_key_values, **others
            )
            return rows
        joint: Float32Array = self._joint.product(hidden_states).numpy()
        heads = joint.reshape(joint.shape[1], -1, self._dim)
        q, k = (
            self._rotary.rope(part.transpose(1, 0, 2)[None], halves)[0]
            for part in (heads[:, : self._k], heads[:, self._k : self._v])
        )
        out = self._attend(q, k, np.ascontiguousarray(heads[:, self._v :]), self.scale, self.window)
        return self._module.o_proj(torch.from_numpy(out.reshape(1, len(out), -1))), None


def use_native_attention(model: torch.nn.Module, attend: AttendRows, rotary: NativeRotary, shape: list[int]) -> None:
    """Make `rotary` the function of modules that rotate as Llama does, and give attentions of Llama's code a native
    forward. shape: heads, kv_heads and head_dim of the KV cache.
    """
    names: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        own: Any = module
        forward: Any = type(module).forward
        theirs = getattr(forward, "__globals__", {})
        llamas = all(same_code(theirs.get(name), getattr(modeling_llama, name)) for name in (_APPLY, "rotate_half"))
        if llamas and _APPLY in forward.__code__.co_names:
            ours = names.setdefault(id(theirs), theirs | {_APPLY: rotary})
            copy = FunctionType(forward.__code__, ours, forward.__name__, forward.__defaults__, forward.__closure__)
            copy.__kwdefaults__ = forward.__kwdefaults__
            own.forward = copy.__get__(module)
        known = next((one for one in _WINDOWS if has_code_of(module, one)), None)
        if known is None:
            continue
        parts = (own.q_proj, own.k_proj, own.v_proj)
        joint = getattr(parts[0], "product", None)
        if not isinstance(joint, JointProduct) or joint.layers != len(parts) or not own.is_causal:
            continue
        together = all(isinstance(part, PackedLinear) and part.product is joint for part in parts)
        heads = [part.out_features / own.head_dim for part in parts]
        beside = [part.column for part in parts] == [0, parts[0].out_features, sum(p.out_features for p in parts[:2])]
        if together and beside and [*heads, own.head_dim] == [shape[0], shape[1], shape[1], shape[2]]:
            own.forward = NativeAttention(own, _WINDOWS[known](own) or 0, joint, attend, rotary)
