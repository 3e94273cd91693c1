"""Families with LayerNorm; the feed-forwards of most have no gate. GPT-2 and its kin: gpt_like.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    ropes_by_layer_type,
    windows_of,
    with_slopes,
)
from forearm.model.families.experts import SHARED_EXPERTS, routed
from forearm.model.families.gpt_like import in_pieces
from forearm.model.families.keys import Keys
from forearm.model.families.switches import FULL, SLIDING

# Halves of a layer that are parallel read the residual through the same norm.
_ONE_NORM = {"pre_mlp_norm": "input_layernorm"}


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


def mpt(inputs: FamilyInputs) -> ModelConfig:
    """MPT 7B and 30B, StoryWriter: ALiBi instead of positions, no biases at all, q, k and v fused and clamped."""
    inputs = with_mosaic_names(inputs).with_defaults(hidden_act="gelu", tie_word_embeddings=True)
    keys, hidden = inputs.keys, inputs.keys.integer("hidden_size")
    heads, attention = keys.integer("num_attention_heads"), keys.object("attn_config") or Keys({}, keys.source)
    for key in ("emb_pdrop", "embedding_fraction", "init_config", "init_device", "tokenizer_name", "verbose"):
        keys.get(key)  # marks it as read: they concern training
    keys.only(no_bias=True, logit_scale=None, learned_pos_emb=True, norm_type="low_precision_layernorm")
    attention.only(alibi=True, qk_ln=False, prefix_lm=False, attn_type="multihead_attention", kv_n_heads=heads)
    inputs = inputs.with_defaults(intermediate_size=keys.integer("expansion_ratio", 4) * hidden)
    return decoder(
        inputs,
        gated=False,
        layer_norm=True,
        norm_bias=False,
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        kv_heads=heads,
        qkv_clip=attention.optional_number("clip_qkv") or 0.0,
        attention_scale=attention.optional_number("softmax_scale") or (hidden // heads) ** -0.5,
        names=_MPT_NAMES,
        **with_slopes(inputs, heads, attention.positive("alibi_bias_max", 8.0)),
    )


def with_mosaic_names(inputs: FamilyInputs) -> FamilyInputs:
    """Return the inputs with the sizes of MPT and DBRX under the names that other families have."""
    keys = inputs.keys
    usual = {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
    usual |= {"max_seq_len": "max_position_embeddings"}
    inputs = inputs.with_defaults(**{name: keys.get(own) for own, name in usual.items() if keys.get(own) is not None})
    return inputs.with_defaults(max_position_embeddings=2048)


_MPT_NAMES = {
    "embed": "wte", "layers": "blocks", "final_norm": "norm_f", "input_norm": "norm_1", "pre_mlp_norm": "norm_2",
    "o": "attn.out_proj", "up": "ffn.up_proj", "down": "ffn.down_proj", **dict.fromkeys("qkv", "attn.Wqkv"),
}  # fmt: skip


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


def persimmon(inputs: FamilyInputs) -> ModelConfig:
    """Persimmon 8B, and Fuyu 8B for text: LayerNorms of q and k of each head, relu squared, half of a head rotated."""
    inputs = inputs.with_defaults(hidden_act="relu2", partial_rotary_factor=0.5)
    keys = inputs.keys
    normed = keys.flag("qk_layernorm", True)
    names = {f"{part}_norm": f"self_attn.{part}_layernorm[heads]" for part in "qk"}
    names |= {"final_norm": "final_layernorm", "o": "self_attn.dense"}
    names |= {"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
    heads = keys.integer("num_attention_heads")
    return decoder(
        inputs,
        partial=True,
        gated=False,
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-5),
        kv_heads=heads,
        qk_norm="each_head" if normed else "none",
        qk_norm_bias=normed,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        names=names | in_pieces("self_attn.query_key_value", keys.integer("hidden_size") // heads, "qkv"),
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


def cohere_compass(inputs: FamilyInputs) -> ModelConfig:
    """North Micro Vision for text alone: Cohere 2 with angles of each kind of layer, none where they are null."""
    inputs = inputs.with_defaults(sliding_window=4096, logit_scale=1.0)
    keys = inputs.keys
    if keys.get("logit_scale") is None:
        inputs = replace(inputs, keys=keys.with_values(logit_scale=1.0))
    settings = keys.object("rope_parameters") or Keys({}, keys.source)
    windows = windows_of(inputs, [False] * inputs.layers)
    kinds = {0: settings.object(FULL), 1: settings.object(SLIDING)}
    used = {int(window > 0) for window in windows}
    ropes = ropes_by_layer_type(inputs, full=("rope_theta", 1e4), sliding=("rope_theta", 1e4))
    rotated = [kind for kind in sorted(used) if kinds[kind] is not None]
    return decoder(
        inputs,
        mixers=[
            Attention(rope=rotated.index(int(w > 0)) if int(w > 0) in rotated else None, window=w) for w in windows
        ],
        ropes=tuple(ropes[kind] for kind in rotated),
        **_cohere(inputs),
    )


def cohere2_moe(inputs: FamilyInputs) -> ModelConfig:
    """Command A with experts: Cohere 2 with dense first layers, and RMSNorm where rms_norm_eps is a number."""
    inputs = inputs.with_defaults(sliding_window=4096, head_dim=128, rope_theta=10_000.0, num_experts=8)
    keys = inputs.keys
    dense, every, first = (
        keys.integer(key, default)
        for key, default in (
            ("first_k_dense_replace", 0), ("sliding_window_pattern", 4), ("prefix_dense_sliding_window_pattern", 1),
        )
    )  # fmt: skip
    if every < 1 or first < 1:
        raise keys.wrong("sliding_window_pattern", "at least 1, as prefix_dense_sliding_window_pattern")
    slides = [(i + 1) % first != 0 if i < dense else (i - dense + 1) % every != 0 for i in range(inputs.layers)]
    windows = windows_of(inputs, slides)
    kinds = keys.get("mlp_layer_types") or ["dense" if i < dense else "sparse" for i in range(inputs.layers)]
    if not isinstance(kinds, list) or len(kinds) != inputs.layers or not all(k in ("dense", "sparse") for k in kinds):
        raise keys.wrong("mlp_layer_types", f"a list of {inputs.layers} times dense or sparse")
    wide = keys.optional_integer("prefix_dense_intermediate_size") or keys.integer("intermediate_size")
    plain, experts = FeedForward(wide, activation(keys, "hidden_act", "silu")), _cohere_experts(inputs)
    rotated = [bool(w) or (kind == "dense" and first == 1) for w, kind in zip(windows, kinds, strict=True)]
    own = _cohere(inputs)
    if (eps := keys.optional_number("rms_norm_eps")) is not None:
        own |= {"layer_norm": False, "norm_eps": eps}
    return decoder(
        inputs,
        interleaved=True,
        mixers=[Attention(rope=0 if r else None, window=w) for r, w in zip(rotated, windows, strict=True)],
        feed_forwards=[plain if kind == "dense" else experts for kind in kinds],
        **own | {"names": _ONE_NORM | SHARED_EXPERTS},
    )


def _cohere_experts(inputs: FamilyInputs) -> Experts:
    """Return Cohere's experts, whose sum and the shared expert's result are added or averaged."""
    keys = inputs.keys
    for key, default, known in (
        ("expert_selection_fn", "softmax", ("softmax", "sigmoid")),
        ("shared_expert_combination_strategy", "average", ("average", "sum")),
    ):
        if keys.text(key, default) not in known:
            raise keys.wrong(key, f"{known[0]} or {known[1]}")
    beside = keys.integer("num_shared_experts", 0) * keys.integer("intermediate_size")
    part = 0.5 if beside and keys.text("shared_expert_combination_strategy", "average") == "average" else 1.0
    shared = FeedForward(beside, activation(keys, "hidden_act", "silu"), out_scale=part) if beside > 0 else None
    sigmoid = keys.text("expert_selection_fn", "softmax") == "sigmoid"
    renormalized = keys.flag("norm_topk_prob", True) and sigmoid
    score: dict[str, Any] = {"score": "sigmoid" if sigmoid else "softmax_chosen"}
    return routed(inputs, "num_experts", "intermediate_size", renormalized, scale=part, shared=shared, **score)


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
