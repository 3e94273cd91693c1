"""Inkling: attention with biases that each token makes, and four short convolutions in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, decoder, listed_layers
from forearm.model.families.experts import routed
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import RelativeBias
from forearm.model.families.recurrent.mamba2 import bounded
from forearm.model.families.switches import layer_types

_FULL, _SLIDING = "hybrid", "hybrid_sliding"
_FARTHEST = 1 << 20  # of a bias
# Other names of keys, which published files have, and of transformers' configuration class.
_KEYS = {
    "embedding_multiplier": "logits_mup_width_multiplier", "sliding_window": "sliding_window_size",
    "num_local_experts": "n_routed_experts", "sconv_kernel_size": "conv_kernel_size",
    "model_max_length": "max_position_embeddings",
}  # fmt: skip
# Keys of layers that predict further tokens, which are not computed, and what transformers does not read.
_UNUSED = (
    "chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids", "number_of_conv_states",
    "rms_norm_eps_moe_gate",
)  # fmt: skip
_NAMES = {
    "embed_norm": "embed_tokens.embed_norm", "relative_bias": "self_attn.rel_logits_proj.proj",
    "conv_k": "self_attn.k_sconv.conv1d", "conv_v": "self_attn.v_sconv.conv1d", "conv_mixer": "attn_sconv.conv1d",
    "conv_feed_forward": "mlp_sconv.conv1d", "dense_factor": "mlp.global_scale",
    "experts_factor": "mlp.gate.global_scale", "correction": "mlp.gate.e_score_correction_bias",
    "experts.gate": "mlp.experts.gate_up_proj[0]", "experts.up": "mlp.experts.gate_up_proj[1]",
    "experts.down": "mlp.experts.down_proj",
    **{f"always.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
# Names in published files, where the rows of gates and ups alternate.
PUBLISHED = {
    "embed": "embed", "embed_norm": "embed_norm", "head": "model.llm.unembed", "input_norm": "attn_norm",
    "pre_mlp_norm": "mlp_norm", "q": "attn.wq_du", "k": "attn.wk_dv", "v": "attn.wv_dv", "r": "attn.wr_du",
    "o": "attn.wo_ud", "q_norm": "attn.q_norm", "k_norm": "attn.k_norm", "relative_bias": "attn.rel_logits_proj.proj",
    "conv_k": "attn.k_sconv", "conv_v": "attn.v_sconv", "conv_mixer": "attn_sconv", "conv_feed_forward": "mlp_sconv",
    "gate": "mlp.w13_dn[0::2]", "up": "mlp.w13_dn[1::2]", "down": "mlp.w2_md", "correction": "mlp.gate.bias",
    "experts.gate": "mlp.experts.w13_weight[0::2]", "experts.up": "mlp.experts.w13_weight[1::2]",
    "experts.down": "mlp.experts.w2_weight", "always.gate": "mlp.shared_experts.shared_w13_weight[0::2]",
    "always.up": "mlp.shared_experts.shared_w13_weight[1::2]", "always.down": "mlp.shared_experts.shared_w2_weight",
}  # fmt: skip


def inkling(inputs: FamilyInputs) -> ModelConfig:
    """Inkling, for text alone: no rotary angles, windows in most layers, experts beside those that all tokens take.

    Both kinds of layers have heads of their own. Queries of layers without a window grow with the logarithm of their
    position. Logits are divided by the width multiplier of muP, and those beyond unpadded_vocab_size do not exist.
    """
    keys = inputs.keys
    given = {new: keys.get(old) for old, new in _KEYS.items() if keys.get(old) is not None and new not in keys}
    if keys.get("dense_intermediate_size") is not None:  # published: intermediate_size is the experts' width then
        given["moe_intermediate_size"] = keys.get("intermediate_size")
        given["intermediate_size"] = bounded(keys, "dense_intermediate_size", 1, 1 << 20, 1)
    inputs = replace(inputs, keys=keys.with_values(**given)).with_defaults(
        vocab_size=201_024, hidden_size=6144, intermediate_size=24_576, num_hidden_layers=66, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128, swa_num_attention_heads=64, swa_num_key_value_heads=16, swa_head_dim=128,
        sliding_window_size=512, rel_extent=1024, max_position_embeddings=131_072, moe_intermediate_size=3072,
        n_routed_experts=256, num_experts_per_tok=6,
    )  # fmt: skip
    keys = inputs.keys
    for key in _UNUSED:
        keys.get(key)  # marks it as read
    keys.only(tie_word_embeddings=False)
    kinds = _kinds(inputs)
    slides, sees_all = _attention(keys, window=True), _attention(keys, window=False)
    vocab = keys.integer("vocab_size")
    tokens = bounded(keys, "unpadded_vocab_size", 1, 1 << 26, vocab)
    return decoder(
        inputs,
        mixers=[slides if kind == _SLIDING else sees_all for kind in kinds],
        ropes=(),
        feed_forwards=_halves(inputs),
        embed_norm=True,
        qk_norm="head",
        attention_scale=sees_all.scale,
        conv_taps=bounded(keys, "conv_kernel_size", 2, 64, 4),
        logits_scale=1 / keys.positive("logits_mup_width_multiplier", 24.0),
        vocab_size=min(tokens, vocab),
        stored_vocab=vocab if tokens < vocab else 0,
        names=_NAMES,
    )


def _kinds(inputs: FamilyInputs) -> Sequence[str]:
    """Return hybrid_sliding for each layer with a window, by default five of six, and hybrid for the others."""
    keys, layers = inputs.keys, inputs.layers
    local = keys.get("local_layer_ids")
    if local is not None and not (isinstance(local, list) and all(type(one) is int for one in local)):
        raise keys.wrong("local_layer_ids", "a list of numbers of layers")
    slides = [i in local if local is not None else bool((i + 1) % 6) for i in range(layers)]
    return layer_types(keys, [_SLIDING if one else _FULL for one in slides], (_FULL, _SLIDING))


def _attention(keys: Keys, window: bool) -> Attention:
    """Return the attention of a kind of layers. Queries and keys are normalized, so scores are divided by their size.

    Raises: ConfigError if a size is out of range, or its heads are not a multiple of its key heads.
    """
    swa = "swa_" if window else ""
    heads, few, dim = (
        bounded(keys, f"{swa}{key}", 1, 4096, 1) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if heads % few:
        raise keys.wrong(f"{swa}num_key_value_heads", f"a divisor of {swa}num_attention_heads ({heads})")
    numbers = bounded(keys, "d_rel", 4, 4096, 16)
    if numbers % 4:
        raise keys.wrong("d_rel", "a multiple of 4")
    reach = bounded(keys, "sliding_window_size" if window else "rel_extent", 1, _FARTHEST, 1)
    bias = RelativeBias(numbers, reach)
    found = Attention(None, kv_heads=few, head_dim=dim, heads=heads, scale=1 / dim, bias=bias)
    if window:
        return replace(found, window=reach)
    growth = keys.number("log_scaling_alpha", 0.1)
    if keys.get("log_scaling_n_floor") is None or growth == 0:
        return found
    floor = bounded(keys, "log_scaling_n_floor", 1, (1 << 30) - 1, 1)
    return replace(found, query_growth=growth, query_positions=floor, query_first=1, query_smooth=True)


def _halves(inputs: FamilyInputs) -> list[FeedForward | Experts]:
    """Return the feed-forwards. Shared experts have a weight of the router's scores, as the chosen ones have."""
    keys, layers = inputs.keys, inputs.layers
    keys.only(shared_expert_sink=True)
    beside = bounded(keys, "n_shared_experts", 1, 64, 2)
    chosen = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", renormalized=True, score="sigmoid", correction=True,
        scale=keys.positive("route_scale", 8.0), always=beside,
    )  # fmt: skip
    if chosen.count + beside > 4096:
        raise keys.wrong("n_routed_experts", "at most 4096 with those of n_shared_experts")
    experts = replace(chosen, count=chosen.count + beside, active=chosen.active + beside)
    return listed_layers(inputs, experts, bounded(keys, "dense_mlp_idx", 0, layers, 0))
