"""dots3-note: latent attention to chosen keys, and in other layers to a window, whose sizes are their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Experts, FeedForward, LatentAttention, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs, decoder, lengths_of
from forearm.model.families.experts import SHARED_EXPERTS
from forearm.model.families.keys import Keys
from forearm.model.families.latent import corrected_layers, indexer_of, latent_attention
from forearm.model.families.rope import rope
from forearm.model.families.switches import FULL, SLIDING, check_flat, layer_types


def dots3_note(inputs: FamilyInputs) -> ModelConfig:
    """dots3-note for text alone: layers with an indexer, layers with a window and their own sizes; gates of heads."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, q_lora_rank=1024, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, index_topk=2048,
        index_head_dim=128, index_n_heads=64, n_routed_experts=256, n_shared_experts=1, moe_intermediate_size=1536,
        num_experts_per_tok=8, norm_topk_prob=True, first_k_dense_replace=1, rms_norm_eps=1e-5,
    )  # fmt: skip
    keys = inputs.keys
    if keys.flag("attention_bias"):
        raise keys.wrong("attention_bias", "false: the gates beside queries and latents have none")
    for key in ("head_dim", "index_n_heads", "index_head_dim", "index_topk"):
        keys.get(key)  # marks it as read: qk_rope_head_dim is a share of the first, and not all models have indexers
    kinds = _kinds(keys, inputs.layers)
    full = _mixer(keys, 0)
    mixers = {FULL: full}
    if _INDEXED in kinds:
        mixers[_INDEXED] = replace(full, indexer=indexer_of(keys, interleaved=True))
    ropes = [_angles(inputs, _INDEXED if _INDEXED in kinds else FULL, full.rotary)]
    if SLIDING in kinds:
        mixers[SLIDING] = _with_window(keys, full, [str(i) for i, kind in enumerate(kinds) if kind == SLIDING])
        ropes.append(_angles(inputs, SLIDING, mixers[SLIDING].rotary))
    return decoder(
        inputs,
        mixers=[mixers[kind] for kind in kinds],
        ropes=tuple(ropes),
        feed_forwards=_feed_forwards(inputs),
        kv_heads=1,
        head_dim=full.rank + full.rotary,
        attention_scale=(full.plain + full.rotary) ** -0.5,
        attention_gate="sigmoid",
        head_gates=True,
        names=SHARED_EXPERTS,
    )


_INDEXED = "indexed_attention"


def _kinds(keys: Keys, layers: int) -> list[str]:
    """Return the kind of each layer. Files from before per_layer_config call layers with an indexer full_attention."""
    some = keys.flag("use_sliding_window", True)
    default = [SLIDING if some and i > 1 and i % 4 != 1 else _INDEXED for i in range(layers)]
    kinds = list(layer_types(keys, default, (FULL, _INDEXED, SLIDING)))
    if "use_dsa" in keys or "per_layer_config" not in keys:
        whole = _INDEXED if keys.flag("use_dsa", True) else FULL
        kinds = [kind if kind == SLIDING else whole for kind in kinds]
    return kinds


def _mixer(keys: Keys, rope: int) -> LatentAttention:
    own, hidden = latent_attention(keys, rope), keys.integer("hidden_size")
    if not own.q_rank:
        raise keys.wrong("q_lora_rank", "a rank: queries are made of this latent")
    scales = (hidden / own.q_rank) ** 0.5, (hidden / own.rank) ** 0.5
    return replace(own, scales=scales, norm_eps=keys.number("rms_norm_eps"), key_norm=True)


def _with_window(keys: Keys, full: LatentAttention, layers: list[str]) -> LatentAttention:
    """Return the attention of these layers, whose scores are scaled as the others' and by the latent of queries."""
    name = "sliding_window_size" if keys.get("sliding_window") is None else "sliding_window"
    window = keys.integer(name, 512)
    if window < 1:
        raise keys.wrong(name, "at least 1")
    own = Keys(keys.values | _sizes(keys, layers), f"{keys.source}: {SLIDING}")
    mixer, heads = _mixer(own, 1), own.integer("num_attention_heads")
    if not 1 <= heads <= 4096:
        raise own.wrong("num_attention_heads", "1 to 4096")
    more = ((full.plain + full.rotary) / (mixer.plain + mixer.rotary)) ** 0.5
    return replace(mixer, heads=heads, window=window, scales=(mixer.scales[0] * more, mixer.scales[1]))


_SIZES = {
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "head_dim": 256,
    "qk_nope_head_dim": 192, "v_head_dim": 128,
}  # fmt: skip


def _sizes(keys: Keys, layers: list[str]) -> dict[str, Any]:
    """Return the sizes of layers with a window: per_layer_config of each, or written once with swa_ before names."""
    by_layer, rotary = keys.get("per_layer_config"), "qk_rope_head_dim"
    if by_layer is None:
        own = {name: keys.integer(f"swa_{name}", default) for name, default in _SIZES.items()}
        return own | {rotary: keys.integer(f"swa_{rotary}", own["head_dim"] - own["qk_nope_head_dim"])}
    first = by_layer.get(layers[0]) if isinstance(by_layer, dict) else None
    if not isinstance(first, dict) or by_layer != dict.fromkeys(layers, first) or first.keys() - {*_SIZES, rotary}:
        raise keys.wrong("per_layer_config", f"the same sizes of all layers with {SLIDING}, and none of others")
    return first


def _angles(inputs: FamilyInputs, kind: str, rotary: int) -> Rope:
    """Return the angles of a kind of layer: settings are written for each, or once for all."""
    keys = inputs.keys
    settings = keys.object("rope_parameters") or keys.object("rope_scaling")
    theta = keys.number("rope_theta", 8e7)
    if settings is None and kind == SLIDING:
        theta = keys.number("swa_rope_theta", 5e4)
    settings = settings or Keys({}, keys.source)
    own = settings.object(kind) or settings
    check_flat(own)
    return rope(own, own.number("rope_theta", theta), rotary, lengths_of(inputs, own), interleaved=True)


def _feed_forwards(inputs: FamilyInputs) -> list[FeedForward | Experts]:
    """Return DeepSeek V3's experts, whose shared ones have a width of their own, behind dense layers."""
    keys = inputs.keys
    every = keys.get("moe_layer_freq")
    if isinstance(every, list) and len(every) == inputs.layers:
        kinds = [
            "sparse" if i >= keys.integer("first_k_dense_replace") and one else "dense" for i, one in enumerate(every)
        ]
        inputs = inputs.with_defaults(mlp_layer_types=kinds)
    elif every not in (None, 1):
        raise keys.wrong("moe_layer_freq", f"1, or a list of {inputs.layers} times 0 or 1")
    shared = keys.integer("n_shared_experts")
    if shared < 1:
        raise keys.wrong("n_shared_experts", "at least 1")
    key = "moe_shared_expert_intermediate_size"
    width = keys.integer(key, keys.integer("shared_experts_intermediate_size", 1536))
    if not 1 <= width <= 1 << 20:
        raise keys.wrong(key if key in keys else "shared_experts_intermediate_size", f"1 to {1 << 20}")
    return [
        replace(own, shared=FeedForward(shared * width, own.activation)) if isinstance(own, Experts) else own
        for own in corrected_layers(inputs)
    ]
