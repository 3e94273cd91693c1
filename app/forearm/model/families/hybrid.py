"""Families whose layers differ in their mixer: attention in some, a state of fixed size in the others."""

from __future__ import annotations

from collections.abc import Sequence

from forearm.model.families.config import Attention, Experts, FeedForward, Mixer, ModelConfig, ShortConv
from forearm.model.families.decoder import FamilyInputs, decoder
from forearm.model.families.switches import FULL

_CONV = "conv"
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
    kinds, full = keys.get("layer_types"), keys.get("full_attn_idxs")
    if full is not None and not (isinstance(full, list) and all(type(i) is int for i in full)):
        raise keys.wrong("full_attn_idxs", "a list of numbers of layers")
    if kinds is None:
        kinds = [FULL if full is None or i in full else _CONV for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, _CONV) for kind in kinds):
        raise keys.wrong("layer_types", f"a list of {layers} times {FULL} or {_CONV}")
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
