"""Families that differ from Llama in switches alone: RMSNorm before each half of a layer, and a gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.decoder import FamilyInputs, decoder, lengths_of, windows_of
from forearm.model.families.keys import Keys
from forearm.model.families.rope import rope

FUSED_QKV = dict.fromkeys("qkv", "self_attn.qkv_proj")
FUSED_GATE_UP = dict.fromkeys(("gate", "up"), "mlp.gate_up_proj")


def llama(inputs: FamilyInputs) -> ModelConfig:
    """Llama 2 and 3, TinyLlama, R1-Distill-Llama, SmolLM 1 and 2, Yi, Hermes."""
    bias = inputs.keys.flag("attention_bias")
    return decoder(inputs, qkv_bias=bias, o_bias=bias, mlp_bias=inputs.keys.flag("mlp_bias"))


def mistral(inputs: FamilyInputs) -> ModelConfig:
    """Mistral 7B, Nemo, Small. The window is 4096 if sliding_window is missing, and none if it is null."""
    window = inputs.keys.optional_integer("sliding_window", 4096) or 0
    return decoder(inputs, windows=[window] * inputs.layers)


def qwen2(inputs: FamilyInputs) -> ModelConfig:
    """Qwen2 and 2.5, R1-Distill-Qwen: Llama with biases on q, k, v."""
    return decoder(inputs, windows=qwen_windows(inputs), qkv_bias=True)


def qwen3(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3: q and k are normalized per head; head_dim is 128 if it is missing."""
    inputs = inputs.with_defaults(head_dim=128)
    bias = inputs.keys.flag("attention_bias")
    return decoder(inputs, windows=qwen_windows(inputs), qk_norm="head", qkv_bias=bias, o_bias=bias)


def phi3(inputs: FamilyInputs) -> ModelConfig:
    """Phi-3, 3.5, Phi-4 and Phi-4-mini: Llama with fused tensors, longrope and partly rotated heads."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, original_max_position_embeddings=4096)
    window = inputs.keys.optional_integer("sliding_window") or 0
    return decoder(inputs, windows=[window] * inputs.layers, partial=True, names=FUSED_QKV | FUSED_GATE_UP)


def smollm3(inputs: FamilyInputs) -> ModelConfig:
    """SmolLM3: every fourth layer has no positions (NoPE)."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, rope_theta=2e6, num_key_value_heads=4)
    keys, rotated = inputs.keys, layers_with_positions(inputs)
    slides = keys.flag("use_sliding_window")
    windows = windows_of(inputs, [not r for r in rotated]) if slides else [0] * inputs.layers
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=[Attention(rope=0 if r else None, window=w) for r, w in zip(rotated, windows, strict=True)],
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias"),
    )


def cwm(inputs: FamilyInputs) -> ModelConfig:
    """Code World Model: Llama 3 with a window on three layers of four."""
    inputs = inputs.with_defaults(head_dim=128, num_key_value_heads=8, rms_norm_eps=1e-5, sliding_window=8192)
    keys = inputs.keys
    if not (keys.object("rope_scaling") or keys.object("rope_parameters")):
        inputs = inputs.with_defaults(rope_theta=1e6, rope_scaling=_APERTUS_ROPE | {"factor": 16.0})
    windows = windows_of(inputs, [i % 4 != 0 for i in range(inputs.layers)])
    return decoder(inputs, windows=windows, mlp_bias=keys.flag("mlp_bias"))


def layers_with_positions(inputs: FamilyInputs) -> list[bool]:
    """Return which layers rotate q and k: no_rope_layers tells it, or all but every fourth one do."""
    keys = inputs.keys
    every = keys.integer("no_rope_layer_interval", 4)
    rotated = keys.get("no_rope_layers")  # 1: the layer has positions
    if rotated is None or rotated == []:
        return [(i + 1) % every != 0 for i in range(inputs.layers)]
    if not isinstance(rotated, list) or len(rotated) < inputs.layers or not all(one in (0, 1) for one in rotated):
        raise keys.wrong("no_rope_layers", f"a list of {inputs.layers} times 0 or 1")
    return [bool(one) for one in rotated[: inputs.layers]]


