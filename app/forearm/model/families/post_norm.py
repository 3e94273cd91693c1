"""Families whose halves of a layer join the residual in other ways than Llama's: norms behind them, several streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from forearm.model.families.config import Attention, FeedForward, ModelConfig, Rope
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    lengths_of,
    ropes_by_layer_type,
    windows_of,
)
from forearm.model.families.experts import SHARED_EXPERTS, routed
from forearm.model.families.hybrid import LINEAR, gated_delta, kinds_of
from forearm.model.families.keys import Keys
from forearm.model.families.llama_like import FUSED_GATE_UP, granite, with_glm_defaults
from forearm.model.families.recurrences import CompressedAttention, HyperConnections
from forearm.model.families.switches import FULL, SLIDING

_POST_FEED_FORWARD = {"post_mlp_norm": "post_feedforward_layernorm"}


def olmo2(inputs: FamilyInputs) -> ModelConfig:
    """OLMo 2: norms only after each half of a layer; q and k are normalized over all heads together."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5)
    bias = inputs.keys.flag("attention_bias")
    return decoder(
        inputs,
        norm_placement="post",
        qk_norm="full",
        qkv_bias=bias,
        o_bias=bias,
        names=_POST_FEED_FORWARD,
    )


def olmo3(inputs: FamilyInputs) -> ModelConfig:
    """OLMo 3: OLMo 2 with a window on three layers of four; only the other layers' angles are stretched."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, sliding_window=4096)
    windows = windows_of(inputs, [(i + 1) % 4 != 0 for i in range(inputs.layers)])
    bias = inputs.keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=[Attention(rope=1 if w else 0, window=w) for w in windows],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 5e5), sliding=("rope_theta", 5e5)),
        norm_placement="post",
        qk_norm="full",
        qkv_bias=bias,
        o_bias=bias,
        names=_POST_FEED_FORWARD,
    )


def flex_olmo(inputs: FamilyInputs) -> ModelConfig:
    """FlexOlmo: OLMo 2 with OLMoE's experts in every layer."""
    inputs = inputs.with_defaults(num_experts=7, num_experts_per_tok=5, rope_theta=5e5, rms_norm_eps=1e-6)
    experts = routed(inputs, "num_experts", "intermediate_size", inputs.keys.flag("norm_topk_prob"))
    dense = olmo2(inputs)
    return replace(dense, layers=tuple(replace(layer, feed_forward=experts) for layer in dense.layers))


