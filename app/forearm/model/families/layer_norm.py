"""Families with LayerNorm, whose feed-forwards have no gate."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families import switches
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, positions, sizes


def opt(inputs: FamilyInputs) -> ModelConfig:
    """OPT except opt-350m: learned positions from row 2 on, LayerNorm, biases, a feed-forward without gate."""
    keys = inputs.keys
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    switches.check_opt(keys, hidden)
    bias = keys.flag("enable_bias", True)
    relu = activation(keys, "activation_function", "relu")
    feed_forward = FeedForward(keys.integer("ffn_dim"), relu, gated=False, bias=bias)
    return ModelConfig(
        **sizes(inputs, hidden // heads, heads),
        max_positions=positions(replace(inputs, allow_longer=False)),  # the table of positions has no further rows
        layers=(Layer(Attention(rope=None), feed_forward),) * inputs.layers,
        learned_positions=True,
        position_offset=2,
        layer_norm=True,
        norm_eps=1e-5,  # torch's default for LayerNorm; OPT has no key for it
        final_norm=not keys.flag("_remove_final_layer_norm"),
        qkv_bias=bias,
        o_bias=bias,
        tied_head=keys.flag("tie_word_embeddings", True),
        names=_OPT_NAMES,
    )


_OPT_NAMES = {
    "embed": "decoder.embed_tokens",
    "positions": "decoder.embed_positions",
    "final_norm": "decoder.final_layer_norm",
    "layers": "decoder.layers",
    "o": "self_attn.out_proj",
    "up": "fc1",
    "down": "fc2",
    "input_norm": "self_attn_layer_norm",
    "pre_mlp_norm": "final_layer_norm",
}


def starcoder2(inputs: FamilyInputs) -> ModelConfig:
    """StarCoder 2: Llama with LayerNorm and biases, and a feed-forward without gate."""
    inputs = inputs.with_defaults(hidden_act="gelu_pytorch_tanh", num_key_value_heads=2, tie_word_embeddings=True)
    keys = inputs.keys
    for key in ("activation_function", "layer_norm_epsilon", "mlp_type", "norm_type"):
        keys.get(key)  # marks it as read: published files repeat hidden_act and norm_epsilon in them
    bias = keys.flag("use_bias", True)
    return decoder(
        inputs,
        windows=[keys.optional_integer("sliding_window") or 0] * inputs.layers,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("norm_epsilon", 1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        names={"up": "mlp.c_fc", "down": "mlp.c_proj"},
    )


def nemotron(inputs: FamilyInputs) -> ModelConfig:
    """Nemotron 3 and 4, Minitron: LayerNorm of 1 + weight, relu squared without gate, half of each head rotated."""
    inputs = inputs.with_defaults(hidden_act="relu2", partial_rotary_factor=0.5)
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        gated=False,
        partial=True,
        layer_norm=True,
        norm_plus_one=True,
        norm_eps=keys.number("norm_eps", 1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias"),
    )
