"""Gemma: scaled embeddings, tanh GELU, a tied head; norms of 1 + weight before Gemma 4, whose heads have two shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from forearm.model.families import switches
from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, ropes_by_layer_type, windows_of
from forearm.model.families.experts import routed
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import AltUp


def gemma(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 1 and CodeGemma: norms before each half of a layer. Files that say gelu mean its tanh form."""
    inputs = inputs.with_defaults(head_dim=256, num_key_value_heads=16)
    keys = inputs.keys
    act = activation(keys, "hidden_activation" if keys.get("hidden_activation") else "hidden_act", "gelu_pytorch_tanh")
    return _gemma(
        inputs,
        act="gelu_tanh" if act == "gelu_erf" else act,
        norm_placement="pre",
        attention_scale=keys.integer("head_dim") ** -0.5,
        names={},
    )


def gemma2(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 2: norms around both halves, softcaps, a window on every other layer."""
    inputs = inputs.with_defaults(head_dim=256, num_key_value_heads=4, sliding_window=4096)
    return _gemma(
        inputs,
        windows=windows_of(inputs, [i % 2 == 0 for i in range(inputs.layers)]),
        attention_softcap=inputs.keys.optional_number("attn_logit_softcapping", 50.0) or 0.0,
        logits_softcap=inputs.keys.optional_number("final_logit_softcapping", 30.0) or 0.0,
    )


def vaultgemma(inputs: FamilyInputs) -> ModelConfig:
    """VaultGemma 1B: Gemma 2 without norms behind the halves of a layer."""
    config = gemma2(inputs)
    names = {name: stored for name, stored in config.names.items() if name != "post_mlp_norm"}
    return replace(config, norm_placement="pre", names=names)


def gemma3(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 3's text model, alone or inside the multimodal one: q and k norms; sliding layers have their own angles."""
    inputs = inputs.with_defaults(
        vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=4096,
        max_position_embeddings=131_072, sliding_window_pattern=6,
    )  # fmt: skip
    keys = inputs.keys
    if keys.optional_number("attn_logit_softcapping"):
        raise keys.wrong("attn_logit_softcapping", "null: transformers' Gemma 3 does not apply it")
    pattern = keys.integer("_sliding_window_pattern", keys.integer("sliding_window_pattern"))
    windows = windows_of(inputs, [(i + 1) % pattern != 0 for i in range(inputs.layers)])
    both_ways = inputs.pooled and keys.flag("use_bidirectional_attention")  # EmbeddingGemma: half a window to each side
    windows = [w // 2 + 1 if both_ways and w else w for w in windows]
    return _gemma(
        inputs,
        mixers=[Attention(rope=1 if w else 0, window=w) for w in windows],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 1e6), sliding=("rope_local_base_freq", 1e4)),
        qk_norm="head",
        bidirectional=both_ways,
        logits_softcap=keys.optional_number("final_logit_softcapping") or 0.0,
    )


def _gemma(inputs: FamilyInputs, **differs: Any) -> ModelConfig:
    """Return a Gemma 2 or 3: four norms of 1 + weight in each layer, scaled embeddings, tanh GELU, a tied head."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, query_pre_attn_scalar=256)
    keys = inputs.keys
    keys.get("hidden_act")  # marks it as read: older files repeat hidden_activation in it
    bias = keys.flag("attention_bias")
    common: dict[str, Any] = {
        "norm_placement": "sandwich",
        "norm_plus_one": True,
        "act": activation(keys, "hidden_activation", "gelu_pytorch_tanh"),
        "attention_scale": keys.positive("query_pre_attn_scalar") ** -0.5,
        "embedding_scale": rounded_scale(math.sqrt(keys.integer("hidden_size")), inputs),
        "qkv_bias": bias,
        "o_bias": bias,
        "names": {"pre_mlp_norm": "pre_feedforward_layernorm", "post_mlp_norm": "post_feedforward_layernorm"},
    }
    return decoder(inputs, **common | differs)


def rounded_scale(value: float, inputs: FamilyInputs) -> float:
    """Return a scale rounded to the weights' dtype, as Gemma rounds that of embeddings: sqrt(3072) is 55.5."""
    dtype = inputs.weight_dtype or inputs.checkpoint_dtype
    if dtype == "float16":
        return float(np.float16(value))
    if dtype == "bfloat16":  # to nearest, ties to even, on the upper 16 bits of the float32
        bits = int(np.float32(value).view(np.uint32))
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(np.uint32(bits).view(np.float32))
    return float(np.float32(value))