def exaone4(inputs: FamilyInputs) -> ModelConfig:
    """EXAONE 4: norms only after each half of a layer; beside layers with a window, the others have no positions."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, sliding_window=4096)
    return decoder(
        inputs, mixers=exaone4_mixers(inputs), norm_placement="post", qk_norm="head", names=_POST_FEED_FORWARD
    )


def exaone4_mixers(inputs: FamilyInputs) -> list[Attention]:
    """Return the attention of each layer: with a window, or without positions if others have a window."""
    keys = inputs.keys
    pattern = keys.get("sliding_window_pattern")  # a number of layers, or one letter for each: L has a window
    if isinstance(pattern, str):
        local = [pattern[i % len(pattern)] == "L" and i + 1 < inputs.layers for i in range(inputs.layers)]
    else:
        every = keys.integer("sliding_window_pattern", 4)
        local = [every > 0 and (i + 1) % every != 0 for i in range(inputs.layers)]
    windows = windows_of(inputs, local)
    hybrid = keys.optional_integer("sliding_window") is not None
    return [Attention(rope=0 if w or not hybrid else None, window=w) for w in windows]


def glm4(inputs: FamilyInputs) -> ModelConfig:
    """GLM-4-0414, Z1, Rumination: GLM with norms around both halves of a layer."""
    inputs = with_glm_defaults(inputs)
    bias = inputs.keys.flag("attention_bias", True)
    return decoder(
        inputs,
        partial=True,
        interleaved=True,
        norm_placement="sandwich",
        qkv_bias=bias,
        names=FUSED_GATE_UP | {"post_attention_norm": "post_self_attn_layernorm"},
    )


def glm4v(inputs: FamilyInputs) -> ModelConfig:
    """GLM-4.1V and GLM-4.6V-Flash for text alone: GLM-4-0414, as the three positions of a text token are equal."""
    keys = inputs.keys
    heads = keys.integer("num_attention_heads")
    return glm4(inputs.with_defaults(head_dim=keys.integer("hidden_size") // heads))


def glm_ocr(inputs: FamilyInputs) -> ModelConfig:
    """GLM-OCR for text alone: GLM-4.1V without biases."""
    return replace(glm4v(inputs), qkv_bias=False)


def hyperclovax(inputs: FamilyInputs) -> ModelConfig:
    """HyperCLOVA X SEED Think: Granite with norms around both halves of a layer, whose logits are multiplied."""
    inputs = inputs.with_defaults(
        head_dim=inputs.keys.integer("hidden_size") // inputs.keys.integer("num_attention_heads")
    )
    keys = inputs.keys
    if keys.get("attention_multiplier") is None:
        inputs = inputs.with_defaults(attention_multiplier=keys.integer("head_dim") ** -0.5)
    config = granite(inputs)
    config = replace(config, logits_scale=keys.positive("logits_scaling", 1.0))
    if not keys.flag("use_post_norm", True):
        return config
    names = {"post_attention_norm": "post_norm1", "post_mlp_norm": "post_norm2"}
    return replace(config, norm_placement="sandwich", names=config.names | names)


def nanochat(inputs: FamilyInputs) -> ModelConfig:
    """nanochat: norms without weights, also behind the embedding and of rotated q and k; relu squared, no gate."""
    inputs = inputs.with_defaults(hidden_act="relu2")
    bias = inputs.keys.flag("attention_bias")
    config = decoder(
        inputs,
        mixers=[Attention(rope=0, unit_qk=True)] * inputs.layers,
        gated=False,
        norm_weight=False,
        embed_norm=True,
        qkv_bias=bias,
        o_bias=bias,
        logits_softcap=inputs.keys.optional_number("final_logit_softcapping", 15.0) or 0.0,
        names={"up": "mlp.fc1", "down": "mlp.fc2"},
    )
    (angles,) = config.ropes
    return replace(config, ropes=(replace(angles, inv_freq=-angles.inv_freq),))  # they turn the other way


def bitnet(inputs: FamilyInputs) -> ModelConfig:
    """BitNet b1.58 2B4T: Llama with relu squared and norms before o and down (Wang et al. 2025, arXiv:2504.12285)."""
    inputs = inputs.with_defaults(
        hidden_act="relu2", num_key_value_heads=5, rms_norm_eps=1e-5, rope_theta=5e5, max_position_embeddings=2048
    )
    bias = inputs.keys.flag("attention_bias")
    return decoder(inputs, sub_norm=True, qkv_bias=bias, o_bias=bias)


def olmo_hybrid(inputs: FamilyInputs) -> ModelConfig:
    """OLMo Hybrid 7B: gated delta rule, whose layers have norms before their halves; every fourth layer is OLMo 2's."""
    keys = inputs.keys
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    if activation(keys, "hidden_act", "silu") != "silu":  # it is the convolutions' activation, too
        raise keys.wrong("hidden_act", "silu: convolutions have no other")
    key_heads = keys.optional_integer("linear_num_key_heads") or heads
    key = keys.optional_integer("linear_key_head_dim") or int(0.75 * hidden / max(key_heads, 1))
    inputs = inputs.with_defaults(linear_conv_kernel_dim=4)
    inputs = replace(inputs, keys=inputs.keys.with_values(
        linear_num_key_heads=key_heads, linear_key_head_dim=key,
        linear_num_value_heads=keys.optional_integer("linear_num_value_heads") or heads,
        linear_value_head_dim=keys.optional_integer("linear_value_head_dim") or 2 * key,
    ))  # fmt: skip
    delta = replace(
        gated_delta(inputs), beta_scale=2.0 if keys.flag("linear_allow_neg_eigval", True) else 1.0, gate_norm_eps=1e-5
    )
    kinds = kinds_of(inputs, [FULL if i % 4 == 3 else LINEAR for i in range(inputs.layers)], LINEAR)
    rotates = (keys.object("rope_parameters") or keys).get("rope_theta") is not None
    attention, bias = Attention(rope=0 if rotates else None), keys.flag("attention_bias")
    config = decoder(
        inputs,
        mixers=[attention if kind == FULL else delta for kind in kinds],
        ropes=None if rotates else (),
        norm_placement="post",
        qk_norm="full",
        qkv_bias=bias,
        o_bias=bias,
        names=_OLMO_HYBRID_NAMES,
    )
    layers = (one if one.mixer == attention else replace(one, norm_placement="pre") for one in config.layers)
    return replace(config, layers=tuple(layers))


