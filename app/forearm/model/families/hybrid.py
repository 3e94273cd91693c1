"""Families whose layers differ in their mixer: attention in some, a state of fixed size in the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forearm.model.families.config import Attention, Experts, FeedForward, Mixer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, ropes_by_layer_type
from forearm.model.families.experts import MIXTRAL_NAMES, routed, sparse_layers
from forearm.model.families.recurrences import GatedDelta, Lightning, ShortConv
from forearm.model.families.switches import FULL, SLIDING

_CONV, LINEAR = "conv", "linear_attention"
_LFM2_NAMES = {
    "final_norm": "embedding_norm", "input_norm": "operator_norm", "pre_mlp_norm": "ffn_norm",
    "o": "self_attn.out_proj", "q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm",
    "gate": "feed_forward.w1", "up": "feed_forward.w3", "down": "feed_forward.w2", "router": "feed_forward.gate",
    "correction": "feed_forward.expert_bias", "experts.gate": "feed_forward.experts.{expert}.w1",
    "experts.up": "feed_forward.experts.{expert}.w3", "experts.down": "feed_forward.experts.{expert}.w2",
}  # fmt: skip


def lfm2(inputs: FamilyInputs) -> ModelConfig:
    """LFM2 350M, 700M, 1.2B and 2.6B: gated short convolutions; in some layers attention with normalized q and k."""
    inputs = inputs.with_defaults(intermediate_size=12288)
    keys = inputs.keys
    width = keys.integer("block_ff_dim", keys.integer("intermediate_size"))
    multiple, factor = keys.integer("block_multiple_of", 256), keys.number("block_ffn_dim_multiplier", 1.0)
    if multiple < 1:
        raise keys.wrong("block_multiple_of", "at least 1")
    if keys.flag("block_auto_adjust_ff_dim", True):  # it is the width that a feed-forward without gate would have
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    return _lfm2(inputs, [FeedForward(width)] * inputs.layers)


def lfm2_moe(inputs: FamilyInputs) -> ModelConfig:
    """LFM2-8B-A1B, LFM2-24B-A2B: LFM2 with experts, chosen by corrected sigmoid scores, behind the first layers."""
    inputs = inputs.with_defaults(intermediate_size=7168, moe_intermediate_size=1792)
    keys = inputs.keys
    count, active = keys.integer("num_experts", 32), keys.integer("num_experts_per_tok", 4)
    if not 2 <= count <= 4096:
        raise keys.wrong("num_experts", "2 to 4096")
    if not 1 <= active <= count:
        raise keys.wrong("num_experts_per_tok", f"1 to num_experts ({count})")
    experts = Experts(
        keys.integer("moe_intermediate_size"), count, active, score="sigmoid",
        correction=keys.flag("use_expert_bias", True), renormalized=keys.flag("norm_topk_prob", True),
        sum_epsilon=1e-6, scale=keys.positive("routed_scaling_factor", 1.0),
    )  # fmt: skip
    dense = keys.integer("num_dense_layers", 2)
    plain = FeedForward(keys.integer("intermediate_size"))
    return _lfm2(inputs, [plain if i < dense else experts for i in range(inputs.layers)])


def _lfm2(inputs: FamilyInputs, feed_forwards: Sequence[FeedForward | Experts]) -> ModelConfig:
    """Return the model: layer_types or full_attn_idxs say which layers attend; without both, all do."""
    inputs = inputs.with_defaults(
        hidden_size=2560, num_attention_heads=32, num_key_value_heads=8, rope_theta=1e6, tie_word_embeddings=True,
        max_position_embeddings=128_000, vocab_size=65536,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    taps = keys.integer("conv_L_cache", 3)
    if not 2 <= taps <= 64:
        raise keys.wrong("conv_L_cache", "2 to 64")
    full = keys.get("full_attn_idxs")
    if full is not None and not (isinstance(full, list) and all(type(i) is int for i in full)):
        raise keys.wrong("full_attn_idxs", "a list of numbers of layers")
    kinds = kinds_of(inputs, [FULL if full is None or i in full else _CONV for i in range(layers)], _CONV)
    attention, conv = Attention(rope=0), ShortConv(taps, keys.flag("conv_bias"))
    mixers: list[Mixer] = [attention if kind == FULL else conv for kind in kinds]
    return decoder(
        inputs,
        mixers=mixers,
        feed_forwards=feed_forwards,
        qk_norm="head",
        norm_eps=keys.number("norm_eps", 1e-5),
        tied_head=keys.flag("tie_embedding", keys.flag("tie_word_embeddings")),
        names=_LFM2_NAMES,
    )


def lfm3(inputs: FamilyInputs) -> ModelConfig:
    """LFM3: LFM2 with norms around both halves of a layer, windows in some of them, and a gate of each head."""
    inputs = inputs.with_defaults(
        intermediate_size=7680, head_dim=128, num_key_value_heads=4, tie_word_embeddings=True, sliding_window=256,
        rope_parameters=_LFM3_ROPE,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    taps, bias, window = keys.integer("conv_L_cache", 7), keys.flag("attention_bias"), keys.integer("sliding_window")
    if not 2 <= taps <= 64:
        raise keys.wrong("conv_L_cache", "2 to 64")
    kinds = keys.get("layer_types") or [{2: FULL, 0: SLIDING}.get(i % 4 if i else 1, _CONV) for i in range(layers)]
    of_kind: dict[str, Mixer] = {
        FULL: Attention(rope=0), SLIDING: Attention(rope=1, window=window),
        _CONV: ShortConv(taps, keys.flag("conv_bias")),
    }  # fmt: skip
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in of_kind for kind in kinds):
        raise keys.wrong("layer_types", f"a list of {layers} times {FULL}, {SLIDING} or {_CONV}")
    names = {"post_attention_norm": "post_operator_norm", "post_mlp_norm": "post_ffn_norm", "o": "self_attn.o_proj"}
    names |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
    gated = keys.flag("use_attention_gate", True)
    if bias and gated:
        raise keys.wrong("attention_bias", "false where use_attention_gate is true: gates have no bias")
    return decoder(
        inputs,
        mixers=[of_kind[kind] for kind in kinds],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 1e6), sliding=("rope_theta", 1e4)),
        qk_norm="head",
        norm_placement="sandwich" if keys.flag("use_sandwich_norm", True) else "pre",
        attention_gate="sigmoid" if gated else "none",
        head_gates=gated,
        qkv_bias=bias,
        o_bias=bias,
        norm_eps=keys.number("norm_eps", 1e-5),
        names=_LFM2_NAMES | names | {"q_gate": "self_attn.gate_proj"},
    )


_LFM3_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


def qwen3_next(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3-Next-80B-A3B: gated delta rule, in every fourth layer attention with gates; experts, a shared one."""
    inputs = inputs.with_defaults(num_experts=512, num_experts_per_tok=10, intermediate_size=5632)
    keys = inputs.keys
    key_heads, value_heads = keys.integer("linear_num_key_heads", 16), keys.integer("linear_num_value_heads", 32)
    key, value = keys.integer("linear_key_head_dim", 128), keys.integer("linear_value_head_dim", 128)
    group = value_heads // max(key_heads, 1)
    # The rows of the delta rule's matrices are stored by key head: queries, keys, values and gates of the first one ...
    sizes = {"q": key, "k": key, "v": group * value, "z": group * value}
    names = _by_head("in_proj_qkvz", sizes) | _by_head("in_proj_ba", {"b": group, "a": group})
    return _qwen(inputs, _qwen_experts(inputs), names)