def gemma3n(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 3n's text model, alone or inside the multimodal one: E2B and E4B, of several residual streams."""
    inputs = inputs.with_defaults(**_DEFAULTS_3N)
    keys, count = inputs.keys, inputs.layers
    if keys.integer("altup_active_idx", 0):
        raise keys.wrong("altup_active_idx", "0: layers compute the first stream")
    streams, rank = keys.integer("altup_num_inputs"), keys.integer("laurel_rank")
    width, vocab = keys.integer("hidden_size_per_layer_input"), keys.integer("vocab_size_per_layer_input")
    for key, least, value, most in (
        ("altup_num_inputs", 2, streams, 8), ("laurel_rank", 1, rank, 1 << 16),
        ("hidden_size_per_layer_input", 1, width, (1 << 20) // count),
        ("vocab_size_per_layer_input", 1, vocab, keys.integer("vocab_size")),
    ):  # fmt: skip
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    kinds = switches.layer_types(keys, [switches.FULL if i % 5 == 4 else switches.SLIDING for i in range(count)])
    window, bias = keys.integer("sliding_window"), keys.flag("attention_bias")
    mixers = [
        Attention(1 if kind == switches.SLIDING else 0, window if kind == switches.SLIDING else 0, shared_from=source)
        for kind, source in zip(kinds, _sources(keys, kinds), strict=True)
    ]
    return decoder(
        inputs,
        mixers=mixers,
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 1e6), sliding=("rope_local_base_freq", 1e4)),
        feed_forwards=_cut_feed_forwards(inputs),
        norm_placement="sandwich",
        qk_norm="head",
        v_norm=True,
        per_layer=width,
        per_layer_scale=rounded_scale(math.sqrt(width), inputs),
        per_layer_vocab=vocab,
        alt_up=AltUp(streams, rank, keys.flag("altup_correct_scale", True)),
        qkv_bias=bias,
        o_bias=bias,
        attention_scale=1.0,
        embedding_scale=rounded_scale(math.sqrt(keys.integer("hidden_size")), inputs),
        logits_softcap=keys.optional_number("final_logit_softcapping", 30.0) or 0.0,
        names={"pre_mlp_norm": "pre_feedforward_layernorm", "post_mlp_norm": "post_feedforward_layernorm"},
    )


_DEFAULTS_3N: dict[str, Any] = {
    "vocab_size": 262_400, "vocab_size_per_layer_input": 262_144, "hidden_size": 2048, "intermediate_size": 16_384,
    "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 15, "altup_num_inputs": 4, "laurel_rank": 64,
    "sliding_window": 512, "max_position_embeddings": 32_768, "tie_word_embeddings": True,
}  # fmt: skip


