"""config.json -> ModelConfig: one short function for each family, in a table by `model_type`.

A key that real checkpoints leave out has the default of transformers' configuration class (a missing key is not the
same as null: see keys.py). A switch that the executor does not compute raises a ConfigError that names key and value;
unknown keys are listed in one log line (switches.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError
from forearm.model.families import switches
from forearm.model.families.config import Attention, DTypeName, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    gemma,
    gemma3_ropes,
    positions,
    sizes,
    windows_of,
)
from forearm.model.families.encoders import ENCODERS
from forearm.model.families.generation import eos_ids, generation_keys
from forearm.model.families.keys import read_json
from forearm.model.families.overrides import check_rope, with_rope


def read_config(
    folder: Path,
    *,
    weight_dtype: DTypeName | None = None,
    max_model_len: int | None = None,
    allow_longer: bool = False,
    pooled: bool = False,
    rope: dict[str, Any] | None = None,
) -> ModelConfig:
    """Return the model in `folder` (config.json and generation_config.json) for one weight dtype and maximum length.

    Both change the results: Gemma rounds a scale to the weights' dtype, and `dynamic` and `longrope` choose their
    angles by the length (rope.py). The end-of-text tokens are the union of those in both files.

    weight_dtype: None selects the checkpoint's. max_model_len: in tokens; None selects the model's own. allow_longer:
    permit a length beyond the model's own. pooled: the model computes vectors instead of text (pooling.py). rope:
    changes to the rotary angles (overrides.py).
    Raises: ConfigError naming the key and the value that are missing, wrong or not supported.
    """
    outer = read_json(folder / "config.json")
    model_type = outer.text("model_type")
    families = FAMILIES | ENCODERS if pooled else FAMILIES
    if model_type not in families:
        raise outer.wrong("model_type", f"one of {', '.join(sorted(families))}")
    switches.check_architecture(outer, pooled)

    inner = with_rope(outer.object("text_config") or outer, rope)
    dtype = switches.checkpoint_dtype(inner, outer, folder)
    inputs = FamilyInputs(inner, dtype, weight_dtype, max_model_len, allow_longer, pooled)
    config = computed(families[model_type], inputs)
    check_rope(inner, rope)
    ends = {token for keys in (inner, outer, generation_keys(folder)) for token in eos_ids(keys, config.vocab_size)}
    config = replace(
        config,
        model_type=model_type,
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=inner.optional_integer("bos_token_id"),
    )
    switches.check_sizes(config, inner)
    switches.check_unread(outer, inner)
    return config


def computed(family: Family, inputs: FamilyInputs) -> ModelConfig:
    """Return the model of a family. Raises: ConfigError, also for sizes that do not divide each other."""
    switches.check_bounds(inputs.keys)
    try:
        return family(inputs)
    except ArithmeticError as problem:
        raise ConfigError(
            f"{inputs.keys.source}: its sizes do not fit together ({problem}); see hidden_size, num_attention_heads"
        ) from None


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
    return decoder(inputs, windows=_qwen_windows(inputs), qkv_bias=True)


def qwen3(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3: q and k are normalized per head; head_dim is 128 if it is missing."""
    inputs = inputs.with_defaults(head_dim=128)
    bias = inputs.keys.flag("attention_bias")
    return decoder(inputs, windows=_qwen_windows(inputs), qk_norm="head", qkv_bias=bias, o_bias=bias)


def phi3(inputs: FamilyInputs) -> ModelConfig:
    """Phi-3, 3.5, Phi-4 and Phi-4-mini: Llama with fused tensors, longrope and partly rotated heads."""
    inputs = inputs.with_defaults(rms_norm_eps=1e-5, original_max_position_embeddings=4096)
    window = inputs.keys.optional_integer("sliding_window") or 0
    fused = dict.fromkeys("qkv", "self_attn.qkv_proj") | dict.fromkeys(("gate", "up"), "mlp.gate_up_proj")
    return decoder(inputs, windows=[window] * inputs.layers, partial=True, names=fused)


