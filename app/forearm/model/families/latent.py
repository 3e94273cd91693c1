"""Families with multi-head latent attention: DeepSeek V2, V3, R1 and V3.2, GLM-4.7-Flash and GLM-5, MiniCPM3.

The norms of latents have an epsilon of 1e-6 in all of them, whatever rms_norm_eps is (native/model/mixers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from forearm.model.families.config import Experts, FeedForward, LatentAttention, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs, activation, decoder, flat_rope, listed_layers, positions
from forearm.model.families.experts import SHARED_EXPERTS, routed
from forearm.model.families.indexed.indexers import Indexer
from forearm.model.families.keys import Keys


def deepseek_v2(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek V2 and V2-Lite: softmax scores; of groups of experts those with the largest score are chosen from."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1407, first_k_dense_replace=0,
    )  # fmt: skip
    keys = inputs.keys
    if keys.flag("norm_topk_prob"):
        raise keys.wrong("norm_topk_prob", "false: transformers scales weights instead")
    groups, kept = _v2_groups(keys)
    experts = _experts(inputs, groups=groups, groups_kept=kept, group_best=1)
    return with_latents(inputs, _layers(inputs, experts, keys.integer("first_k_dense_replace")), interleaved=True)


def deepseek_ocr2(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek-OCR 2 for text alone: Llama with DeepSeek V2's experts."""
    inputs = inputs.with_defaults(
        n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1407, first_k_dense_replace=1,
        head_dim=inputs.keys.integer("hidden_size") // inputs.keys.integer("num_attention_heads"),
    )  # fmt: skip
    keys = inputs.keys
    groups, kept = _v2_groups(keys)
    experts = _experts(inputs, groups=groups, groups_kept=kept, group_best=1)
    layers = listed_layers(inputs, experts, keys.integer("first_k_dense_replace"))
    bias = keys.flag("attention_bias")
    return decoder(inputs, feed_forwards=layers, qkv_bias=bias, o_bias=bias, names=SHARED_EXPERTS)


def _v2_groups(keys: Keys) -> tuple[int, int]:
    """Return how many groups DeepSeek V2's experts have, and how many are chosen from."""
    method = keys.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise keys.wrong("topk_method", "greedy or group_limited_greedy")
    _scores(keys, "softmax")
    groups, kept = _count(keys, "n_group"), _count(keys, "topk_group")
    return (1, 1) if method == "greedy" else (groups, kept)


def deepseek_v3(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek V3 and R1: corrected sigmoid scores, groups by their two best, dense first layers."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=256, n_shared_experts=1, moe_intermediate_size=2048, num_experts_per_tok=8, n_group=8,
        topk_group=4, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=3,
    )  # fmt: skip
    return with_latents(
        inputs,
        corrected_layers(inputs),
        interleaved=inputs.keys.flag("rope_interleave", True),
    )


def axk1(inputs: FamilyInputs) -> ModelConfig:
    """A.X K1: DeepSeek V3 with a norm behind the experts of a layer, too."""
    config = deepseek_v3(inputs.with_defaults(n_routed_experts=192, first_k_dense_replace=1))
    layers = (
        one if isinstance(one.feed_forward, Experts) else replace(one, norm_placement="pre") for one in config.layers
    )
    return replace(config, norm_placement="around_mlp", layers=tuple(layers))


def glm4_moe_lite(inputs: FamilyInputs) -> ModelConfig:
    """GLM-4.7-Flash: DeepSeek V3's layers, of which mlp_layer_types may name the dense ones."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, q_lora_rank=768, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256,
        n_routed_experts=64, n_shared_experts=1, moe_intermediate_size=1536, num_experts_per_tok=4, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, first_k_dense_replace=1, rms_norm_eps=1e-5,
    )  # fmt: skip
    return with_latents(inputs, corrected_layers(inputs), interleaved=inputs.keys.flag("rope_interleave", True))


def deepseek_v32(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek V3.2: DeepSeek V3 whose tokens attend to the keys that an indexer chooses."""
    inputs = inputs.with_defaults(index_topk=2048, index_head_dim=128, index_n_heads=64)
    return indexed(inputs, deepseek_v3(inputs), interleaved=False)


