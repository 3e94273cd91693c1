"""ZAYA1: attention whose queries and keys are convolved, experts that an MLP chooses, residuals that are scaled."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families.config import Attention, Experts, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs, activation, decoder, lengths_of
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import ConvolvedHeads, RouterMlp
from forearm.model.families.recurrent.mamba2 import bounded
from forearm.model.families.rope import rope
from forearm.model.families.switches import layer_types

_FULL, _SLIDING = "hybrid", "hybrid_sliding"
_THETA = {_FULL: 5e6, _SLIDING: 1e4}
_NAMES = {
    "q": "self_attn.qkv_proj.q_proj", "k": "self_attn.qkv_proj.k_proj",
    "v": "self_attn.qkv_proj.v_proj[_current,_delayed]", "router": "mlp.gate.router_mlp.out_proj",
    "correction": "mlp.gate.balancing_biases",
}  # fmt: skip


def zaya(inputs: FamilyInputs) -> ModelConfig:
    """ZAYA1-8B: compressed convolutional attention, and one expert for each token, or none.

    The router's MLP hands a state on from layer to layer; vectors scale and move the residual and what is added to it.
    Sources: Figliolia et al. 2025, arXiv:2510.04476; Anthony et al. 2025, arXiv:2511.17127.
    """
    inputs = inputs.with_defaults(
        vocab_size=262_272, hidden_size=2048, num_hidden_layers=40, num_attention_heads=8, num_key_value_heads=2,
        head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1e-5, tie_word_embeddings=True,
        moe_intermediate_size=2048, num_experts=16, num_experts_per_tok=1, intermediate_size=1,
    )  # fmt: skip
    keys = inputs.keys
    kinds = layer_types(keys, [_FULL] * inputs.layers, (_FULL, _SLIDING))
    ropes = tuple(_angles(inputs, kind) for kind in dict.fromkeys(kinds))
    convolved = ConvolvedHeads(bounded(keys, "cca_time0", 2, 64, 2), bounded(keys, "cca_time1", 2, 64, 2))
    if keys.integer("num_key_value_heads") * keys.integer("head_dim") % 2:
        raise keys.wrong("head_dim", "even: half the values of a token are those of the token before")
    window = keys.optional_integer("sliding_window") or 0
    if _SLIDING in kinds and not window:
        raise keys.wrong("sliding_window", f"at least 1: some layers are {_SLIDING}")
    mixers = {
        kind: Attention(i, window=window if kind == _SLIDING else 0, convolved=convolved)
        for i, kind in enumerate(dict.fromkeys(kinds))
    }
    experts, rank = _experts(keys), bounded(keys, "router_hidden_size", 1, 1 << 20, 256)
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=[mixers[kind] for kind in kinds],
        ropes=ropes,
        feed_forwards=[replace(experts, router=RouterMlp(rank, follows=i > 0)) for i in range(inputs.layers)],
        qkv_bias=bias,
        o_bias=bias,
        head_bias=keys.flag("lm_head_bias"),
        merges=True,
        names=_NAMES,
    )


def _experts(keys: Keys) -> Experts:
    """Return the experts of a layer: a token has one, weighted by its probability, or skips them."""
    if keys.integer("num_experts_per_tok") != 1:
        raise keys.wrong("num_experts_per_tok", "1: a token has one expert")
    count = bounded(keys, "num_experts", 2, 4096, 16)
    act = activation(keys, "hidden_act", "silu")
    return Experts(keys.integer("moe_intermediate_size"), count, 1, act, correction=True, zeros=1, skips=True)


def _angles(inputs: FamilyInputs, kind: str) -> Rope:
    """Return the angles of a kind of layer, half of each head if its settings do not say."""
    keys = inputs.keys
    settings = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    own = settings.object(kind) or Keys({}, settings.source)
    fraction = own.number("partial_rotary_factor", 0.5)
    if not 0 < fraction <= 1:
        raise own.wrong("partial_rotary_factor", "more than 0 and at most 1")
    rotary = int(keys.integer("head_dim") * fraction)
    return rope(own, own.number("rope_theta", _THETA[kind]), rotary, lengths_of(inputs, own))