_OLMO_HYBRID_NAMES = {
    "input_norm": "attention_layer_norm", "pre_mlp_norm": "feedforward_layer_norm",
    "post_mlp_norm": "post_feedforward_layernorm", "recurrence.gate_norm": "linear_attn.o_norm.weight",
    "delta_z": "linear_attn.g_proj", "delta_out": "linear_attn.o_proj",
    **{f"delta_{part}": f"linear_attn.{part}_proj" for part in "qkvab"},
    **{f"recurrence.conv_{part}": f"linear_attn.{part}_conv1d.weight" for part in "qkv"},
}  # fmt: skip


def deepseek_v4(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek V4 Flash and Pro: compressed attention, several residual streams, experts that first layers look up."""
    inputs = inputs.with_defaults(
        num_key_value_heads=1, head_dim=512, q_lora_rank=1024, num_experts_per_tok=6, n_routed_experts=256,
        moe_intermediate_size=2048, n_shared_experts=1, routed_scaling_factor=1.5, swiglu_limit=10.0,
        sliding_window=128, o_groups=8, o_lora_rank=1024, index_n_heads=64, index_head_dim=128, index_topk=512,
        hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, max_position_embeddings=1 << 20,
    )  # fmt: skip
    keys = inputs.keys
    for key, only in _V4_ONLY.items():
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, f"{only}: no other is computed")
    keys.get("expert_dtype")  # as the tensors' own is
    streams, rounds, eps = keys.integer("hc_mult"), keys.integer("hc_sinkhorn_iters"), keys.number("hc_eps")
    for key, value, least, most in (
        ("hc_mult", streams, 1, 8), ("hc_sinkhorn_iters", rounds, 1, 1000), ("hc_eps", eps, 0, 1)
    ):  # fmt: skip
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    width, limit = keys.integer("moe_intermediate_size"), keys.positive("swiglu_limit")
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", True, score="sqrt_softplus", correction=True,
        sum_epsilon=1e-20, scale=keys.positive("routed_scaling_factor"), limit=limit,
        shared=FeedForward(width, activation(keys, "hidden_act", "silu"), limit=limit),
    )  # fmt: skip
    first, kinds = keys.integer("num_hash_layers", 3), keys.get("mlp_layer_types")
    kinds = ["hash_moe" if i < first else "moe" for i in range(inputs.layers)] if kinds is None else kinds
    by_kind = {"hash_moe": replace(experts, by_token=True, correction=False), "moe": experts}
    return decoder(
        inputs.with_defaults(intermediate_size=width),
        mixers=_v4_mixers(inputs),
        ropes=_v4_ropes(inputs),
        feed_forwards=_of_kinds(inputs, "mlp_layer_types", kinds, by_kind),
        hyper_connections=HyperConnections(streams, rounds, eps),
        names=SHARED_EXPERTS | {"q_norm": "self_attn.q_a_norm", "k_norm": "self_attn.kv_norm"},
    )


_V4_ONLY = {
    "num_key_value_heads": 1, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True,
    "topk_method": "noaux_tc",
}  # fmt: skip
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATIOS = {0: SLIDING, 4: _SPARSE, 128: _HEAVY}  # by which first files name the kinds of layers
_Half = TypeVar("_Half")


def _of_kinds(inputs: FamilyInputs, key: str, kinds: object, by_kind: Mapping[Any, _Half]) -> list[_Half]:
    """Return the half of each layer that `kinds`, the value of `key` or its default, names; more are left out."""
    layers = inputs.layers
    if not isinstance(kinds, list) or len(kinds) < layers or not all(kind in by_kind for kind in kinds):
        raise inputs.keys.wrong(key, f"a list of {layers} times {', '.join(map(str, by_kind))}")
    return [by_kind[kind] for kind in kinds[:layers]]


def _v4_mixers(inputs: FamilyInputs) -> list[CompressedAttention]:
    keys = inputs.keys
    heads, dim, rotary = keys.integer("num_attention_heads"), keys.integer("head_dim"), _v4_rotary(keys)
    groups, rank, q_rank = keys.integer("o_groups"), keys.integer("o_lora_rank"), keys.integer("q_lora_rank")
    if not 16 <= dim <= 4096 or dim % 16:
        raise keys.wrong("head_dim", "16 to 4096, a multiple of 16")
    if not 1 <= groups <= heads or heads % groups:
        raise keys.wrong("o_groups", f"a divisor of num_attention_heads ({heads})")
    if not 4 <= rank <= 1 << 20 or rank % 4:
        raise keys.wrong("o_lora_rank", f"4 to {1 << 20}, a multiple of 4")
    sizes = {key: keys.integer(key) for key in ("index_n_heads", "index_head_dim", "index_topk", "sliding_window")}
    for key, size, most in (("q_lora_rank", q_rank, 1 << 20), *((key, one, 1 << 30) for key, one in sizes.items())):
        if not 1 <= size <= most:
            raise keys.wrong(key, f"1 to {most}")
    index_heads, index_dim, chosen, window = sizes.values()
    if index_dim > 4096 or index_dim % 16 or index_dim < rotary:
        raise keys.wrong("index_head_dim", f"a multiple of 16 from {rotary}, the rotated numbers, to 4096")
    if index_heads > 4096:
        raise keys.wrong("index_n_heads", "1 to 4096")
    given = keys.object("compress_rates") or Keys({}, keys.source)
    sparse = keys.integer("compress_rate_csa", given.integer(_SPARSE, 4))
    heavy = keys.integer("compress_rate_hca", given.integer(_HEAVY, 128))
    for kind, ratio in ((_SPARSE, sparse), (_HEAVY, heavy)):
        if not 1 <= ratio <= 1 << 20:
            raise given.wrong(kind, f"1 to {1 << 20}")
    plain = CompressedAttention(0, 1, q_rank, window, groups, rank)
    entries = replace(plain, rope=2, back=3, ratio=heavy)
    scored = replace(entries, ratio=sparse, overlapping=True, index_heads=index_heads, index_dim=index_dim)
    by_kind = {SLIDING: plain, _SPARSE: replace(scored, chosen=chosen), _HEAVY: entries}
    kinds, ratios = keys.get("layer_types"), keys.get("compress_ratios")
    if kinds is None and ratios is not None:
        return _of_kinds(inputs, "compress_ratios", ratios, {ratio: by_kind[kind] for ratio, kind in _RATIOS.items()})
    kinds = [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(inputs.layers)] if kinds is None else kinds
    return _of_kinds(inputs, "layer_types", kinds, by_kind)


def _v4_rotary(keys: Keys, settings: Keys | None = None) -> int:
    """Return how many of a head's numbers are rotated."""
    dim, own = keys.integer("head_dim"), keys.integer("qk_rope_head_dim", keys.integer("head_dim") // 8)
    fraction = keys.number("partial_rotary_factor", own / dim)
    where = settings if settings and "partial_rotary_factor" in settings else keys
    rotary = int(dim * where.number("partial_rotary_factor", fraction))
    if not 2 <= rotary <= dim or rotary % 2:
        raise where.wrong("partial_rotary_factor", f"a share of head_dim ({dim}) that is even, and at most the whole")
    return rotary


def _v4_ropes(inputs: FamilyInputs) -> tuple[Rope, ...]:
    """Return the angles of layers with a window alone, and of those with entries, each with those that turn back."""
    from forearm.model.families.rope import rope

    keys = inputs.keys
    flat = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    main, entries = flat.object("main"), flat.object("compress")
    base, own = keys.number("rope_theta", 1e4), keys.number("compress_rope_theta", 160_000.0)
    if main is None or entries is None:  # yarn is of layers with entries alone, and leaves the size of angles' cosines
        flat = Keys({k: v for k, v in flat.values.items() if k not in ("main", "compress")}, flat.source)
        main, entries = Keys({"rope_theta": base}, keys.source), flat.with_values(rope_theta=own)
        if entries.text("rope_type", entries.text("type", "default")) == "yarn":
            entries = entries.with_defaults(attention_factor=1.0)
    ropes: list[Rope] = []
    for settings in (main, entries):
        theta, rotary = settings.number("rope_theta", 1e4), _v4_rotary(keys, settings)
        turned = rope(settings, theta, rotary, lengths_of(inputs, settings), interleaved=True)
        ropes += [turned, replace(turned, inv_freq=-turned.inv_freq)]
    return tuple(ropes)