def glm_moe_dsa(inputs: FamilyInputs) -> ModelConfig:
    """GLM-5: GLM-4.7-Flash with an indexer, whose choice the layers behind it may share (GLM-5.2)."""
    inputs = inputs.with_defaults(
        q_lora_rank=2048, n_routed_experts=256, moe_intermediate_size=2048, num_experts_per_tok=8,
        routed_scaling_factor=2.5, first_k_dense_replace=3, index_topk=2048, index_head_dim=128, index_n_heads=32,
    )  # fmt: skip
    return indexed(inputs, glm4_moe_lite(inputs), interleaved=True)


_INDEXED_LAYERS = "indexed_attention", "deepseek_sparse_attention"  # transformers' names, now and before


def indexed(inputs: FamilyInputs, config: ModelConfig, *, interleaved: bool) -> ModelConfig:
    """Return the model with an indexer in each layer, or a share in the one of an earlier layer."""
    keys = inputs.keys
    indexer = indexer_of(keys, interleaved=interleaved)
    kinds = keys.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(kind in _INDEXED_LAYERS for kind in kinds)):
        raise keys.wrong("layer_types", f"{_INDEXED_LAYERS[0]} for each layer")
    mixers = [
        replace(cast("LatentAttention", layer.mixer), indexer=replace(indexer, shared=shared))
        for layer, shared in zip(config.layers, _shares(keys, len(config.layers)), strict=True)
    ]
    layers = (replace(layer, mixer=mixer) for layer, mixer in zip(config.layers, mixers, strict=True))
    return replace(config, layers=tuple(layers))


def indexer_of(keys: Keys, *, interleaved: bool) -> Indexer:
    """Return the indexer of the sizes that config.json names."""
    heads, head_dim, chosen = (keys.integer(f"index_{size}") for size in ("n_heads", "head_dim", "topk"))
    rotary = keys.integer("qk_rope_head_dim")
    if not 0 < head_dim <= 4096 or head_dim % 16 or head_dim < rotary:
        raise keys.wrong("index_head_dim", f"a multiple of 16 from qk_rope_head_dim ({rotary}) to 4096")
    for key, size in (("index_n_heads", heads), ("index_topk", chosen)):
        if size < 1:
            raise keys.wrong(key, "at least 1")
    if not keys.optional_integer("q_lora_rank"):
        raise keys.wrong("q_lora_rank", "a rank: queries of the indexer are made of this latent")
    return Indexer(heads, head_dim, chosen, keys.flag("indexer_rope_interleave", interleaved))


def _shares(keys: Keys, layers: int) -> list[bool]:
    """Return for each layer whether it shares the choice of an earlier one."""
    kinds, letters = keys.get("indexer_types"), keys.get("index_topk_pattern")
    if kinds is None and isinstance(letters, str):
        kinds = [{"F": "full", "S": "shared"}.get(letter) for letter in letters]
    every, first = max(keys.integer("index_topk_freq", 1), 1), keys.integer("index_skip_topk_offset", 2)
    if kinds is None:
        kinds = letters or ["shared" if max(i - first + 1, 0) % every else "full" for i in range(layers)]
    known = isinstance(kinds, list) and all(kind in ("full", "shared") for kind in kinds)
    if not known or len(kinds) != layers or kinds[0] != "full":
        raise keys.wrong("indexer_types", f"a list of {layers} times full or shared, the first one full")
    return [kind == "shared" for kind in kinds]


