"""GPT-2, OPT and the families of their time: LayerNorm, feed-forwards without gate, names of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, lengths_of, positions, sizes, with_slopes
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
    by_head = in_pieces("attn.c_attn", inputs.keys.integer("hidden_size") // heads, "qkv")
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
    usual |= {"n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "n_embed": "hidden_size"}
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
    return _gptj(inputs, in_pieces("attn.qkv_proj", width, "qvk"))


def in_pieces(stored: str, rows: int, order: str) -> dict[str, str]:
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
    parallel, bias = inputs.keys.flag("use_parallel_residual", True), inputs.keys.flag("attention_bias", True)
    return _neox(inputs, 0.25, parallel_residual=parallel, qkv_bias=bias, o_bias=bias, mlp_bias=True)


def gpt_neox_japanese(inputs: FamilyInputs) -> ModelConfig:
    """GPT-NeoX-Japanese: GPT-NeoX with one half of a layer behind the other, and one bias, of the last attention."""
    keys, last = inputs.keys, inputs.layers - 1
    width = keys.positive("intermediate_multiple_size", 4.0) * keys.integer("hidden_size")
    if not 1 <= width <= 1 << 20:
        raise keys.wrong("intermediate_multiple_size", f"at least 1 / hidden_size, and at most {1 << 20} / hidden_size")
    inputs = inputs.with_defaults(intermediate_size=int(width), tie_word_embeddings=True)
    return _neox(inputs, 1.0, mixers=[Attention(rope=0, o_bias=i == last) for i in range(last + 1)])


def _neox(inputs: FamilyInputs, rotary: float, **differs: Any) -> ModelConfig:
    """Return a GPT-NeoX. rotary: the rotated share of a head, if config.json says none. differs: as of `decoder`."""
    keys = inputs.keys
    theta, fraction = keys.number("rotary_emb_base", 10_000.0), keys.number("rotary_pct", rotary)
    inputs = inputs.with_defaults(hidden_act="gelu", rope_theta=theta, partial_rotary_factor=fraction)
    head_dim = keys.integer("hidden_size") // keys.integer("num_attention_heads")
    names = {"embed": "embed_in", "final_norm": "final_layer_norm", "o": "attention.dense"}
    names |= {"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
    return decoder(
        inputs,
        partial=True,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-5),
        names=names | in_pieces("attention.query_key_value", head_dim, "qkv"),
        **differs,
    )


def gpt_neo(inputs: FamilyInputs) -> ModelConfig:
    """GPT-Neo: GPT-2 with a window on every other layer, q, k and v apart and without biases, scores not scaled."""
    keys = inputs.keys
    usual = {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
    inputs = inputs.with_defaults(**{name: keys.get(own) for own, name in usual.items() if keys.get(own) is not None})
    keys = inputs.keys
    if keys.get("intermediate_size") is None:
        keys = keys.with_values(intermediate_size=4 * keys.integer("hidden_size"))
        inputs = replace(inputs, keys=keys)
    config = _gpt2(inputs, keys.integer("num_attention_heads"), {q: f"attn.attention.{q}_proj" for q in "qkv"}, "")
    window = keys.integer("window_size", 256)
    layers = tuple(
        replace(layer, mixer=Attention(rope=None, window=window)) if kind == "local" else layer
        for layer, kind in zip(config.layers, _attention_types(inputs), strict=True)
    )
    names = config.names | {"o": "attn.attention.out_proj"}
    return replace(config, layers=layers, names=names, qkv_bias=False, attention_scale=1.0)


def _attention_types(inputs: FamilyInputs) -> list[str]:
    """Return the kind of each layer of a GPT-Neo: attention_types has pairs of a list of kinds and how often it comes.

    The key attention_layers, which published files have too, is what transformers derives from it.
    """
    keys = inputs.keys
    keys.get("attention_layers")
    pairs = keys.get("attention_types") or [[["global", "local"], 12]]
    kinds: list[str] = []
    wanted = "a list of pairs of a list of global and local, and a number"
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [list(some), int(times)] if 0 <= times <= inputs.layers:
                kinds += some * times
            case _:
                raise keys.wrong("attention_types", wanted)
    if not all(kind in ("global", "local") for kind in kinds):
        raise keys.wrong("attention_types", wanted)
    if len(kinds) != inputs.layers:
        raise keys.wrong("attention_types", f"one for each of the {inputs.layers} layers")
    return kinds


def biogpt(inputs: FamilyInputs) -> ModelConfig:
    """BioGPT: OPT, whose embeddings are multiplied with the root of their size."""
    keys = inputs.keys
    act, scaled = activation(keys, "hidden_act", "gelu"), keys.flag("scale_embedding", True)
    keys.get("layer_norm_eps")  # marks it as read: transformers computes with torch's default
    return _learned_positions(
        inputs,
        FeedForward(keys.integer("intermediate_size"), act, gated=False, bias=True),
        position_offset=2,
        norm_eps=1e-5,
        qkv_bias=True,
        o_bias=True,
        embedding_scale=keys.integer("hidden_size") ** 0.5 if scaled else 1.0,
        names={name: stored.removeprefix("decoder.") for name, stored in _OPT_NAMES.items()}
        | {"final_norm": "layer_norm", "head": "output_projection"},
    )


def falcon(inputs: FamilyInputs) -> ModelConfig:
    """Falcon 7B to 180B, RefinedWeb's with ALiBi: parallel halves or not; q, k and v fused, few key heads."""
    inputs = inputs.with_defaults(
        hidden_act=inputs.keys.text("activation", "gelu"), tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    keys = inputs.keys
    heads, grouped = keys.integer("num_attention_heads"), keys.flag("new_decoder_architecture")
    few, one = keys.optional_integer("num_kv_heads") or heads, keys.flag("multi_query", True)
    kv_heads = few if grouped else 1 if one else heads
    if not 1 <= kv_heads <= heads or heads % kv_heads:
        raise keys.wrong("num_kv_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim, bias = keys.integer("hidden_size") // heads, keys.flag("bias")
    own = heads // kv_heads * head_dim  # rows of queries that lie before each key
    stored, step = "self_attention.query_key_value", own + 2 * head_dim
    qkv = {name: f"{stored}[{first}:{rows}:{step}]" for name, first, rows in (
        ("q", 0, own), ("k", own, head_dim), ("v", own + head_dim, head_dim),
    )}  # fmt: skip
    norms = keys.optional_integer("num_ln_in_parallel_attn") or 2
    parallel = grouped or keys.flag("parallel_attn", True)
    if grouped and not keys.flag("parallel_attn", True):
        raise keys.wrong("parallel_attn", "true where new_decoder_architecture is")
    joint = {"pre_mlp_norm": "input_layernorm"} if parallel else {}
    names = {"input_norm": "ln_attn", "pre_mlp_norm": "ln_mlp"} if grouped and norms == 2 else joint
    width = keys.optional_integer("ffn_hidden_size") or 4 * heads * head_dim
    inputs = replace(inputs, keys=keys.with_values(num_key_value_heads=kv_heads, intermediate_size=width))
    # The trained slopes are bfloat16 numbers, and scaled as scores are.
    sloped = with_slopes(inputs, heads, scale=head_dim**-0.5) if keys.flag("alibi") else {}
    return decoder(
        inputs,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        parallel_residual=parallel,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        names=_FALCON_NAMES | qkv | names,
        **sloped,
    )


def bloom(inputs: FamilyInputs) -> ModelConfig:
    """BLOOM and BLOOMZ: GPT-2 with ALiBi instead of positions, a LayerNorm behind the embedding; qkv fused by head."""
    inputs = _with_usual_names(inputs).with_defaults(tie_word_embeddings=True, seq_length=2048, hidden_act="gelu_new")
    keys = inputs.keys
    heads = keys.integer("num_attention_heads")
    inputs = inputs.with_defaults(max_position_embeddings=keys.integer("seq_length"))
    for key in ("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi",
                "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "unk_token_id"):  # fmt: skip
        keys.get(key)  # marks it as read: they tell how training computed the same numbers
    qkv = in_pieces("self_attention.query_key_value", keys.integer("hidden_size") // heads, "qkv")
    return decoder(
        inputs,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        embed_norm=True,
        kv_heads=heads,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        names=_FALCON_NAMES | qkv | {"embed_norm": "word_embeddings_layernorm"},
        **with_slopes(inputs, heads),
    )


_FALCON_NAMES = {
    "embed": "word_embeddings", "layers": "h", "final_norm": "ln_f", "o": "self_attention.dense",
    "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h",
}  # fmt: skip
