"""Keys of .gguf files of dense models, and of some with experts, as config.json's keys of their families.

Source: the converter (conversion/) and src/models/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from forearm.model.families.own_code.dense import BAICHUAN2
from forearm.model.families.switches import FULL, SLIDING
from forearm.model.gguf import gguf_experts, gguf_gemma
from forearm.model.gguf.gguf_metadata import GgufMetadata

log = logging.getLogger(__name__)


def llama(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    if metadata.integer("expert_count", 0):
        gguf_experts.plain(metadata, values)
        return "mixtral"
    if metadata.integer("attention.sliding_window", 0):
        values["sliding_window"] = metadata.integer("attention.sliding_window")
        return "mistral"
    return "llama"


def mistral3(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Ministral 3's growth of queries, and scales of yarn that do not change angles."""
    values["sliding_window"] = None
    growth = metadata.number("attention.temperature_scale", 0.0)
    scaling = values.get("rope_scaling", {})
    if scaling:
        scaling.pop("attention_factor", None)
        scaling |= {"mscale": 1.0, "mscale_all_dim": metadata.number("rope.scaling.yarn_log_multiplier", 0.0)}
    if growth:
        original = values["original_max_position_embeddings"]
        scaling |= {"llama_4_scaling_beta": growth, "original_max_position_embeddings": original}
    return "ministral3" if growth else "mistral"


