"""Families with LayerNorm; the feed-forwards of most have no gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, lengths_of, positions, sizes, windows_of
from forearm.model.families.keys import Keys
from forearm.model.families.rope import rope


def opt(inputs: FamilyInputs) -> ModelConfig:
    """OPT except opt-350m: learned positions from row 2 on, LayerNorm, biases, a feed-forward without gate."""
    keys = inputs.keys
    hidden = keys.integer("hidden_size")
    if not keys.flag("do_layer_norm_before", True):
        raise keys.wrong("do_layer_norm_before", "true: norms after the layer (opt-350m) are not supported")
    if keys.optional_integer("word_embed_proj_dim") not in (None, hidden):
        raise keys.wrong("word_embed_proj_dim", f"hidden_size ({hidden}): projected embeddings are not supported")
    if not keys.flag("layer_norm_elementwise_affine", True):
        raise keys.wrong("layer_norm_elementwise_affine", "true")
    bias = keys.flag("enable_bias", True)
    relu = activation(keys, "activation_function", "relu")
    return _learned_positions(
        inputs,
        FeedForward(keys.integer("ffn_dim"), relu, gated=False, bias=bias),
        position_offset=2,
        norm_eps=1e-5,  # torch's default for LayerNorm; OPT has no key for it
        final_norm=not keys.flag("_remove_final_layer_norm"),
        qkv_bias=bias,
        o_bias=bias,
        names=_OPT_NAMES,
    )


def _learned_positions(inputs: FamilyInputs, feed_forward: FeedForward, **differs: Any) -> ModelConfig:
    """Return a model with LayerNorm and learned positions. differs: other fields of ModelConfig."""
    heads = inputs.keys.integer("num_attention_heads")
    common = sizes(inputs, inputs.keys.integer("hidden_size") // heads, heads)
    common |= {
        "max_positions": positions(replace(inputs, allow_longer=False)),  # the table of positions has no further rows
        "layers": (Layer(Attention(rope=None), feed_forward),) * inputs.layers,
        "tied_head": inputs.keys.flag("tie_word_embeddings", True),
    }
    return ModelConfig(**common | {"learned_positions": True, "layer_norm": True} | differs)


# Halves of a layer that are parallel read the residual through the same norm.
_ONE_NORM = {"pre_mlp_norm": "input_layernorm"}
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


def gpt2(inputs: FamilyInputs) -> ModelConfig:
    """GPT-2 and DistilGPT-2: learned positions, LayerNorm, biases, a feed-forward without gate; columns are stored."""
    inputs = _with_usual_names(inputs)
    return _gpt2(inputs, inputs.keys.integer("num_attention_heads"), dict.fromkeys("qkv", "attn.c_attn.T"), ".T")


def gpt_bigcode(inputs: FamilyInputs) -> ModelConfig:
    """StarCoder 1, SantaCoder, OctoCoder: GPT-2 with one key head, or q, k and v by head; rows are stored."""
    inputs = _with_usual_names(inputs).with_defaults(activation_function="gelu_pytorch_tanh")
    heads, one = inputs.keys.integer("num_attention_heads"), inputs.keys.flag("multi_query", True)
    inputs.keys.get("num_key_value_heads")  # transformers writes what it derives from multi_query
    by_head = _in_pieces("attn.c_attn", inputs.keys.integer("hidden_size") // heads, "qkv")
    return _gpt2(inputs, 1 if one else heads, dict.fromkeys("qkv", "attn.c_attn") if one else by_head, "")


def _gpt2(inputs: FamilyInputs, kv_heads: int, qkv: dict[str, str], stored: str) -> ModelConfig:
    """Return a GPT-2. qkv: names of these three. stored: behind the names of all other matrices."""
    keys = inputs.keys
    act = activation(keys, "activation_function", "gelu_new")
    scaled = {} if keys.flag("scale_attn_weights", True) else {"attention_scale": 1.0}
    if keys.flag("scale_attn_by_inverse_layer_idx"):
        raise keys.wrong("scale_attn_by_inverse_layer_idx", "false: one scale of scores serves all layers")
    return _learned_positions(
        inputs,
        FeedForward(keys.integer("intermediate_size"), act, gated=False, bias=True),
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        kv_heads=kv_heads,
        qkv_bias=True,
        o_bias=True,
        names=_GPT_NAMES
        | {"positions": "wpe", "pre_mlp_norm": "ln_2", "up": f"mlp.c_fc{stored}", "down": f"mlp.c_proj{stored}"}
        | {**qkv, "o": f"attn.c_proj{stored}"},
        **scaled,
    )


_GPT_NAMES = {"embed": "wte", "layers": "h", "input_norm": "ln_1", "pre_mlp_norm": "ln_1", "final_norm": "ln_f"}


def _with_usual_names(inputs: FamilyInputs) -> FamilyInputs:
    """Return the inputs with GPT-2's names of sizes, which GPT-J shares, under those that other families have."""
    keys = inputs.keys
    keys.get("n_ctx")  # marks it as read: older files repeat n_positions in it
    usual = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    usual |= {"n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}
    given = {name: keys.get(own) for own, name in usual.items() if keys.get(own) is not None}
    filled = inputs.with_defaults(**given)
    return filled.with_defaults(intermediate_size=4 * filled.keys.integer("hidden_size"))


def gptj(inputs: FamilyInputs) -> ModelConfig:
    """GPT-J: parallel halves of a layer behind one LayerNorm, the first values of each head rotated in pairs."""
    names = {name: f"attn.{name}_proj" for name in "qkv"}
    return _gptj(_with_usual_names(inputs), names)


def codegen(inputs: FamilyInputs) -> ModelConfig:
    """CodeGen and CodeGen 2: GPT-J, whose q, v and k are fused in four shares of the heads."""
    inputs = _with_usual_names(inputs)
    heads, width = inputs.keys.integer("num_attention_heads"), inputs.keys.integer("hidden_size") // 4
    if heads % 4:
        raise inputs.keys.wrong("n_head", "a multiple of 4")
    return _gptj(inputs, _in_pieces("attn.qkv_proj", width, "qvk"))


def _in_pieces(stored: str, rows: int, order: str) -> dict[str, str]:
    """Return the names of parts that alternate in a tensor, `rows` rows of each at a time."""
    return {name: f"{stored}[{i * rows}:{rows}:{len(order) * rows}]" for i, name in enumerate(order)}


def _gptj(inputs: FamilyInputs, names: dict[str, str]) -> ModelConfig:
    keys = inputs.keys
    head_dim = keys.integer("hidden_size") // keys.integer("num_attention_heads")
    rotary = keys.optional_integer("rotary_dim", 64)
    if rotary is None or not 0 < rotary <= head_dim or rotary % 2:
        raise keys.wrong("rotary_dim", f"an even number of at most the values of a head ({head_dim})")
    empty = Keys({}, keys.source)
    return decoder(
        inputs,
        ropes=(rope(empty, 10_000.0, rotary, lengths_of(inputs, empty), interleaved=True),),
        act=activation(keys, "activation_function", "gelu_new"),
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        parallel_residual=True,
        mlp_bias=True,
        head_bias=True,
        names=_GPT_NAMES | {"o": "attn.out_proj", "up": "mlp.fc_in", "down": "mlp.fc_out"} | names,
    )


def gpt_neox(inputs: FamilyInputs) -> ModelConfig:
    """GPT-NeoX, Pythia, Dolly 2, RedPajama: parallel halves of a layer, each behind a LayerNorm; qkv fused by head."""
    keys = inputs.keys
    theta, fraction = keys.number("rotary_emb_base", 10_000.0), keys.number("rotary_pct", 0.25)
    inputs = inputs.with_defaults(hidden_act="gelu", rope_theta=theta, partial_rotary_factor=fraction)
    bias = keys.flag("attention_bias", True)
    head_dim = keys.integer("hidden_size") // keys.integer("num_attention_heads")
    names = {"embed": "embed_in", "final_norm": "final_layer_norm", "o": "attention.dense"}
    names |= {"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
    return decoder(
        inputs,
        partial=True,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-5),
        parallel_residual=keys.flag("use_parallel_residual", True),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
        names=names | _in_pieces("attention.query_key_value", head_dim, "qkv"),
    )


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


def jais2(inputs: FamilyInputs) -> ModelConfig:
    """Jais 2: Llama with LayerNorm and biases, and a feed-forward without gate, whose activation is relu squared."""
    inputs = inputs.with_defaults(hidden_act="relu2")
    keys = inputs.keys
    bias = keys.flag("attention_bias", True)
    return decoder(
        inputs,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias", True),
    )


def olmo(inputs: FamilyInputs) -> ModelConfig:
    """OLMo 1: Llama with LayerNorms that have no weights, and q, k and v clamped."""
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        layer_norm=True,
        norm_bias=False,
        norm_weight=False,
        norm_eps=1e-5,
        qkv_clip=keys.optional_number("clip_qkv") or 0.0,
        qkv_bias=bias,
        o_bias=bias,
    )