def qwen3_5(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3.5, 3.6 and 3.8, for text alone: gated delta rule, in every fourth layer attention with gates."""
    inputs = inputs.with_defaults(
        hidden_size=4096, num_hidden_layers=32, intermediate_size=12288, num_key_value_heads=4
    )
    width = inputs.keys.integer("intermediate_size")
    layers = [FeedForward(width, activation(inputs.keys, "hidden_act", "silu"))] * inputs.layers
    return _qwen(inputs.with_defaults(vocab_size=248320), layers, {})


def qwen3_5_moe(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3.5 and 3.6 35B-A3B, 122B-A10B, 397B-A17B, for text alone: Qwen3.5 with experts and a shared one."""
    inputs = inputs.with_defaults(
        num_experts=256, num_experts_per_tok=8, num_hidden_layers=40, vocab_size=248320, intermediate_size=1
    )  # fmt: skip
    return _qwen(inputs, _qwen_experts(inputs), {})


def _qwen_experts(inputs: FamilyInputs) -> list[FeedForward | Experts]:
    inputs = inputs.with_defaults(
        moe_intermediate_size=512, shared_expert_intermediate_size=512, norm_topk_prob=True, num_hidden_layers=48
    )  # fmt: skip
    shared = FeedForward(inputs.keys.integer("shared_expert_intermediate_size"))
    return sparse_layers(inputs, shared=shared, shared_gate=True)


def _by_head(module: str, sizes: dict[str, int]) -> dict[str, str]:
    """Return the names of a delta rule's parts whose rows alternate in a tensor, head by head."""
    names, first, step = {}, 0, sum(sizes.values())
    for name, rows in sizes.items():
        names[f"delta_{name}"] = f"linear_attn.{module}[{first}:{rows}:{step}]"
        first += rows
    return names


def _qwen(inputs: FamilyInputs, feed_forwards: Sequence[FeedForward | Experts], names: dict[str, str]) -> ModelConfig:
    inputs = inputs.with_defaults(
        hidden_size=2048, num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
        vocab_size=151936, max_position_embeddings=32768, partial_rotary_factor=0.25,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    delta = gated_delta(inputs)
    every = keys.integer("full_attention_interval", 4)
    if every < 1:
        raise keys.wrong("full_attention_interval", "at least 1")
    kinds = kinds_of(inputs, [FULL if (i + 1) % every == 0 else LINEAR for i in range(layers)], LINEAR)
    head = keys.integer("head_dim")
    differs: dict[str, Any] = {
        "qk_norm": "head", "norm_plus_one": True, "attention_gate": "sigmoid", "partial": True,
        "names": names | {
            "q": f"self_attn.q_proj[0:{head}:{2 * head}]",
            "q_gate": f"self_attn.q_proj[{head}:{head}:{2 * head}]",
        },
    }  # fmt: skip
    mixers: list[Mixer] = [Attention(rope=0) if kind == FULL else delta for kind in kinds]
    return decoder(inputs, mixers=mixers, feed_forwards=feed_forwards, **differs)


def gated_delta(inputs: FamilyInputs) -> GatedDelta:
    """Return the gated delta rule of Qwen3-Next's keys."""
    keys = inputs.keys
    delta = GatedDelta(
        keys.integer("linear_num_key_heads", 16), keys.integer("linear_num_value_heads", 32),
        keys.integer("linear_key_head_dim", 128), keys.integer("linear_value_head_dim", 128),
        keys.integer("linear_conv_kernel_dim", 4),
    )  # fmt: skip
    for key, value, least, most in (
        ("linear_num_key_heads", delta.key_heads, 1, 4096), ("linear_num_value_heads", delta.value_heads, 1, 4096),
        ("linear_key_head_dim", delta.key_dim, 1, 4096), ("linear_value_head_dim", delta.value_dim, 1, 4096),
        ("linear_conv_kernel_dim", delta.taps, 2, 64),
    ):  # fmt: skip
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    if delta.value_heads % delta.key_heads:
        raise keys.wrong("linear_num_value_heads", f"a multiple of linear_num_key_heads ({delta.key_heads})")
    return delta


def minimax(inputs: FamilyInputs) -> ModelConfig:
    """MiniMax-Text-01 and M1: lightning attention, some layers of softmax attention; norms replace the residual."""
    inputs = inputs.with_defaults(
        num_local_experts=8, num_experts_per_tok=2, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6,
        max_position_embeddings=131072,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    heads = keys.integer("num_attention_heads")
    head_dim = keys.integer("head_dim", keys.integer("hidden_size") // max(heads, 1))
    alphas, betas = (
        [keys.positive(f"{part}_{factor}_factor", 1.0) for part in ("full_attn", "linear_attn", "mlp")]
        for factor in ("alpha", "beta")
    )
    if len(set(alphas)) > 1:
        raise keys.wrong("mlp_alpha_factor", "that of both kinds of attention: no others are computed")
    if not 1 <= heads <= 4096 or not 1 <= head_dim <= 4096:
        raise keys.wrong("head_dim", "1 to 4096, of 1 to 4096 heads")
    keys.get("block_size")  # marks it as read: it changes no result
    alpha = alphas[0]  # of what is added up: norms follow it, so the other part is divided by it, and so is epsilon
    rotated = keys.optional_integer("rotary_dim")
    if rotated is not None:
        inputs = inputs.with_defaults(partial_rotary_factor=rotated / head_dim)
    kinds = kinds_of(inputs, [LINEAR if i % 2 else FULL for i in range(layers)], LINEAR)
    full = Attention(0, window=keys.optional_integer("sliding_window") or 0, out_scale=betas[0])
    late = [1 - i / (layers - 1 + 1e-5) + 1e-5 for i in range(layers)]
    slopes = [tuple(2.0 ** (-8 * (h + 1) / heads) * factor for h in range(heads)) for factor in late]
    linear = [Lightning(heads, head_dim, own, out_scale=betas[1]) for own in slopes]
    experts = routed(inputs, "num_local_experts", "intermediate_size", True, scale=betas[2])
    qkv = {n: f"self_attn.qkv_proj[{i * head_dim}:{head_dim}:{3 * head_dim}]" for i, n in enumerate("qkv")}
    return decoder(
        inputs,
        mixers=[full if kind == FULL else own for kind, own in zip(kinds, linear, strict=True)],
        feed_forwards=[experts] * layers,
        partial=True,
        norm_residual="all",
        norm_eps=keys.number("rms_norm_eps") / alpha**2,
        embedding_scale=1 / alpha,
        residual_scale=1 / alpha,
        names=MIXTRAL_NAMES | {f"lightning_{n}": stored for n, stored in qkv.items()},
    )


def kinds_of(inputs: FamilyInputs, default: list[str], other: str) -> list[str]:
    """Return full_attention or `other` for each layer: the file's layer_types, or `default`."""
    kinds = inputs.keys.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != len(default) or not all(kind in (FULL, other) for kind in kinds):
        raise inputs.keys.wrong("layer_types", f"a list of {len(default)} times {FULL} or {other}")
    return kinds
