"""Families with norms elsewhere than Llama: after each half of a layer, or within it."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    ropes_by_layer_type,
    windows_of,
)
from forearm.model.families.experts import SHARED_EXPERTS, routed
from forearm.model.families.hybrid import LINEAR, gated_delta, kinds_of
from forearm.model.families.llama_like import FUSED_GATE_UP, granite, with_glm_defaults
from forearm.model.families.switches import FULL

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


def kolibri1(inputs: FamilyInputs) -> ModelConfig:
    """Kolibri 1: norms around both halves, EXAONE 4's attention; experts chosen by corrected logits, a shared one."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=4, sliding_window=513, sliding_window_pattern=5, num_experts=384,
        num_experts_per_tok=6, moe_intermediate_size=512, shared_expert_intermediate_size=512, intermediate_size=1,
    )  # fmt: skip
    keys = inputs.keys
    keys.get("intermediate_size")  # marks it as read: no layer is dense
    shared = FeedForward(keys.integer("shared_expert_intermediate_size"), activation(keys, "hidden_act", "silu"))
    experts = routed(
        inputs, "num_experts", "moe_intermediate_size", keys.flag("norm_topk_prob"),
        score="sigmoid_chosen", correction=True, shared=shared,
    )  # fmt: skip
    return decoder(
        inputs,
        mixers=exaone4_mixers(inputs),
        feed_forwards=[experts] * inputs.layers,
        norm_placement="sandwich",
        qk_norm="head",
        names=SHARED_EXPERTS | _KOLIBRI_NAMES,
    )


_KOLIBRI_NAMES = {
    "post_attention_norm": "post_attn_norm", "post_mlp_norm": "post_ffn_norm", "correction": "moe.router.expert_bias",
}  # fmt: skip


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
