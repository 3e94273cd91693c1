"""Keys of .gguf files with experts or latent attention, as config.json's keys of their families."""

from __future__ import annotations

import logging
from typing import Any

from forearm.model.families.switches import FULL
from forearm.model.gguf.gguf_metadata import GgufMetadata

log = logging.getLogger(__name__)

_SOFTMAX, _SIGMOID = 1, 2  # values of expert_gating_func


def plain(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the numbers and the width of experts, by the names of all families.

    Weights are divided by their sum except in Qwen2 and OLMoE (llama.cpp's graphs).
    """
    count = metadata.integer("expert_count", 0)
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        values[key] = count
    if count:
        values["num_experts_per_tok"] = values["moe_k"] = metadata.integer("expert_used_count")
    width = metadata.integer("expert_feed_forward_length", values["intermediate_size"], zeros=True)
    values["moe_intermediate_size"] = width
    if metadata.architecture in ("llama", "olmoe", "gpt-oss"):
        values["intermediate_size"] = width
    values["norm_topk_prob"] = metadata.architecture not in ("qwen2moe", "olmoe")
    return None


def routed(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add what chooses and scales experts where files say it."""
    plain(metadata, values)
    values["n_group"] = metadata.integer("expert_group_count", 1)
    values["topk_group"] = metadata.integer("expert_group_used_count", 1)
    values["routed_scaling_factor"] = metadata.number("expert_weights_scale", 0.0) or 1.0  # older files: 0 for none
    values["norm_topk_prob"] = metadata.flag("expert_weights_norm", False)
    values["n_shared_experts"] = metadata.integer("expert_shared_count", 0)
    values["first_k_dense_replace"] = metadata.integer("leading_dense_block_count", 0)
    return None


def sigmoid(metadata: GgufMetadata, otherwise: bool) -> bool:
    """Return whether scores are sigmoids. Raises: ConfigError for scores that are neither these nor softmax's."""
    kind = metadata.integer("expert_gating_func", 0)
    if kind not in (0, _SOFTMAX, _SIGMOID):
        raise metadata.wrong("expert_gating_func", f"{_SOFTMAX} (softmax) or {_SIGMOID} (sigmoid)")
    return kind == _SIGMOID if kind else otherwise


def dbrx(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add DBRX's objects of attention and of experts."""
    clip = metadata.number("attention.clamp_kqv", 0.0)
    values["attn_config"] = {"kv_n_heads": values["num_key_value_heads"], "clip_qkv": clip or None}
    values["ffn_config"] = {
        "ffn_hidden_size": values["intermediate_size"], "moe_num_experts": metadata.integer("expert_count"),
        "moe_top_k": metadata.integer("expert_used_count"),
    }  # fmt: skip
    return None


def qwen2_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Qwen2-MoE's shared expert."""
    plain(metadata, values)
    values["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length")
    values["qkv_bias"] = values.pop("attention_bias")
    return None


def qwen3_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Qwen3-MoE's experts, also those of Qwen3-VL."""
    return plain(metadata, values)


def gpt_oss(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add gpt-oss's window; no key tells that its yarn is not truncated."""
    plain(metadata, values)
    values["sliding_window"] = metadata.integer("attention.sliding_window", 128)
    values.get("rope_scaling", {})["truncate"] = False
    return None


def llama4(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Llama 4's experts. No key tells its segments and growth of queries; models of 128 experts have no q norm.

    Source: load_arch_hparams of Llama 4 in src/models/ of ggml-org/llama.cpp.
    """
    if metadata.integer("attention.sliding_window", 8192) == 0:
        raise metadata.wrong("attention.sliding_window", "more than 0: files without segments are not read")
    values["intermediate_size_mlp"] = values["intermediate_size"]
    plain(metadata, values)
    values["intermediate_size"] = values["moe_intermediate_size"]
    values["interleave_moe_layer_step"] = metadata.integer("interleave_moe_layer_step", 1)
    values["use_qk_norm"] = values["num_local_experts"] != 128
    return None


def glm4_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add GLM-4.5's experts."""
    routed(metadata, values)
    values["use_qk_norm"] = metadata.has("blk.0.attn_q_norm.weight")
    if not sigmoid(metadata, True):
        raise metadata.wrong("expert_gating_func", f"{_SIGMOID} (sigmoid)")
    return None


def ernie4_5_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add ERNIE 4.5's experts; tensors tell which layers have them."""
    routed(metadata, values)
    values["use_bias"] = values.pop("attention_bias")
    values["moe_num_shared_experts"] = values["n_shared_experts"]
    metadata.keys.get(f"{metadata.architecture}.expert_shared_feed_forward_length")  # of one shared expert, or wrong
    values["moe_layer_start_index"] = values["first_k_dense_replace"]
    values["moe_layer_interval"] = metadata.integer("interleave_moe_layer_step", 1)
    layers = range(values["num_hidden_layers"])
    sparse = [i for i in layers if metadata.has(f"blk.{i}.ffn_gate_inp.weight")]
    values["moe_layer_end_index"] = sparse[-1] if sparse else -1
    return None


def minimax_m2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add MiniMax-M2's experts."""
    plain(metadata, values)
    values["intermediate_size"] = values["moe_intermediate_size"]
    values["scoring_func"] = "sigmoid" if sigmoid(metadata, True) else "softmax"
    return None


def hunyuan_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add HunYuan's experts; the shared one is as wide as they are."""
    plain(metadata, values)
    values["moe_topk"], values["num_shared_expert"] = values["moe_k"], metadata.integer("expert_shared_count", 1)
    width = values["moe_intermediate_size"]
    if metadata.integer("expert_shared_feed_forward_length", width) != width:
        raise metadata.wrong("expert_shared_feed_forward_length", f"that of expert_feed_forward_length ({width})")
    return None


def corrected(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the experts of dots.llm1, K-EXAONE and Trinity: corrected sigmoid scores, shared experts.

    No key tells that dots.llm1 has windows behind its last layer, that every fourth layer of Trinity has none, and that
    its embeddings are scaled.
    """
    routed(metadata, values)
    if not sigmoid(metadata, True):
        raise metadata.wrong("expert_gating_func", f"{_SIGMOID} (sigmoid)")
    metadata.integer("expert_shared_feed_forward_length", 0)  # marks it as read: that of an expert, times their number
    values |= {
        "num_shared_experts": values["n_shared_experts"], "num_dense_layers": values["first_k_dense_replace"],
        "route_scale": values["routed_scaling_factor"], "mup_enabled": True, "global_attn_every_n_layers": 4,
        "sliding_window": metadata.integer("attention.sliding_window", 0) or None,
        "max_window_layers": values["num_hidden_layers"],
    }  # fmt: skip
    return None


def bailing(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the experts of Ling 1 and 2; no key says whether their weights are corrected, and q and k normalized."""
    routed(metadata, values)
    second = metadata.architecture == "bailingmoe2"
    shared = values["num_shared_experts"] = values["n_shared_experts"]
    metadata.integer("expert_shared_feed_forward_length", 0)  # marks it as read: files differ in what they count
    rows = [metadata.gguf.tensors.get(f"blk.{i}.ffn_up_shexp.weight") for i in range(values["num_hidden_layers"])]
    width = next((one.shape[0] for one in rows if one), 0)
    values |= {
        "score_function": "sigmoid" if second and sigmoid(metadata, True) else "softmax",
        "moe_router_enable_expert_bias": metadata.any_layer("exp_probs_b.bias"),
        "use_qk_norm": metadata.any_layer("attn_q_norm.weight"),
        "moe_shared_expert_intermediate_size": width // shared if shared else 0,
    }
    return None


def granite_scales(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    """Add the four multipliers of every Granite."""
    values["embedding_multiplier"] = metadata.number("embedding_scale", 0.0) or 1.0
    values["residual_multiplier"] = metadata.number("residual_scale", 0.0) or 1.0
    values["attention_multiplier"] = metadata.number("attention.scale", 0.0) or values["head_dim"] ** -0.5
    values["logits_scaling"] = metadata.number("logit_scale", 0.0) or 1.0


def granite_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Granite's multipliers, experts and shared expert, which is alone where there are no experts."""
    granite_scales(metadata, values)
    plain(metadata, values)
    values["shared_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length", 0)
    return "granitemoeshared" if values["shared_intermediate_size"] else "granitemoe"


def phimoe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Phi-3.5-MoE's experts."""
    plain(metadata, values)
    values["lm_head_bias"] = metadata.has("output.bias")
    values["sliding_window"] = metadata.integer("attention.sliding_window", 0) or None
    return None


def deepseek2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of latent attention and experts of DeepSeek V2 and V3, GLM-4.7-Flash, and Youtu, which has none.

    Files before multi-head latent attention was computed as such have the sizes of heads without _mla. The angles are
    not scaled, because mscale is mscale_all_dim in all published models. Softmax scores whose chosen ones are divided
    by their sum are Mistral's: its own format, as opposed to Hugging Face's, is written as this architecture.
    """
    _latent(metadata, values)
    routed(metadata, values)
    scaling = values.get("rope_scaling")
    weight = 10 * metadata.number("rope.scaling.yarn_log_multiplier", 0.0)
    if scaling:
        scaling |= {"attention_factor": 1.0, "mscale": weight, "mscale_all_dim": weight}
    if not values["n_routed_experts"]:
        return "youtu"
    if sigmoid(metadata, metadata.any_layer("exp_probs_b.bias")):
        return "glm4_moe_lite" if metadata.keys.get("tokenizer.ggml.pre") == "glm4" else "deepseek_v3"
    if values["norm_topk_prob"]:
        _growth(metadata, values)
        return "mistral4"
    values["topk_method"] = "group_limited_greedy" if values["n_group"] > 1 else "greedy"
    return "deepseek_v2"


def mistral4(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of Mistral Small 4 as it is converted from Hugging Face's format.

    The converter leaves out by how much queries grow with the position (llama_4_scaling_beta), so llama.cpp lets them
    not grow; before the position at which they would, that is the same.
    """
    deepseek2(metadata, values)
    if sigmoid(metadata, False):
        raise metadata.wrong("expert_gating_func", f"{_SOFTMAX} (softmax)")
    _growth(metadata, values)
    first = values.get("original_max_position_embeddings", values["max_position_embeddings"])
    if not values["rope_scaling"].get("llama_4_scaling_beta") and first < values["max_position_embeddings"]:
        log.warning(
            "%s has no %s.attention.temperature_scale: from position %d on, queries do not grow as the model's do "
            "(nor in llama.cpp); give config.json's rope_parameters with --hf-overrides to have that",
            metadata.gguf.path,
            metadata.architecture,
            first,
        )
    return None


def _growth(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    """Add by how much queries grow with the position, and from which position on.

    Raises: ConfigError for a position other than the one at which angles begin to be stretched: config.json has one
    key for both, and the converter writes it twice.
    """
    growth = metadata.number("attention.temperature_scale", 0.0)
    first = metadata.integer("attention.temperature_length", 0)
    scaling = values.setdefault("rope_scaling", {"rope_type": "default"})
    if not growth:
        return
    if first < 1:
        raise metadata.wrong("attention.temperature_length", "at least 1 beside attention.temperature_scale")
    if values.get("original_max_position_embeddings", first) != first:
        raise metadata.wrong("attention.temperature_length", "that of rope.scaling.original_context_length")
    scaling |= {"llama_4_scaling_beta": growth, "original_max_position_embeddings": first}


def indexed(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of DeepSeek V3.2 and GLM-5, whose indexers choose the keys that a token sees.

    Older files do not say which layers of GLM-5.2 share the choice of an earlier one: those without an indexer.
    """
    deepseek2(metadata, values)
    if not sigmoid(metadata, True):
        raise metadata.wrong("expert_gating_func", f"{_SIGMOID} (sigmoid)")
    sizes = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
    values |= {name: metadata.size(f"attention.indexer.{key}") for name, key in sizes.items()}
    layers = values["num_hidden_layers"]
    own = [metadata.has(f"blk.{i}.indexer.attn_k.weight") for i in range(layers)]
    own = metadata.each("attention.indexer.types", layers, own)
    if metadata.architecture == "glm-dsa":
        values["indexer_types"] = ["full" if one else "shared" for one in own]
    return None


def minicpm3(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add MiniCPM3's latent attention. Its three scales are in no file, but in llama.cpp's graph."""
    _latent(metadata, values)
    values |= {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}
    return None


def kimi_linear(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Kimi Linear's delta attention, which is where there are no kv heads, latent attention and experts."""
    _latent(metadata, values)
    routed(metadata, values)
    if not sigmoid(metadata, True):
        raise metadata.wrong("expert_gating_func", f"{_SIGMOID} (sigmoid)")
    values["norm_topk_prob"] = metadata.flag("expert_weights_norm", True)  # files do not say it
    values["linear_num_heads"] = values["num_attention_heads"]
    values["linear_head_dim"] = metadata.size("kda.head_dim")
    values["linear_conv_kernel_dim"] = metadata.size("ssm.conv_kernel")
    kv_heads = metadata.each("attention.head_count_kv", values["num_hidden_layers"])
    values["layer_types"] = [FULL if one else "linear_attention" for one in kv_heads]
    return None


def _latent(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    heads, rotary = values["num_attention_heads"], metadata.size("rope.dimension_count")
    values["num_key_value_heads"] = heads
    values["attention_bias"] = metadata.any_layer("attn_q_a.bias")
    values["kv_lora_rank"] = metadata.integer("attention.kv_lora_rank")
    values["q_lora_rank"] = metadata.integer("attention.q_lora_rank", 0) or None
    values["qk_rope_head_dim"], values["partial_rotary_factor"] = rotary, 1.0
    plain_key = metadata.integer("attention.key_length_mla", values["head_dim"]) - rotary
    values["qk_nope_head_dim"] = plain_key
    joint = metadata.gguf.tensors.get("blk.0.attn_kv_b.weight")
    value = metadata.integer("attention.value_length_mla", 0)
    values["v_head_dim"] = value or (joint.shape[0] // heads - plain_key if joint else 0)
