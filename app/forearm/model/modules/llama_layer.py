"""Layers of Llama's code, which the native executor computes: 64 of transformers have its code.

Where all layers of a model are native, the first one computes them all in one call: a call for each half of a layer
took 2.3 of the 11.4 ms of a decode step of SmolLM2-135M (bfloat16, two cores of a Zen 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
from transformers.models.mistral.modeling_mistral import MistralModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

from forearm import _native
from forearm.model.modules.joint import has_code_of
from forearm.model.modules.linear import GatedFeedForward, PackedLinear, PackedNorm, PackedProduct, rows_of
from forearm.model.modules.llama_attention import NativeAttention

_MODELS = (LlamaModel, Qwen2Model, MistralModel)  # whose forward calls all layers alike, one after the other


class NativeLayer:
    """The forward of a layer whose attention, norms and matrices are native; its feed-forward may be torch's.

    next_layer: returns the layer of the KV cache that the next call of attention in this step has.
    """

    def __init__(self, native: _native.Executor, module: Any, next_layer: Callable[[], int]) -> None:
        self._native, self._module, self.next_layer = native, module, next_layer
        self._torch_forward = module.forward
        self.attention: NativeAttention = module.self_attn.forward
        before: PackedNorm = module.input_layernorm.forward
        after: PackedNorm = module.post_attention_layernorm.forward
        qkv, o = (product.name for product in self.attention.products if isinstance(product, PackedProduct))
        scale, window = self.attention.scale, self.attention.window
        self.first_half = native.add_half(before.weight, before.eps, qkv, o, "none", scale, window)
        self.halves = 1
        if products := _feed_forward(module):
            up, down = products
            native.add_half(after.weight, after.eps, up.name, down.name, up.gate)
            self.halves = 2

    def __call__(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """Return the layer's output: float32, of the shape of `hidden_states`."""
        angles = self.attention.halves(position_embeddings, attention_mask, past_key_values, **others)
        if angles is None:
            rows: torch.Tensor = self._torch_forward(
                hidden_states, attention_mask, position_ids, past_key_values, use_cache, position_embeddings, **others
            )
            return rows
        x = rows_of(hidden_states, hidden_states.shape[-1])
        end = self.first_half + self.halves
        out = self._native.compute_halves(self.first_half, end, self.next_layer(), x, *angles)
        mixed = torch.from_numpy(out.reshape(hidden_states.shape))
        if self.halves == 2:
            return mixed
        fed: torch.Tensor = self._module.mlp(self._module.post_attention_layernorm(mixed))
        return mixed + fed


class NativeLayers:
    """The forward of the first layer, which computes all layers of the model."""

    def __init__(self, native: _native.Executor, layers: Sequence[NativeLayer]) -> None:
        self._native, self._layers = native, layers

    def __call__(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """Return the last layer's output: float32, of the shape of `hidden_states`."""
        first, last = self._layers[0], self._layers[-1]
        angles = first.attention.halves(position_embeddings, attention_mask, past_key_values, **others)
        if angles is None:
            for layer in self._layers:
                hidden_states = layer(
                    hidden_states, attention_mask, position_ids, past_key_values, use_cache, position_embeddings,
                    **others,
                )  # fmt: skip
            return hidden_states
        x = rows_of(hidden_states, hidden_states.shape[-1])
        cached = [layer.next_layer() for layer in self._layers]
        out = self._native.compute_halves(first.first_half, last.first_half + last.halves, cached[0], x, *angles)
        return torch.from_numpy(out.reshape(hidden_states.shape))


def use_native_layers(model: torch.nn.Module, native: _native.Executor, next_layer: Callable[[], int]) -> None:
    """Give layers of Llama's code a native forward, after their attentions and norms have one."""
    for module in model.modules():
        own: Any = module
        if not has_code_of(module, LlamaDecoderLayer):
            continue
        attention = own.self_attn.forward
        norms = (own.input_layernorm.forward, own.post_attention_layernorm.forward)
        if not isinstance(attention, NativeAttention) or not all(isinstance(norm, PackedNorm) for norm in norms):
            continue
        width = len(norms[0].weight)
        fits = own.self_attn.q_proj.in_features == own.self_attn.o_proj.out_features == width
        if fits and all(isinstance(product, PackedProduct) for product in attention.products):
            own.forward = NativeLayer(native, own, next_layer)
    for module in list(model.modules()):
        own = module
        if not any(has_code_of(module, known) for known in _MODELS) or len(own.layers) != own.config.num_hidden_layers:
            continue
        layers = [layer.forward for layer in own.layers]
        if all(isinstance(layer, NativeLayer) and layer.halves == 2 for layer in layers):
            own.layers[0].forward = NativeLayers(native, layers)
            own.layers = own.layers[:1]


def _feed_forward(module: Any) -> tuple[PackedProduct, PackedProduct] | None:
    """Return the products of gate and up and of down; None: others make the layer's feed-forward."""
    feed_forward, down = module.mlp.forward, getattr(module.mlp, "down_proj", None)
    if not isinstance(feed_forward, GatedFeedForward) or not isinstance(down, PackedLinear):
        return None
    products = (feed_forward.product, down.product)
    one, other = (product if isinstance(product, PackedProduct) else None for product in products)
    return (one, other) if one and other and down.column is None else None
