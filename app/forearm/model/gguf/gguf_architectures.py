"""Architectures of .gguf files: the families that compute them, their tensors' names, and the keys that only they have.

Source: the converter (convert_hf_to_gguf.py, conversion/) and src/models/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from forearm.model.families.switches import FULL, SLIDING
from forearm.model.gguf import gguf_encoders, gguf_experts, gguf_gemma, gguf_states
from forearm.model.gguf.gguf_metadata import GgufMetadata

Values = dict[str, Any]  # config.json's keys

NAMES = {
    "embed": "token_embd", "embed_norm": "token_embd_norm", "positions": "position_embd",
    "final_norm": "output_norm", "head": "output", "layers": "blk", "q": "attn_q",
    "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    "input_norm": "attn_norm", "post_attention_norm": "post_attention_norm", "pre_mlp_norm": "ffn_norm",
    "post_mlp_norm": "post_ffw_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "router": "ffn_gate_inp",
    "shared_gate": "ffn_gate_inp_shexp", "correction": "exp_probs_b.bias", "q_gate": "attn_q",
    **{f"experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"shared.{part}": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    # Layers with a state; llama.cpp multiplies with -exp(a_log), which is what its files have.
    "recurrence.conv": "ssm_conv1d.weight", "recurrence.conv.bias": "ssm_conv1d.bias",
    "recurrence.dt_bias": "ssm_dt.bias", "recurrence.a_log": "-exp(ssm_a)", "recurrence.d": "ssm_d",
    "recurrence.gate_norm": "ssm_norm.weight", "mamba_out": "ssm_out", "delta_out": "ssm_out",
    **{f"mamba_{part}": "ssm_in" for part in ("z", "xbc", "dt")}, "scan_x": "ssm_in", "scan_z": "ssm_in",
    **{f"scan_{part}": "ssm_x" for part in ("latent", "b", "c")}, "scan_dt": "ssm_dt", "scan_out": "ssm_out",
    **{f"scan_norm.{part}": f"ssm_{part}_norm" for part in ("dt", "b", "c")},
    **{f"delta_{part}": "attn_qkv" for part in ("q", "k", "v")},
    "delta_z": "attn_gate", "delta_b": "ssm_beta", "delta_a": "ssm_alpha",
    "conv": "shortconv.conv", "conv_out": "shortconv.out_proj",
    **{f"conv_{part}": "shortconv.in_proj" for part in ("b", "c", "x")},
    # Latent attention; files of before 2025-04 have keys' and values' rows in one tensor.
    "q_down": "attn_q_a", "q_up": "attn_q_b", "kv_down": "attn_kv_a_mqa",
    "attn_sub_norm": "attn_sub_norm", "ffn_sub_norm": "ffn_sub_norm",
    "index_q": "indexer.attn_q_b", "index_k": "indexer.attn_k", "index_weights": "indexer.proj",
    "index_norm": "indexer.k_norm",
}  # fmt: skip
_AFTER_ATTENTION = {"pre_mlp_norm": "post_attention_norm"}
_ONE_NORM = {"pre_mlp_norm": "attn_norm"}
_FUSED_GATE_UP = {"gate": "ffn_up", "up": "ffn_up"}
_APERTUS = {f"xielu.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")}  # metadata's arrays
_LFM2 = {"final_norm": "token_embd_norm"}
_BY_LAYER = ("attention.head_count_kv", "feed_forward_length")
_GATED_QUERY = ("q", "q_gate")
_LATENT = {"q_norm": "attn_q_a_norm", "k_norm": "attn_kv_a_norm"}
_KIMI = _LATENT | {
    "delta_out": "attn_output", "delta_z_latent": "ssm_g_a", "delta_z": "ssm_g_b", "delta_a_latent": "ssm_f_a",
    "delta_a": "ssm_f_b", **{f"delta_{part}": f"attn_{part}" for part in "qkv"},
    **{f"recurrence.conv_{part}": f"ssm_conv1d_{part}.weight" for part in "qkv"},
}  # fmt: skip


@dataclass(frozen=True)
class GgufArchitecture:
    """One architecture.

    families: names of the families of its files; `own` chooses one of several, a single one is chosen without it.
    own: adds config.json's keys that only this architecture has, and returns the family's name.
    names: the tensors' names that differ from NAMES. rows: keys of names whose place in a tensor's rows is the one in
    the family's own names. interleaved: the converter reorders the rows of q and k for angles of neighbouring values.
    tiled: value heads of a delta rule are stored in the order of key_heads x heads of each (GatedDelta).
    varies: keys with a value for each layer, or another one than usual, which `own` reads.
    """

    families: tuple[str, ...]
    own: Callable[[GgufMetadata, Values], str | None] = lambda metadata, values: None
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    rows: tuple[str, ...] = ()
    interleaved: bool = False
    tiled: bool = False
    varies: tuple[str, ...] = ()


def _llama(metadata: GgufMetadata, values: Values) -> str | None:
    if metadata.integer("expert_count", 0):
        gguf_experts.plain(metadata, values)
        return "mixtral"
    if metadata.integer("attention.sliding_window", 0):
        values["sliding_window"] = metadata.integer("attention.sliding_window")
        return "mistral"
    return "llama"


def _mistral3(metadata: GgufMetadata, values: Values) -> str | None:
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


def _phi3(metadata: GgufMetadata, values: Values) -> str | None:
    values["sliding_window"] = metadata.integer("attention.sliding_window", 0) or None
    values.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
    return None


def _olmo2(metadata: GgufMetadata, values: Values) -> str | None:
    if not metadata.integer("attention.sliding_window", 0):
        return "olmo2"
    gguf_gemma.windows(metadata, values)
    metadata.number("rope.freq_base_swa", 0.0)  # marks it as read: it is freq_base
    return "olmo3"


def _exaone4(metadata: GgufMetadata, values: Values) -> str | None:
    values["sliding_window"] = None
    if metadata.integer("attention.sliding_window", 0):
        gguf_gemma.windows(metadata, values)
    return None


def _ernie4_5(metadata: GgufMetadata, values: Values) -> str | None:
    values["use_bias"] = values.pop("attention_bias")
    return None


def _apertus(metadata: GgufMetadata, values: Values) -> str | None:
    values.setdefault("rope_scaling", {"rope_type": "default"})  # stretched angles are a tensor of factors
    return None


def _seed_oss(metadata: GgufMetadata, values: Values) -> str | None:
    values["attention_out_bias"] = metadata.has("blk.0.attn_output.bias")
    return None


def _starcoder2(metadata: GgufMetadata, values: Values) -> str | None:
    values["use_bias"] = values.pop("attention_bias")
    values["sliding_window"] = metadata.integer("attention.sliding_window", 4096)  # the converter drops it
    return None


def _olmo(metadata: GgufMetadata, values: Values) -> str | None:
    values["clip_qkv"] = metadata.number("attention.clamp_kqv", 0.0)
    return None


def _stablelm(metadata: GgufMetadata, values: Values) -> str | None:
    values["use_parallel_residual"] = not metadata.has("blk.0.ffn_norm.weight")
    metadata.keys.get("stablelm.use_parallel_residual")  # marks it as read: the converter writes what config.json lacks
    values["use_qkv_bias"] = values.pop("attention_bias")
    values["qk_layernorm"] = metadata.has("blk.0.attn_q_norm.weight")
    return None


def _cohere(metadata: GgufMetadata, values: Values) -> str | None:
    values["logit_scale"] = metadata.number("logit_scale")
    values["use_qk_norm"] = metadata.has("blk.0.attn_q_norm.weight")
    if metadata.integer("attention.sliding_window", 0):
        values["sliding_window"] = metadata.integer("attention.sliding_window")
        values["sliding_window_pattern"] = metadata.integer("attention.sliding_window_pattern", 4)
    return None


def _gptneox(metadata: GgufMetadata, values: Values) -> str | None:
    values["use_parallel_residual"] = metadata.flag("use_parallel_residual", True)
    return None


def _exaone_moe(metadata: GgufMetadata, values: Values) -> str | None:
    gguf_experts.corrected(metadata, values)
    return _exaone4(metadata, values)


def _falcon(metadata: GgufMetadata, values: Values) -> str | None:
    kv_heads, two = values["num_key_value_heads"], metadata.has("blk.0.attn_norm_2.weight")
    values |= {"new_decoder_architecture": kv_heads > 1 or two, "num_kv_heads": kv_heads, "multi_query": True}
    values |= {"num_ln_in_parallel_attn": 1 + two, "bias": values.pop("attention_bias")}
    values["ffn_hidden_size"] = values["intermediate_size"]
    metadata.keys.get("falcon.tensor_data_layout")  # marks it as read: queries, keys and values follow each other
    return None


def _mimo2(metadata: GgufMetadata, values: Values) -> str | None:
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


def _mpt(metadata: GgufMetadata, values: Values) -> str | None:
    most, clip = metadata.number("attention.max_alibi_bias", 0.0), metadata.number("attention.clamp_kqv", 0.0)
    values["attn_config"] = {"alibi": most > 0, "alibi_bias_max": most or 8.0, "clip_qkv": clip or None}
    return None


def _bitnet(metadata: GgufMetadata, values: Values) -> str | None:
    values["hidden_act"] = "silu" if metadata.architecture == "bitnet" else "relu2"
    return None


def _granite(metadata: GgufMetadata, values: Values) -> str | None:
    gguf_experts.granite_scales(metadata, values)
    return None


ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture(("llama", "mistral", "mixtral"), _llama, interleaved=True),
    "mistral3": GgufArchitecture(("mistral", "ministral3"), _mistral3, interleaved=True),
    **{name: GgufArchitecture((name,)) for name in ("qwen2", "qwen3", "gemma")},
    "qwen2vl": GgufArchitecture(("qwen2_vl", "qwen2_5_vl")),
    "qwen3vl": GgufArchitecture(("qwen3_vl",)),
    "phi3": GgufArchitecture(("phi3",), _phi3, dict.fromkeys("qkv", "attn_qkv") | _FUSED_GATE_UP),
    "gemma2": GgufArchitecture(("gemma2",), gguf_gemma.gemma2),
    "gemma3": GgufArchitecture(("gemma3_text",), gguf_gemma.gemma3),
    "gemma3n": GgufArchitecture(("gemma3n_text",), gguf_gemma.gemma3n, gguf_gemma.GEMMA3N, varies=_BY_LAYER[1:]),
    "gemma4": GgufArchitecture(("gemma4_text",), gguf_gemma.gemma4, gguf_gemma.GEMMA4, varies=_BY_LAYER),
    "olmo2": GgufArchitecture(("olmo2", "olmo3"), _olmo2),
    "smollm3": GgufArchitecture(("smollm3",), interleaved=True),
    "granite": GgufArchitecture(("granite",), _granite, interleaved=True),
    "ernie4_5": GgufArchitecture(("ernie4_5",), _ernie4_5),
    "arcee": GgufArchitecture(("arcee",), interleaved=True),
    "apertus": GgufArchitecture(("apertus",), _apertus, _APERTUS),
    "seed_oss": GgufArchitecture(("seed_oss",), _seed_oss, _AFTER_ATTENTION),
    "exaone4": GgufArchitecture(("exaone4",), _exaone4),
    "glm4": GgufArchitecture(("glm4",), names=_FUSED_GATE_UP),
    "chatglm": GgufArchitecture(("glm",), names=_FUSED_GATE_UP),
    "hunyuan-dense": GgufArchitecture(("hunyuan_v1_dense",)),
    "starcoder2": GgufArchitecture(("starcoder2",), _starcoder2),
    "nemotron": GgufArchitecture(("nemotron",)),
    "olmo": GgufArchitecture(("olmo",), _olmo, interleaved=True),
    "stablelm": GgufArchitecture(("stablelm",), _stablelm),
    "phi2": GgufArchitecture(("phi",), names=_ONE_NORM),
    "command-r": GgufArchitecture(("cohere",), _cohere, _ONE_NORM),
    "cohere2": GgufArchitecture(("cohere2",), _cohere, _ONE_NORM),
    "gpt2": GgufArchitecture(("gpt2",)),
    "starcoder": GgufArchitecture(("gpt_bigcode",)),
    "gptneox": GgufArchitecture(("gpt_neox",), _gptneox),
    "jais2": GgufArchitecture(("jais2",)),
    "falcon": GgufArchitecture(("falcon",), _falcon),
    "bloom": GgufArchitecture(("bloom",)),
    "mpt": GgufArchitecture(("mpt",), _mpt),
    "bitnet": GgufArchitecture(("bitnet",), _bitnet),  # llama.cpp's
    "bitnet-b1.58": GgufArchitecture(("bitnet",), _bitnet),  # bitnet.cpp's, of BitNet b1.58 2B4T
    # with experts
    "qwen2moe": GgufArchitecture(("qwen2_moe",), gguf_experts.qwen2_moe),
    "qwen3moe": GgufArchitecture(("qwen3_moe",), gguf_experts.qwen3_moe),
    "qwen3vlmoe": GgufArchitecture(("qwen3_moe",), gguf_experts.qwen3_moe),
    "olmoe": GgufArchitecture(("olmoe",), gguf_experts.plain),
    "gpt-oss": GgufArchitecture(("gpt_oss",), gguf_experts.gpt_oss, _AFTER_ATTENTION | {"sinks": "attn_sinks.weight"}),
    "llama4": GgufArchitecture(("llama4_text", "llama4"), gguf_experts.llama4),
    "glm4moe": GgufArchitecture(("glm4_moe",), gguf_experts.glm4_moe, _AFTER_ATTENTION),
    "ernie4_5-moe": GgufArchitecture(("ernie4_5_moe",), gguf_experts.ernie4_5_moe),
    "granitemoe": GgufArchitecture(("granitemoe", "granitemoeshared"), gguf_experts.granite_moe, interleaved=True),
    "minimax-m2": GgufArchitecture(("minimax_m2",), gguf_experts.minimax_m2),
    "hunyuan-moe": GgufArchitecture(("hunyuan_v1_moe",), gguf_experts.hunyuan_moe),
    "dots1": GgufArchitecture(("dots1",), gguf_experts.corrected),
    "dbrx": GgufArchitecture(("dbrx",), gguf_experts.dbrx, {"pre_mlp_norm": "attn_output_norm"}),
    "exaone-moe": GgufArchitecture(("exaone_moe",), _exaone_moe),
    "afmoe": GgufArchitecture(("afmoe",), gguf_experts.corrected, {"q_gate": "attn_gate"}),
    "mimo2": GgufArchitecture(
        ("mimo_v2_flash",), _mimo2, {"sinks": "attn_sinks.weight"},
        varies=("attention.head_count_kv", "attention.value_length"),
    ),
    "phimoe": GgufArchitecture(("phimoe",), gguf_experts.phimoe),
    "deepseek2": GgufArchitecture(
        ("deepseek_v3", "deepseek_v2", "glm4_moe_lite", "youtu", "mistral4"), gguf_experts.deepseek2, _LATENT
    ),
    "mistral4": GgufArchitecture(("mistral4",), gguf_experts.mistral4, _LATENT),
    "deepseek32": GgufArchitecture(("deepseek_v32",), gguf_experts.indexed, _LATENT),
    "glm-dsa": GgufArchitecture(("glm_moe_dsa",), gguf_experts.indexed, _LATENT),
    "minicpm3": GgufArchitecture(("minicpm3",), gguf_experts.minicpm3, _LATENT),
    "kimi-linear": GgufArchitecture(("kimi_linear",), gguf_experts.kimi_linear, _KIMI),
    # with layers that keep a state
    "lfm2": GgufArchitecture(("lfm2",), gguf_states.lfm2, _LFM2),
    "lfm2moe": GgufArchitecture(("lfm2_moe",), gguf_states.lfm2_moe, _LFM2),
    "qwen35": GgufArchitecture(
        ("qwen3_5_text", "qwen3_5"), gguf_states.qwen, _AFTER_ATTENTION, _GATED_QUERY, tiled=True
    ),
    "qwen35moe": GgufArchitecture(
        ("qwen3_5_moe_text", "qwen3_5_moe"), gguf_states.qwen, _AFTER_ATTENTION, _GATED_QUERY, tiled=True
    ),
    "qwen3next": GgufArchitecture(
        ("qwen3_next",), gguf_states.qwen, _AFTER_ATTENTION | dict.fromkeys(("delta_b", "delta_a"), "ssm_ba"),
        (*_GATED_QUERY, "delta_b", "delta_a"),
    ),
    "granitehybrid": GgufArchitecture(("granitemoehybrid", "bamba"), gguf_states.granite_hybrid, interleaved=True),
    "falcon-h1": GgufArchitecture(("falcon_h1",), gguf_states.falcon_h1),
    "nemotron_h": GgufArchitecture(("nemotron_h",), gguf_states.nemotron_h, _ONE_NORM),
    "nemotron_h_moe": GgufArchitecture(("nemotron_h",), gguf_states.nemotron_h, _ONE_NORM),
    "mamba2": GgufArchitecture(("mamba2",), gguf_states.mamba2),
    "mamba": GgufArchitecture(("mamba", "falcon_mamba"), gguf_states.mamba),
    "jamba": GgufArchitecture(("jamba",), gguf_states.jamba),
    # embedding models
    "bert": GgufArchitecture(("bert",), gguf_encoders.bert, gguf_encoders.BERT),
    "nomic-bert": GgufArchitecture(("nomic_bert",), gguf_encoders.nomic_bert, gguf_encoders.BERT),
    "gemma-embedding": GgufArchitecture(("gemma3_text",), gguf_encoders.embedding_gemma),
}  # fmt: skip