def mistral4(inputs: FamilyInputs) -> ModelConfig:
    """Mistral Small 4: DeepSeek V3's layers with softmax scores, whose queries grow with the position (Llama 4)."""
    inputs = inputs.with_defaults(
        kv_lora_rank=256, q_lora_rank=1024, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=128, n_shared_experts=1, moe_intermediate_size=2048, num_experts_per_tok=4,
        norm_topk_prob=True, first_k_dense_replace=0, max_position_embeddings=1 << 20, rope_parameters=_MISTRAL4_ROPE,
    )  # fmt: skip
    keys = inputs.keys
    settings = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys({}, keys.source)
    plain, rotary = keys.integer("qk_nope_head_dim"), keys.integer("qk_rope_head_dim")
    if settings.number("partial_rotary_factor", rotary / (plain + rotary)) * (plain + rotary) != rotary:
        raise settings.wrong("partial_rotary_factor", "qk_rope_head_dim's share of a head")
    rope = {name: value for name, value in settings.values.items() if name != "partial_rotary_factor"}
    inputs = replace(inputs, keys=keys.with_values(rope_parameters=rope, rope_scaling=None))
    experts = _experts(
        inputs, keys.flag("norm_topk_prob"), sum_epsilon=1e-20, groups=_count(keys, "n_group"),
        groups_kept=_count(keys, "topk_group"),
    )  # fmt: skip
    layers = _layers(inputs, experts, keys.integer("first_k_dense_replace"))
    config = with_latents(inputs, layers, interleaved=keys.flag("rope_interleave", True))
    beta = settings.number("llama_4_scaling_beta", 0.0)
    first = settings.integer("original_max_position_embeddings", 8192) if beta else 0
    mixer = replace(cast("LatentAttention", config.layers[0].mixer), query_growth=beta, query_positions=first)
    return replace(config, layers=tuple(replace(layer, mixer=mixer) for layer in config.layers))