def stablelm(inputs: FamilyInputs) -> ModelConfig:
    """StableLM 1 and 2: LayerNorm with bias, a quarter of each head rotated; the 12B has parallel halves of a layer."""
    inputs = inputs.with_defaults(partial_rotary_factor=0.25)
    keys = inputs.keys
    parallel = keys.flag("use_parallel_residual")
    names = {"q_norm": "self_attn.q_layernorm.norms.{head}", "k_norm": "self_attn.k_layernorm.norms.{head}"}
    return decoder(
        inputs,
        partial=True,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-5),
        parallel_residual=parallel,
        qkv_bias=keys.flag("use_qkv_bias"),
        qk_norm="each_head" if keys.flag("qk_layernorm") else "none",
        names=names | (_ONE_NORM if parallel else {}),
    )


def phi(inputs: FamilyInputs) -> ModelConfig:
    """Phi-1, 1.5 and 2: parallel halves of a layer behind one LayerNorm, biases everywhere, half of a head rotated."""
    inputs = inputs.with_defaults(hidden_act="gelu_new", partial_rotary_factor=0.5)
    return decoder(
        inputs,
        partial=True,
        gated=False,
        layer_norm=True,
        norm_eps=inputs.keys.number("layer_norm_eps", 1e-5),
        parallel_residual=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
        names=_ONE_NORM | {"o": "self_attn.dense", "up": "mlp.fc1", "down": "mlp.fc2", "final_norm": "final_layernorm"},
    )