def granite(inputs: FamilyInputs) -> ModelConfig:
    """Granite 3 and 4 dense: Llama with four multipliers."""
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias"),
        **granite_scales(keys),
    )


def granite_scales(keys: Keys) -> dict[str, Any]:
    """Return the four multipliers of every Granite, as arguments of ModelConfig."""
    return {
        "embedding_scale": keys.number("embedding_multiplier", 1.0),
        "attention_scale": keys.number("attention_multiplier", 1.0),
        "residual_scale": keys.number("residual_multiplier", 1.0),
        "logits_scale": 1.0 / keys.positive("logits_scaling", 1.0),
    }


def granite_swa(inputs: FamilyInputs) -> ModelConfig:
    """Granite with a window on three layers of four, attention sinks, and angles of a base of each layer's own."""
    return with_windows(inputs, granite)


def with_windows(inputs: FamilyInputs, family: Callable[[FamilyInputs], ModelConfig]) -> ModelConfig:
    """Return a Granite whose layers have windows, sinks, and angles by layer_rope_theta, of which 0 means none."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=128)
    keys = inputs.keys
    windows = windows_of(inputs, [i % 4 != 0 for i in range(inputs.layers)])
    config = family(inputs)
    settings = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    thetas = keys.get("layer_rope_theta") or [settings.number("rope_theta", keys.number("rope_theta", 10_000.0))]
    if not isinstance(thetas, list) or len(thetas) not in (1, inputs.layers):
        raise keys.wrong("layer_rope_theta", f"a list of {inputs.layers} numbers")
    thetas = Keys({"layer_rope_theta": thetas}, keys.source).numbers("layer_rope_theta", len(thetas))
    bases = sorted({theta for theta in thetas if theta})
    each = thetas if len(thetas) == inputs.layers else thetas * inputs.layers
    ropes = tuple(rope(settings, base, config.head_dim, lengths_of(inputs, settings)) for base in bases)
    mixers = [
        Attention(rope=bases.index(theta) if theta else None, window=window, sinks=True)
        for theta, window in zip(each, windows, strict=True)
    ]
    layers = tuple(replace(layer, mixer=mixer) for layer, mixer in zip(config.layers, mixers, strict=True))
    return replace(config, layers=layers, ropes=ropes)


def ernie4_5(inputs: FamilyInputs) -> ModelConfig:
    """ERNIE 4.5 dense: Llama with interleaved rotary angles (values 2i and 2i + 1 form a pair)."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, rms_norm_eps=1e-5, head_dim=128)
    bias = inputs.keys.flag("use_bias")
    return decoder(inputs, interleaved=True, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def internlm3(inputs: FamilyInputs) -> ModelConfig:
    """InternLM 3: Llama whose keys for biases are qkv_bias and bias."""
    keys = inputs.keys
    bias = keys.flag("attention_bias", keys.flag("qkv_bias"))
    rest = keys.flag("mlp_bias", keys.flag("bias"))
    if bias != rest:
        raise keys.wrong("qkv_bias" if "qkv_bias" in keys else "attention_bias", f"{str(rest).lower()}, like bias")
    inputs = inputs.with_defaults(head_dim=128, num_key_value_heads=2, rms_norm_eps=1e-5)
    return decoder(inputs, qkv_bias=bias, o_bias=bias, mlp_bias=rest)


def ministral(inputs: FamilyInputs) -> ModelConfig:
    """Ministral 8B: Mistral with a window on the layers that layer_types names, on all of them without it."""
    inputs = inputs.with_defaults(sliding_window=4096, num_key_value_heads=8)
    return decoder(inputs, windows=windows_of(inputs, [True] * inputs.layers))


def ministral3(inputs: FamilyInputs) -> ModelConfig:
    """Ministral 3: Mistral without a window, whose queries grow with the position (Llama 4)."""
    inputs = inputs.with_defaults(head_dim=128, num_key_value_heads=8)
    keys = inputs.keys
    settings = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    beta = settings.number("llama_4_scaling_beta", 0.0)
    mixer = Attention(
        rope=0,
        window=keys.optional_integer("sliding_window") or 0,
        query_growth=beta,
        query_positions=settings.integer("original_max_position_embeddings", 16384) if beta else 0,
    )
    return decoder(inputs, mixers=[mixer] * inputs.layers)


def hunyuan(inputs: FamilyInputs) -> ModelConfig:
    """HunYuan dense: Llama whose q and k are normalized per head after their rotation."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5)
    if not inputs.keys.flag("use_qk_norm", True):
        raise inputs.keys.wrong("use_qk_norm", "true: transformers always normalizes q and k")
    bias = inputs.keys.flag("attention_bias")
    return decoder(
        inputs,
        qk_norm="head",
        qk_norm_after_rope=True,
        qkv_bias=bias,
        o_bias=bias,
        names={"q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"},
    )


def arcee(inputs: FamilyInputs) -> ModelConfig:
    """Arcee's AFM: Llama with a feed-forward without gate, whose activation is relu squared."""
    inputs = inputs.with_defaults(hidden_act="relu2", rms_norm_eps=1e-5)
    bias = inputs.keys.flag("attention_bias")
    return decoder(inputs, gated=False, qkv_bias=bias, o_bias=bias, mlp_bias=inputs.keys.flag("mlp_bias"))


def apertus(inputs: FamilyInputs) -> ModelConfig:
    """Apertus 8B and 70B: q and k are normalized per head; no gate, and xIELU, whose constants are each layer's own."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, rope_theta=12e6, hidden_act="xielu")
    keys = inputs.keys
    if keys.text("hidden_act") != "xielu":
        raise keys.wrong("hidden_act", "xielu")
    for key, only in (("post_norm", False), ("qk_norm", True)):
        if keys.flag(key, only) is not only:
            raise keys.wrong(key, f"{str(only).lower()}: transformers computes no other")
    if not (keys.object("rope_scaling") or keys.object("rope_parameters")):
        inputs = inputs.with_defaults(rope_scaling=_APERTUS_ROPE)
    bias = keys.flag("attention_bias")
    names = {"input_norm": "attention_layernorm", "pre_mlp_norm": "feedforward_layernorm"}
    return decoder(inputs, act="xielu", gated=False, qk_norm="head", qkv_bias=bias, o_bias=bias, names=names)


_APERTUS_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip


def seed_oss(inputs: FamilyInputs) -> ModelConfig:
    """Seed-OSS: Llama with biases on q, k, v."""
    inputs = inputs.with_defaults(head_dim=128, num_key_value_heads=8)
    keys = inputs.keys
    return decoder(
        inputs,
        qkv_bias=keys.flag("attention_bias", True),
        o_bias=keys.flag("attention_out_bias"),
        mlp_bias=keys.flag("mlp_bias"),
    )


def helium(inputs: FamilyInputs) -> ModelConfig:
    """Helium: Llama with interleaved rotary angles."""
    inputs = inputs.with_defaults(head_dim=128, rms_norm_eps=1e-8, rope_theta=100_000.0)
    bias = inputs.keys.flag("attention_bias")
    return decoder(inputs, interleaved=True, qkv_bias=bias, mlp_bias=inputs.keys.flag("mlp_bias"))


def glm(inputs: FamilyInputs) -> ModelConfig:
    """GLM-4 9B (glm-4-9b-chat-hf) and GLM-Edge: fused gate and up, half of each head rotated in neighbouring pairs."""
    inputs = with_glm_defaults(inputs)
    bias = inputs.keys.flag("attention_bias", True)
    return decoder(inputs, partial=True, interleaved=True, qkv_bias=bias, names=FUSED_GATE_UP)


def with_glm_defaults(inputs: FamilyInputs) -> FamilyInputs:
    """Return the inputs with the defaults of GLM's keys."""
    return inputs.with_defaults(head_dim=128, num_key_value_heads=2, rms_norm_eps=1.5625e-7, partial_rotary_factor=0.5)


def qwen2_vl(inputs: FamilyInputs) -> ModelConfig:
    """Qwen2-VL and Qwen2.5-VL for text alone: Qwen2, as the three positions of a text token are equal (mrope)."""
    return qwen2(inputs.with_defaults(rms_norm_eps=1e-5, rope_theta=1e6, num_key_value_heads=8))


def qwen3_vl(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3-VL for text alone: Qwen3, as the three positions of a text token are equal (mrope)."""
    return qwen3(inputs.with_defaults(rope_theta=5e6, num_key_value_heads=32))


def paddleocr_vl(inputs: FamilyInputs) -> ModelConfig:
    """PaddleOCR-VL for text alone: ERNIE 4.5 whose rotated values i and i + half of a head form a pair."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, rms_norm_eps=1e-5, head_dim=128, rope_theta=5e5)
    bias = inputs.keys.flag("use_bias")
    return decoder(inputs, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def hunyuan_vl(inputs: FamilyInputs) -> ModelConfig:
    """HunyuanOCR for text alone: HunYuan, as the four positions of a text token are equal (xdrope)."""
    keys = inputs.with_defaults(tie_word_embeddings=True).keys
    settings = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys({}, keys.source)
    if settings.text("rope_type", settings.text("type", "default")) == "xdrope":
        plain = settings.values | {"rope_type": "dynamic", "type": "dynamic"}
        keys = keys.with_values(rope_parameters=plain, rope_scaling=None)
    return hunyuan(replace(inputs, keys=keys))


def mllama(inputs: FamilyInputs) -> ModelConfig:
    """Llama 3.2 Vision for text alone: Llama 3 without the layers that attend to pictures."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, rope_theta=5e5, num_key_value_heads=8)
    keys, layers = inputs.keys, inputs.layers
    sees = keys.get("cross_attention_layers") or list(range(3, layers, 5))
    if not isinstance(sees, list) or not all(type(i) is int and 0 <= i < layers for i in sees) or len(sees) >= layers:
        raise keys.wrong("cross_attention_layers", f"a list of layers, 0 to {layers - 1}, without one at least")
    reads = [i for i in range(layers) if i not in sees]
    config = llama(replace(inputs, keys=keys.with_values(num_hidden_layers=len(reads))))
    names = {f"layers.{i}": f"layers.{stored}" for i, stored in enumerate(reads)}
    return replace(config, names=names | {"embed": f"embed_tokens[0:{config.vocab_size}:{config.vocab_size + 8}]"})


def cosmos3_edge(inputs: FamilyInputs) -> ModelConfig:
    """Cosmos 3 Edge for text alone: Llama with a feed-forward without gate, whose activation is relu squared."""
    inputs = inputs.with_defaults(hidden_act="relu2", rms_norm_eps=1e-5, rope_theta=1e8, num_key_value_heads=8)
    bias = inputs.keys.flag("attention_bias")
    mlp_bias = inputs.keys.flag("mlp_bias")
    return decoder(inputs, gated=False, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)


def emu3(inputs: FamilyInputs) -> ModelConfig:
    """Emu3 for text alone: Llama."""
    return llama(inputs.with_defaults(rms_norm_eps=1e-5, rope_theta=1e6, num_key_value_heads=8))


def qwen_windows(inputs: FamilyInputs) -> list[int]:
    """Return each layer's window: if use_sliding_window is set, layers from max_window_layers on have one."""
    if not inputs.keys.flag("use_sliding_window"):
        return [0] * inputs.layers
    inputs = inputs.with_defaults(sliding_window=4096)
    first = inputs.keys.integer("max_window_layers", 28)
    return windows_of(inputs, [i >= first for i in range(inputs.layers)])