_MISTRAL4_ROPE = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def youtu(inputs: FamilyInputs) -> ModelConfig:
    """Youtu-LLM 2B: DeepSeek V3's latent attention in a dense model."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        tie_word_embeddings=True,
    )  # fmt: skip
    return with_latents(inputs, [_dense(inputs)] * inputs.layers, interleaved=inputs.keys.flag("rope_interleave", True))


def minicpm3(inputs: FamilyInputs) -> ModelConfig:
    """MiniCPM3: latent attention in a dense model, whose embeddings, halves of layers and logits are scaled."""
    inputs = inputs.with_defaults(
        kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64, qk_rope_head_dim=32, rms_norm_eps=1e-5,
        tie_word_embeddings=True, scale_emb=12, scale_depth=1.4, dim_model_base=256,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    hidden = keys.integer("hidden_size")
    depth = keys.optional_number("scale_depth")
    return with_latents(
        inputs,
        [_dense(inputs)] * layers,
        interleaved=False,
        embedding_scale=keys.number("scale_emb"),
        residual_scale=1.0 if depth is None else depth / math.sqrt(layers),
        logits_scale=(keys.optional_integer("dim_model_base") or hidden) / hidden,
    )


def with_latents(
    inputs: FamilyInputs, feed_forwards: Sequence[FeedForward | Experts], *, interleaved: bool | None, **differs: Any
) -> ModelConfig:
    """Return a Llama with latent attention. interleaved: rotated values 2i and 2i + 1 form a pair; None: no angles."""
    keys = inputs.keys
    mixer = latent_attention(keys, None if interleaved is None else 0)
    bias = keys.flag("attention_bias")
    if bias and not mixer.q_rank:
        raise keys.wrong("attention_bias", "false where q_lora_rank is null: q_proj has no bias")
    ropes: tuple[Rope, ...] = ()
    stretched, weight, longest = 1.0, 0.0, 0
    if interleaved is None:
        longest = positions(inputs)
    else:
        angles, longest = flat_rope(inputs, mixer.rotary, partial=False, interleaved=interleaved)
        ropes = (angles,)
        settings = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys({}, keys.source)
        weight = settings.optional_number("mscale_all_dim") or 0.0
        if settings.text("rope_type", settings.text("type", "default")) != "default" and weight:
            stretched = max(settings.positive("factor"), 1.0)
    own: dict[str, Any] = {
        "max_positions": longest, "kv_heads": 1, "head_dim": mixer.rank + mixer.rotary, "qkv_bias": bias,
        "o_bias": bias,
        # attention stays sharp over a context that yarn has stretched
        "attention_scale": (mixer.plain + mixer.rotary) ** -0.5 * (0.1 * weight * math.log(stretched) + 1.0) ** 2,
        "names": SHARED_EXPERTS,
    }  # fmt: skip
    return decoder(inputs, mixers=[mixer] * inputs.layers, ropes=ropes, feed_forwards=feed_forwards, **own | differs)


def latent_attention(keys: Keys, rope: int | None) -> LatentAttention:
    """Return latent attention of the sizes that config.json names; rope: as of the mixer."""
    heads, rank, rotary = (keys.integer(key) for key in ("num_attention_heads", "kv_lora_rank", "qk_rope_head_dim"))
    plain, q_rank = keys.integer("qk_nope_head_dim"), keys.optional_integer("q_lora_rank") or 0
    value = keys.optional_integer("v_head_dim") or keys.integer("hidden_size") // heads
    for key, size, unit in (
        ("kv_lora_rank", rank, 16), ("qk_rope_head_dim", rotary, 2), ("qk_nope_head_dim", plain, 1),
        ("v_head_dim", value, 4),
    ):  # fmt: skip
        if not 0 < size <= 4096 or size % unit:
            raise keys.wrong(key, f"{unit} to 4096" + (f", a multiple of {unit}" if unit > 1 else ""))
    if not 0 <= q_rank <= 1 << 20:
        raise keys.wrong("q_lora_rank", "a rank, or null")
    return LatentAttention(rope, rank, plain, rotary, value, q_rank)


def _layers(inputs: FamilyInputs, experts: Experts, dense: int) -> list[FeedForward | Experts]:
    return [_dense(inputs) if i < dense else experts for i in range(inputs.layers)]


def corrected_layers(inputs: FamilyInputs) -> list[FeedForward | Experts]:
    """Return layers of DeepSeek V3's experts, of which mlp_layer_types may name the dense ones."""
    return listed_layers(inputs, _corrected(inputs), inputs.keys.integer("first_k_dense_replace"))


def _dense(inputs: FamilyInputs) -> FeedForward:
    return FeedForward(inputs.keys.integer("intermediate_size"), activation(inputs.keys, "hidden_act", "silu"))


def _corrected(inputs: FamilyInputs) -> Experts:
    """Return DeepSeek V3's experts."""
    keys = inputs.keys
    if keys.text("topk_method", "noaux_tc") != "noaux_tc":
        raise keys.wrong("topk_method", "noaux_tc")
    _scores(keys, "sigmoid")
    return _experts(
        inputs, keys.flag("norm_topk_prob"), score="sigmoid", correction=True, sum_epsilon=1e-20,
        groups=_count(keys, "n_group"), groups_kept=_count(keys, "topk_group"),
    )  # fmt: skip


def _experts(inputs: FamilyInputs, renormalized: bool = False, **differs: Any) -> Experts:
    keys = inputs.keys
    shared, width = keys.optional_integer("n_shared_experts") or 0, keys.integer("moe_intermediate_size")
    beside = FeedForward(shared * width, activation(keys, "hidden_act", "silu")) if shared > 0 else None
    return routed(
        inputs, "n_routed_experts", "moe_intermediate_size", renormalized,
        scale=keys.positive("routed_scaling_factor", 1.0), shared=beside, **differs,
    )  # fmt: skip


def _count(keys: Keys, key: str) -> int:
    return keys.optional_integer(key) or 1


def _scores(keys: Keys, name: str) -> None:
    if keys.text("scoring_func", name) != name:
        raise keys.wrong("scoring_func", name)
