"""Layers of Llama's code, each half of which is one call of the native executor: 64 of transformers have its code.

Where all layers of a model are native, the first one computes them all: torch's call of a module and what a layer asks
its attention take 0.04 ms, 30 times in a step of SmolLM2-135M that takes 12 ms (a Xeon; Python's code is no longer in
the near caches after each layer's weights).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
from transformers.models.mistral.modeling_mistral import MistralModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

from forearm import _native
from forearm.array_types import Float32Array
from forearm.model.modules.joint import has_code_of
from forearm.model.modules.linear import GatedFeedForward, PackedLinear, PackedNorm, PackedProduct, rows_of
from forearm.model.modules.llama_attention import Halves, NativeAttention

_MODELS = (LlamaModel, Qwen2Model, MistralModel)  # whose forward calls all layers alike, one after the other


class NativeLayer:
    """The forward of a layer whose attention, norms and matrices are native; its feed-forward may be torch's.

    next_layer: returns the layer of the KV cache that the next call of attention in this step has.
    """

    def __init__(self, native: _native.Executor, module: Any, next_layer: Callable[[], int]) -> None:
        self._native, self._module, self._next_layer = native, module, next_layer
        self._torch_forward = module.forward
        self.attention: NativeAttention = module.self_attn.forward
        self._before: PackedNorm = module.input_layernorm.forward
        self._after: PackedNorm = module.post_attention_layernorm.forward
        self._qkv, self._o = (product.name for product in self.attention.products if isinstance(product, PackedProduct))
        self._feed_forward = _feed_forward(module)

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
        halves = self.attention.halves(position_embeddings, attention_mask, past_key_values, **others)
        if halves is None:
            rows: torch.Tensor = self._torch_forward(
                hidden_states, attention_mask, position_ids, past_key_values, use_cache, position_embeddings, **others
            )
            return rows
        shape = hidden_states.shape
        x = self.mixed(rows_of(hidden_states, shape[-1]), halves)
        if self.whole:
            return torch.from_numpy(self.fed(x).reshape(shape))
        mixed = torch.from_numpy(x.reshape(shape))
        fed: torch.Tensor = self._module.mlp(self._module.post_attention_layernorm(mixed))
        return mixed + fed

    @property
    def whole(self) -> bool:
        """Return whether the feed-forward is native, too."""
        return self._feed_forward is not None

    def mixed(self, x: Float32Array, halves: Halves) -> Float32Array:
        """Return x after the half that attends."""
        norm, attention = self._before, self.attention
        return self._native.mix(
            self._next_layer(), x, norm.weight, norm.eps, self._qkv, self._o, *halves, attention.scale, attention.window
        )

    def fed(self, x: Float32Array) -> Float32Array:
        """Return x, to which the feed-forward is added in place."""
        assert self._feed_forward is not None
        norm, (up, down) = self._after, self._feed_forward
        self._native.feed_forward(x, norm.weight, norm.eps, up.name, down.name, up.gate)
        return x


class NativeLayers:
    """The forward of the first layer, which computes all layers of the model."""

    def __init__(self, layers: Sequence[NativeLayer]) -> None:
        self._layers = layers

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
        first = self._layers[0].attention
        halves = first.halves(position_embeddings, attention_mask, past_key_values, **others)
        if halves is None:
            for layer in self._layers:
                hidden_states = layer(
                    hidden_states, attention_mask, position_ids, past_key_values, use_cache, position_embeddings,
                    **others,
                )  # fmt: skip
            return hidden_states
        x = rows_of(hidden_states, hidden_states.shape[-1])
        for layer in self._layers:
            x = layer.fed(layer.mixed(x, halves))
        return torch.from_numpy(x.reshape(hidden_states.shape))


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
        if all(isinstance(layer, NativeLayer) and layer.whole for layer in layers):
            own.layers[0].forward = NativeLayers(layers)
            own.layers = own.layers[:1]


def _feed_forward(module: Any) -> tuple[PackedProduct, PackedProduct] | None:
    """Return the products of gate and up and of down; None: others make the layer's feed-forward."""
    feed_forward, down = module.mlp.forward, getattr(module.mlp, "down_proj", None)
    if not isinstance(feed_forward, GatedFeedForward) or not isinstance(down, PackedLinear):
        return None
    products = (feed_forward.product, down.product)
    one, other = (product if isinstance(product, PackedProduct) else None for product in products)
    return (one, other) if one and other and down.column is None else None