def _cut_feed_forwards(inputs: FamilyInputs) -> list[FeedForward]:
    """Return the feed-forward of each layer of Gemma 3n, of the first of which only the largest gates count."""
    keys, count = inputs.keys, inputs.layers
    if keys.text("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise keys.wrong("hidden_activation", "gelu_pytorch_tanh in this family")
    listed = isinstance(keys.get("intermediate_size"), list)
    widths = keys.numbers("intermediate_size", count) if listed else [keys.integer("intermediate_size")] * count
    sparse = [0.95] * 10 + [0.0] * (count - 10) if count > 10 else [0.0] * count
    if keys.get("activation_sparsity_pattern") is not None:
        sparse = keys.numbers("activation_sparsity_pattern", count)
    if not all(0 <= share < 1 for share in sparse):
        raise keys.wrong("activation_sparsity_pattern", "shares of 0 or more, and less than 1")
    if not all(width.is_integer() and 0 < width <= 1 << 20 for width in map(float, widths)):
        raise keys.wrong("intermediate_size", "whole numbers of 1 to 1048576")
    cuts = (NormalDist().inv_cdf(share) if share > 0 else None for share in sparse)
    return [FeedForward(int(width), "gelu_tanh", gate_cut=cut) for width, cut in zip(widths, cuts, strict=True)]


def _sources(keys: Keys, kinds: Sequence[str]) -> list[int | None]:
    """Return the layer whose keys and values each layer reads; None: it has its own.

    The last num_kv_shared_layers read those of the last layer of their kind before them.
    """
    first = len(kinds) - keys.integer("num_kv_shared_layers", 0)
    if not 0 < first <= len(kinds) or (first < len(kinds) and set(kinds[:first]) != set(kinds)):
        raise keys.wrong("num_kv_shared_layers", "so many that layers of each type have keys and values of their own")
    last = {kind: i for i, kind in enumerate(kinds[:first])}
    return [last[kind] if i >= first else None for i, kind in enumerate(kinds)]


def gemma4(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 4's text model, alone or inside the multimodal one: dense, E2B and E4B, or 26B-A4B with experts."""
    inputs = inputs.with_defaults(**_DEFAULTS)
    keys = inputs.keys
    if keys.get("use_bidirectional_attention") not in (None, "vision"):  # "vision": among the tokens of an image
        raise keys.wrong("use_bidirectional_attention", 'null or "vision"')
    for unused in ("num_experts", "moe_intermediate_size", "top_k_experts"):
        keys.get(unused)  # marks it as read: dense models have these keys, too
    full_heads = _full_heads(keys)
    mixers = _mixers(inputs, *full_heads)
    act = activation(keys, "hidden_activation", "gelu_pytorch_tanh")
    width, wide = keys.integer("intermediate_size"), keys.flag("use_double_wide_mlp")
    dense = [FeedForward(width * (2 if wide and one.shared_from is not None else 1), act) for one in mixers]
    feed_forwards: Sequence[FeedForward | Experts] = dense
    if keys.flag("enable_moe_block"):
        experts = routed(inputs, "num_experts", "moe_intermediate_size", True, active="top_k_experts", apart=True)
        feed_forwards = [replace(experts, activation=one.activation, shared=one) for one in dense]
    bias, per_layer = keys.flag("attention_bias"), _per_layer_width(inputs)
    return decoder(
        inputs,
        mixers=mixers,
        ropes=ropes_by_layer_type(
            inputs, full=("rope_theta", 1e6), sliding=("rope_theta", 1e4), full_head_dim=full_heads[1]
        ),
        feed_forwards=feed_forwards,
        norm_placement="sandwich",
        qk_norm="head",
        v_norm=True,
        layer_scalar=True,
        per_layer=per_layer,
        per_layer_scale=rounded_scale(math.sqrt(per_layer), inputs),
        qkv_bias=bias,
        o_bias=bias,
        attention_scale=1.0,
        embedding_scale=rounded_scale(math.sqrt(keys.integer("hidden_size")), inputs),
        logits_softcap=keys.optional_number("final_logit_softcapping") or 0.0,
        names=_NAMES,
    )


def gemma4_unified(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 4 12B's text model, alone or inside the multimodal one: Gemma 4, dense."""
    return gemma4(inputs.with_defaults(hidden_size_per_layer_input=0, sliding_window=1024))


_NAMES = {
    "pre_mlp_norm": "pre_feedforward_layernorm", "post_mlp_norm": "post_feedforward_layernorm",
    "router": "router.proj", "experts.gate": "experts.gate_up_proj[0]", "experts.up": "experts.gate_up_proj[1]",
    "experts.down": "experts.down_proj",
} | {f"shared.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
    "sliding_window": 512, "max_position_embeddings": 131_072, "tie_word_embeddings": True,
    "rope_parameters": {
        switches.FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        switches.SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


def _per_layer_width(inputs: FamilyInputs) -> int:
    """Return the width of the embedding of each layer, which E2B and E4B have; 0: there is none."""
    keys = inputs.keys
    width, vocab = keys.integer("hidden_size_per_layer_input"), keys.integer("vocab_size_per_layer_input")
    if width < 0 or width * inputs.layers > 1 << 20:
        raise keys.wrong("hidden_size_per_layer_input", "0, or a width that times num_hidden_layers is at most 1048576")
    if width and vocab != keys.integer("vocab_size"):
        raise keys.wrong("vocab_size_per_layer_input", f"vocab_size ({keys.integer('vocab_size')})")
    return width


def _full_heads(keys: Keys) -> tuple[int, int]:
    """Return the kv heads of layers with full attention, and the size of their heads.

    transformers 5 writes them for each layer, as far as they differ from other layers', older files once for all.
    """
    kv_heads, head_dim = keys.integer("num_key_value_heads"), keys.integer("head_dim")
    own = keys.object("per_layer_config")
    if own is None and keys.get("per_layer_config") is not None:
        return kv_heads, head_dim
    if own is None:
        separate = keys.optional_integer("num_global_key_value_heads") or kv_heads
        return separate if keys.flag("attention_k_eq_v") else kv_heads, keys.integer("global_head_dim")
    layers = [one for one in map(own.object, own.values) if one]
    found = {(one.integer("num_key_value_heads", kv_heads), one.integer("head_dim", head_dim)) for one in layers}
    if len(found) != 1:
        raise keys.wrong("per_layer_config", "the same for all layers with full attention")
    return found.pop()


def _mixers(inputs: FamilyInputs, kv_heads: int, head_dim: int) -> list[Attention]:
    """Return the attention of each layer."""
    keys, count = inputs.keys, inputs.layers
    kinds = list(switches.layer_types(keys, [switches.FULL if i % 6 == 5 else switches.SLIDING for i in range(count)]))
    kinds[-1] = switches.FULL  # as transformers has it
    window = keys.integer("sliding_window")
    found = []
    for kind, shared in zip(kinds, _sources(keys, kinds), strict=True):
        if kind == switches.SLIDING:
            found.append(Attention(rope=1, window=window, shared_from=shared))
        else:
            as_values = keys.flag("attention_k_eq_v")
            found.append(Attention(0, 0, kv_heads, head_dim, as_values, shared))
    return found