def cohere(inputs: FamilyInputs) -> ModelConfig:
    """Command R, R+, Aya 23: parallel halves behind one LayerNorm without bias, interleaved angles, scaled logits."""
    inputs = inputs.with_defaults(rope_theta=500_000.0)
    norms = "each_head" if inputs.keys.flag("use_qk_norm") else "none"
    return decoder(inputs, interleaved=True, qk_norm=norms, **_cohere(inputs))


def cohere2(inputs: FamilyInputs) -> ModelConfig:
    """Command R7B, A, Aya Expanse: Cohere with a window on three layers of four, the others have no positions."""
    inputs = inputs.with_defaults(sliding_window=4096)
    every = inputs.keys.integer("sliding_window_pattern", 4)
    inputs.keys.get("position_embedding_type")  # marks it as read: published files say rope_gptj
    windows = windows_of(inputs, [(i + 1) % every != 0 for i in range(inputs.layers)])
    mixers = [Attention(rope=0 if w else None, window=w) for w in windows]
    return decoder(inputs, interleaved=True, mixers=mixers, **_cohere(inputs))


def _cohere(inputs: FamilyInputs) -> dict[str, Any]:
    """Return what Cohere's families share, as arguments of `decoder`."""
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    return {
        "layer_norm": True,
        "norm_bias": False,
        "norm_eps": keys.number("layer_norm_eps", 1e-5),
        "parallel_residual": True,
        "logits_scale": keys.positive("logit_scale", 0.0625),
        "tied_head": keys.flag("tie_word_embeddings", True),
        "qkv_bias": bias,
        "o_bias": bias,
        "names": _ONE_NORM,
    }