def gemma2(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 2: norms around both halves, softcaps, a window on every other layer."""
    inputs = inputs.with_defaults(head_dim=256, num_key_value_heads=4, sliding_window=4096)
    return gemma(
        inputs,
        windows=windows_of(inputs, [i % 2 == 0 for i in range(inputs.layers)]),
        attention_softcap=inputs.keys.optional_number("attn_logit_softcapping", 50.0) or 0.0,
        logits_softcap=inputs.keys.optional_number("final_logit_softcapping", 30.0) or 0.0,
    )


def gemma3(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 3's text model, alone or inside the multimodal one: q and k norms; sliding layers have their own angles."""
    inputs = inputs.with_defaults(
        vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=4096,
        max_position_embeddings=131_072, sliding_window_pattern=6,
    )  # fmt: skip
    keys = inputs.keys
    if keys.optional_number("attn_logit_softcapping"):
        raise keys.wrong("attn_logit_softcapping", "null: transformers' Gemma 3 does not apply it")
    pattern = keys.integer("_sliding_window_pattern", keys.integer("sliding_window_pattern"))
    windows = windows_of(inputs, [(i + 1) % pattern != 0 for i in range(inputs.layers)])
    both_ways = inputs.pooled and keys.flag("use_bidirectional_attention")  # EmbeddingGemma: half a window to each side
    windows = [w // 2 + 1 if both_ways and w else w for w in windows]
    return gemma(
        inputs,
        mixers=[Attention(rope=1 if w else 0, window=w) for w in windows],
        ropes=gemma3_ropes(inputs),
        qk_norm="head",
        bidirectional=both_ways,
        logits_softcap=keys.optional_number("final_logit_softcapping") or 0.0,
    )


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
        names={"post_mlp_norm": "post_feedforward_layernorm"},
    )


def smollm3(inputs: FamilyInputs) -> ModelConfig:
    """SmolLM3: every fourth layer has no positions (NoPE)."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, rope_theta=2e6, num_key_value_heads=4)
    keys = inputs.keys
    every = keys.integer("no_rope_layer_interval", 4)
    rotated = switches.rope_layers(keys, [(i + 1) % every != 0 for i in range(inputs.layers)])
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


def granite(inputs: FamilyInputs) -> ModelConfig:
    """Granite 3 and 4 dense: Llama with four multipliers."""
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias"),
        embedding_scale=keys.number("embedding_multiplier", 1.0),
        attention_scale=keys.number("attention_multiplier", 1.0),
        residual_scale=keys.number("residual_multiplier", 1.0),
        logits_scale=1.0 / keys.positive("logits_scaling", 1.0),
    )


def ernie4_5(inputs: FamilyInputs) -> ModelConfig:
    """ERNIE 4.5 dense: Llama with interleaved rotary angles (values 2i and 2i + 1 form a pair)."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, rms_norm_eps=1e-5, head_dim=128)
    bias = inputs.keys.flag("use_bias")
    return decoder(inputs, interleaved=True, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


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


def _qwen_windows(inputs: FamilyInputs) -> list[int]:
    """Return each layer's window: if use_sliding_window is set, layers from max_window_layers on have one."""
    if not inputs.keys.flag("use_sliding_window"):
        return [0] * inputs.layers
    inputs = inputs.with_defaults(sliding_window=4096)
    first = inputs.keys.integer("max_window_layers", 28)
    return windows_of(inputs, [i >= first for i in range(inputs.layers)])


Family = Callable[[FamilyInputs], ModelConfig]
FAMILIES: dict[str, Family] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "phi3": phi3,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma3": gemma3,
    "olmo2": olmo2,
    "smollm3": smollm3,
    "granite": granite,
    "ernie4_5": ernie4_5,
    "opt": opt,
}
