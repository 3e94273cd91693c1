"""Dense families with code of their own: Llama by other names of tensors and keys, with scales, or without layers.

Source of names and keys: the modeling and configuration files in the models' own repositories, and vLLM's classes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, with_slopes
from forearm.model.families.keys import Keys


def with_usual(inputs: FamilyInputs, **own: str) -> FamilyInputs:
    """Return the inputs with values of the model's own keys under usual names. own: usual name -> the model's own."""
    given = {name: inputs.keys.get(key) for name, key in own.items() if inputs.keys.get(key) is not None}
    return inputs.with_defaults(**given)


def exaone(inputs: FamilyInputs) -> ModelConfig:
    """EXAONE 3.0 and 3.5, EXAONE Deep: Llama by other names."""
    usual = {"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}
    inputs = with_usual(inputs, rms_norm_eps="layer_norm_epsilon", **usual)
    return decoder(inputs.with_defaults(rms_norm_eps=1e-5), names=_EXAONE)


_EXAONE = {
    "embed": "wte", "layers": "h", "final_norm": "ln_f", "input_norm": "ln_1", "pre_mlp_norm": "ln_2",
    **{part: f"attn.attention.{part}_proj" for part in "qkv"}, "o": "attn.attention.out_proj",
    "gate": "mlp.c_fc_0", "up": "mlp.c_fc_1", "down": "mlp.c_proj",
}  # fmt: skip


def internlm2(inputs: FamilyInputs) -> ModelConfig:
    """InternLM 2 and 2.5: Llama whose q, k and v are in one matrix, the queries of a key head before it."""
    keys = inputs.keys
    heads = keys.integer("num_attention_heads")
    few = keys.integer("num_key_value_heads", heads)
    if not 1 <= few <= heads or heads % few:
        raise keys.wrong("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    dim, group = keys.integer("hidden_size") // heads, heads // few
    pieces = (("q", 0, group * dim), ("k", group * dim, dim), ("v", (group + 1) * dim, dim))
    packed = {part: f"attention.wqkv[{at}:{rows}:{(group + 2) * dim}]" for part, at, rows in pieces}
    bias = keys.flag("bias")
    return decoder(inputs, qkv_bias=bias, o_bias=bias, names=_INTERNLM2 | packed)


_INTERNLM2 = {
    "embed": "tok_embeddings", "head": "output", "input_norm": "attention_norm", "pre_mlp_norm": "ffn_norm",
    "o": "attention.wo", "gate": "feed_forward.w1", "up": "feed_forward.w3", "down": "feed_forward.w2",
}  # fmt: skip


def minicpm(inputs: FamilyInputs) -> ModelConfig:
    """MiniCPM 1, 2 and 4: Llama whose embeddings, halves of layers and logits are scaled."""
    inputs = inputs.with_defaults(scale_emb=1, scale_depth=1.0, dim_model_base=1, tie_word_embeddings=True)
    keys, hidden = inputs.keys, inputs.keys.integer("hidden_size")
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        qkv_bias=bias,
        o_bias=bias,
        embedding_scale=keys.number("scale_emb"),
        residual_scale=keys.number("scale_depth") / math.sqrt(inputs.layers),
        logits_scale=keys.positive("dim_model_base") / hidden,
    )


def baichuan(inputs: FamilyInputs) -> ModelConfig:
    """Baichuan 7B and 13B: Llama with q, k and v in one matrix; 13B has slopes of distances instead of angles."""
    keys = inputs.keys
    if keys.integer("vocab_size") == BAICHUAN2 and not keys.flag("head_is_normalized"):
        raise keys.wrong(
            "vocab_size", "64000: Baichuan 2 divides rows of its head by their length; serve a GGUF file of it"
        )
    names = dict.fromkeys("qkv", "self_attn.W_pack")
    if "max_position_embeddings" in keys:
        return decoder(inputs, names=names)
    inputs = with_usual(inputs, max_position_embeddings="model_max_length")
    return decoder(inputs, names=names, **with_slopes(inputs, keys.integer("num_attention_heads")))


BAICHUAN2 = 125_696  # tokens; the two versions have the same keys otherwise


def qwen(inputs: FamilyInputs) -> ModelConfig:
    """Qwen 1: Llama with q, k and v in one matrix with biases, by other names, whose feed-forward is half its key.

    Its angles and queries are stretched beyond seq_length alone, which is the longest text here.
    """
    keys = inputs.keys
    width = keys.integer("intermediate_size")
    keys.only(no_bias=True, scale_attn_weights=True, rotary_pct=1.0)
    for key in ("use_dynamic_ntk", "use_logn_attn", "max_position_embeddings"):
        keys.get(key)  # marks it as read: of texts beyond seq_length
    own = {"head_dim": "kv_channels", "rms_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base"}
    inputs = with_usual(inputs, **own)
    most = keys.integer("seq_length", 8192)
    inputs = replace(inputs, keys=inputs.keys.with_values(intermediate_size=width // 2, max_position_embeddings=most))
    return decoder(inputs, qkv_bias=True, names=_QWEN)


_QWEN = {
    "embed": "wte", "layers": "h", "final_norm": "ln_f", "input_norm": "ln_1", "pre_mlp_norm": "ln_2",
    **dict.fromkeys("qkv", "attn.c_attn"), "o": "attn.c_proj", "gate": "mlp.w2", "up": "mlp.w1", "down": "mlp.c_proj",
}  # fmt: skip


def nemotron_nas(inputs: FamilyInputs) -> ModelConfig:
    """Llama-Nemotron Super 49B and Ultra 253B, DeciLM: Llama whose layers differ in width or leave a half out.

    Layers without either half are left out. Source: Bercovich et al. 2024, arXiv:2411.19146 (Puzzle).
    """
    keys = inputs.keys
    heads, bias = keys.integer("num_attention_heads"), keys.flag("attention_bias")
    kv_heads, widths = _puzzle(inputs, heads)
    kept = [i for i, one in enumerate(zip(kv_heads, widths, strict=True)) if any(one)]
    attend = [kv_heads[i] for i in kept if kv_heads[i]]
    if not attend:
        raise keys.wrong("block_configs", "a list in which a layer attends")
    usual, act = max(set(attend), key=attend.count), activation(keys, "hidden_act", "silu")
    mixers = [Attention(0, kv_heads=0 if kv_heads[i] == usual else kv_heads[i]) if kv_heads[i] else None for i in kept]
    plain = keys.flag("mlp_bias")
    inputs = replace(inputs, keys=keys.with_values(
        num_hidden_layers=len(kept), num_key_value_heads=usual, intermediate_size=max(widths)
    ))  # fmt: skip
    return decoder(
        inputs,
        mixers=mixers,
        feed_forwards=[FeedForward(widths[i], act, bias=plain) if widths[i] else None for i in kept],
        qkv_bias=bias,
        o_bias=bias,
        names={f"layers.{i}": f"layers.{stored}" for i, stored in enumerate(kept)} if len(kept) < len(widths) else {},
    )


def _puzzle(inputs: FamilyInputs, heads: int) -> tuple[list[int], list[int]]:
    """Return the kv heads of each layer, 0 for none, and the width of its feed-forward, 0 for none."""
    keys, layers = inputs.keys, inputs.layers
    blocks = keys.get("block_configs")
    if blocks is None:
        few, width = keys.get("num_key_value_heads_per_layer"), keys.get("intermediate_size")
        few = [keys.integer("num_key_value_heads", heads)] * layers if few is None else few
        width = width if isinstance(width, list) else [width] * layers
        for key, each in (("num_key_value_heads_per_layer", few), ("intermediate_size", width)):
            if not isinstance(each, list) or len(each) != layers or not all(type(n) is int and n >= 0 for n in each):
                raise keys.wrong(key, f"a list of {layers} numbers")
        return few, width
    if not isinstance(blocks, list) or len(blocks) != layers or not all(isinstance(one, dict) for one in blocks):
        raise keys.wrong("block_configs", f"a list of {layers} objects")
    found = [_block(Keys(one, f"{keys.source}: block_configs[{i}]"), keys, heads) for i, one in enumerate(blocks)]
    return [few for few, _ in found], [width for _, width in found]


def _block(block: Keys, keys: Keys, heads: int) -> tuple[int, int]:
    """Return a layer's kv heads and the width of its feed-forward, a multiple of 256."""
    attention, feed_forward = (
        block.object(part) or Keys({}, f"{block.source}: {part}") for part in ("attention", "ffn")
    )
    for part in (attention, feed_forward):
        if part.flag("replace_with_linear"):
            raise part.wrong("replace_with_linear", "false: linear layers instead of a half are not computed")
        for key in ("sparsify", "window_length", "num_sink_tokens", "unshifted_sink"):
            if part.get(key):
                raise part.wrong(key, "null or false")
    group = None if attention.flag("no_op") else attention.optional_integer("n_heads_in_group")
    if group is not None and (group < 1 or heads % group):
        raise attention.wrong("n_heads_in_group", f"a divisor of num_attention_heads ({heads})")
    given: Any = None if feed_forward.flag("no_op") else feed_forward.optional_number("ffn_mult")
    width = 0 if given is None else int(2 * given * keys.integer("hidden_size") / 3)
    if not 0 <= width <= 1 << 20:
        raise feed_forward.wrong("ffn_mult", "more than 0, and a width of at most 2^20")
    return heads // group if group else 0, -(-width // 256) * 256