def phi3(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["sliding_window"] = metadata.integer("attention.sliding_window", 0) or None
    values.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
    return None


def olmo2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    if not metadata.integer("attention.sliding_window", 0):
        return "olmo2"
    gguf_gemma.windows(metadata, values)
    metadata.number("rope.freq_base_swa", 0.0)  # marks it as read: it is freq_base
    return "olmo3"


def exaone4(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["sliding_window"] = None
    if metadata.integer("attention.sliding_window", 0):
        gguf_gemma.windows(metadata, values)
    return None


def ernie4_5(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["use_bias"] = values.pop("attention_bias")
    return None


def hunyuan_vl(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add HunyuanOCR's growth of the base of angles, which is HunYuan's alpha; alike positions of text turn alike."""
    alpha, factor = metadata.number("rope.scaling.alpha", 0.0), metadata.number("rope.scaling.factor", 1.0)
    if alpha:
        values["rope_scaling"] = {"rope_type": "dynamic", "factor": factor, "alpha": alpha}
    return None


def apertus(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values.setdefault("rope_scaling", {"rope_type": "default"})  # stretched angles are a tensor of factors
    return None


def seed_oss(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["attention_out_bias"] = metadata.has("blk.0.attn_output.bias")
    return None


def starcoder2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["use_bias"] = values.pop("attention_bias")
    values["sliding_window"] = metadata.integer("attention.sliding_window", 4096)  # the converter drops it
    return None


def olmo(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["clip_qkv"] = metadata.number("attention.clamp_kqv", 0.0)
    return None


def stablelm(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["use_parallel_residual"] = not metadata.has("blk.0.ffn_norm.weight")
    metadata.keys.get("stablelm.use_parallel_residual")  # marks it as read: the converter writes what config.json lacks
    values["use_qkv_bias"] = values.pop("attention_bias")
    values["qk_layernorm"] = metadata.has("blk.0.attn_q_norm.weight")
    return None


def cohere(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["logit_scale"] = metadata.number("logit_scale")
    values["use_qk_norm"] = metadata.has("blk.0.attn_q_norm.weight")
    if metadata.integer("attention.sliding_window", 0):
        values["sliding_window"] = metadata.integer("attention.sliding_window")
        values["sliding_window_pattern"] = metadata.integer("attention.sliding_window_pattern", 4)
    return None


def codeshell(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add CodeShell's biases: it is StarCoder 2 without a window."""
    values["use_bias"] = values.pop("attention_bias")
    return None


def meta_layout(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Mark XVERSE's layout as read: rows of q and k are reordered, as in Llama's files."""
    metadata.keys.get(f"{metadata.architecture}.tensor_data_layout")
    return None


def orion(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add that Orion is StableLM without biases, all values of whose heads turn; its layout says nothing."""
    meta_layout(metadata, values)
    return stablelm(metadata, values)


def gptj(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add how many of a head's values turn, in neighbouring pairs: all, if no key says it."""
    values["rotary_dim"] = metadata.size("rope.dimension_count", values["head_dim"])
    return None


def gptneox(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["use_parallel_residual"] = metadata.flag("use_parallel_residual", True)
    return None


def exaone_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    gguf_experts.corrected(metadata, values)
    return exaone4(metadata, values)


def falcon(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    kv_heads, two = values["num_key_value_heads"], metadata.has("blk.0.attn_norm_2.weight")
    values |= {"new_decoder_architecture": kv_heads > 1 or two, "num_kv_heads": kv_heads, "multi_query": True}
    values |= {"num_ln_in_parallel_attn": 1 + two, "bias": values.pop("attention_bias")}
    values["ffn_hidden_size"] = values["intermediate_size"]
    metadata.keys.get("falcon.tensor_data_layout")  # marks it as read: queries, keys and values follow each other
    return None


def mimo2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add MiMo-V2-Flash's windows, key heads by layer, narrower values and experts, which tensors tell."""
    gguf_experts.corrected(metadata, values)
    gguf_gemma.windows(metadata, values)
    layers = values["num_hidden_layers"]
    kv_heads = metadata.each("attention.head_count_kv", layers)
    for key, kind in (("num_key_value_heads", FULL), ("swa_num_key_value_heads", SLIDING)):
        counts = {count for one, count in zip(values["layer_types"], kv_heads, strict=True) if one == kind}
        if len(counts) > 1 or 0 in counts:
            raise metadata.wrong("attention.head_count_kv", f"a number of all layers with {kind}")
        values[key] = max(counts, default=values["num_attention_heads"])
    values["v_head_dim"] = metadata.size("attention.value_length", values["head_dim"])
    values["attention_value_scale"] = metadata.optional_number("attention.value_scale")
    values["swa_rope_theta"] = metadata.number("rope.freq_base_swa", 1e4)
    sparse = [metadata.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(layers)]
    values["mlp_layer_types"] = ["sparse" if one else "dense" for one in sparse]
    values["add_swa_attention_sink_bias"] = metadata.any_layer("attn_sinks.weight")
    return None


def mpt(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    most, clip = metadata.number("attention.max_alibi_bias", 0.0), metadata.number("attention.clamp_kqv", 0.0)
    values["attn_config"] = {"alibi": most > 0, "alibi_bias_max": most or 8.0, "clip_qkv": clip or None}
    return None


def bitnet(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    values["hidden_act"] = "silu" if metadata.architecture == "bitnet" else "relu2"
    return None


def granite(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    gguf_experts.granite_scales(metadata, values)
    return None


def internlm2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add whether InternLM 2's attention has biases."""
    values["bias"] = values.pop("attention_bias")
    return None


def minicpm(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add MiniCPM's scales, which are in llama.cpp's graph where the first files have none."""
    hidden, layers = values["hidden_size"], values["num_hidden_layers"]
    values["scale_emb"] = metadata.number("embedding_scale", 12.0)
    values["scale_depth"] = metadata.number("residual_scale", 1.4 / math.sqrt(layers)) * math.sqrt(layers)
    values["dim_model_base"] = hidden / metadata.keys.positive("minicpm.logit_scale", hidden / 256)
    return None


def baichuan(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the longest text of the model of 40 layers, which has slopes instead of angles: no key says so."""
    metadata.keys.get("baichuan.tensor_data_layout")  # marks it as read: rows of q and k are reordered
    if values["num_hidden_layers"] == 40:
        values["model_max_length"] = values.pop("max_position_embeddings")
    if values["vocab_size"] == BAICHUAN2:
        log.info("%s: rows of the head are taken as they are; Baichuan 2's have unit length", metadata.gguf.path)
    values["head_is_normalized"] = True
    return None


def refact(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add that Refact is Baichuan 13B with one key head: slopes of distances instead of angles."""
    values["model_max_length"] = values.pop("max_position_embeddings")
    return None


def qwen(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Qwen 1's longest text."""
    values["seq_length"] = values["max_position_embeddings"]
    return None


def deci(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add kv heads and widths by layer. Raises: ConfigError for layers with a matrix instead of attention."""
    layers = values["num_hidden_layers"]
    heads, kv_heads = (metadata.each(f"attention.{key}", layers) for key in ("head_count", "head_count_kv"))
    if len({*heads} - {0}) > 1:
        raise metadata.wrong("attention.head_count", "a number that all layers with attention share")
    if any(one and not few for one, few in zip(heads, kv_heads, strict=True)):
        raise metadata.wrong(
            "attention.head_count_kv", "0 only where attention.head_count is: a layer without attention"
        )
    values["num_key_value_heads_per_layer"] = kv_heads
    values["intermediate_size"] = metadata.each("feed_forward_length", layers)
    return None
