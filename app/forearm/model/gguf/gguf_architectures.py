"""Architectures of .gguf files: the families that compute them, their tensors' names, and the keys that only they have.

Source: the converter (convert_hf_to_gguf.py, conversion/) and src/models/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from forearm.model.gguf import gguf_dense, gguf_encoders, gguf_experts, gguf_gemma, gguf_mixtures, gguf_states
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
_RWKV = {
    "pre_mlp_norm": "attn_norm_2", "up": "channel_mix_key", "down": "channel_mix_value", "rwkv_out": "time_mix_output",
    "rwkv_r": "time_mix_receptance", "rwkv_k": "time_mix_key", "rwkv_v": "time_mix_value", "rwkv_norm": "time_mix_ln",
    "rwkv_mixes": "time_mix_lerp_fused.weight", "mlp_mix": "channel_mix_lerp_k.weight",
    **{f"rwkv_{name}": f"time_mix_{name}.weight" for name in ("k_k", "k_a", "r_k")},
    **{f"rwkv_{name}_down": f"time_mix_{name}1" for name in "wavg"},
    **{f"rwkv_{name}_up": f"time_mix_{name}2" for name in "wavg"},
    **{f"rwkv_{name}_up.bias": f"time_mix_{name}0.weight" for name in "wav"},
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


ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture(("llama", "mistral", "mixtral"), gguf_dense.llama, interleaved=True),
    "mistral3": GgufArchitecture(("mistral", "ministral3"), gguf_dense.mistral3, interleaved=True),
    **{name: GgufArchitecture((name,)) for name in ("qwen2", "qwen3", "gemma")},
    "qwen2vl": GgufArchitecture(("qwen2_vl", "qwen2_5_vl")),
    "qwen3vl": GgufArchitecture(("qwen3_vl",)),
    "phi3": GgufArchitecture(("phi3",), gguf_dense.phi3, dict.fromkeys("qkv", "attn_qkv") | _FUSED_GATE_UP),
    "gemma2": GgufArchitecture(("gemma2",), gguf_gemma.gemma2),
    "gemma3": GgufArchitecture(("gemma3_text",), gguf_gemma.gemma3),
    "gemma3n": GgufArchitecture(("gemma3n_text",), gguf_gemma.gemma3n, gguf_gemma.GEMMA3N, varies=_BY_LAYER[1:]),
    "gemma4": GgufArchitecture(("gemma4_text",), gguf_gemma.gemma4, gguf_gemma.GEMMA4, varies=_BY_LAYER),
    "olmo2": GgufArchitecture(("olmo2", "olmo3"), gguf_dense.olmo2),
    "smollm3": GgufArchitecture(("smollm3",), interleaved=True),
    "granite": GgufArchitecture(("granite",), gguf_dense.granite, interleaved=True),
    "ernie4_5": GgufArchitecture(("ernie4_5",), gguf_dense.ernie4_5),
    "arcee": GgufArchitecture(("arcee",), interleaved=True),
    "apertus": GgufArchitecture(("apertus",), gguf_dense.apertus, _APERTUS),
    "seed_oss": GgufArchitecture(("seed_oss",), gguf_dense.seed_oss, _AFTER_ATTENTION),
    "exaone4": GgufArchitecture(("exaone4",), gguf_dense.exaone4),
    "glm4": GgufArchitecture(("glm4",), names=_FUSED_GATE_UP),
    "chatglm": GgufArchitecture(("glm",), names=_FUSED_GATE_UP),
    "hunyuan_vl": GgufArchitecture(("hunyuan_vl",), gguf_dense.hunyuan_vl),
    "paddleocr": GgufArchitecture(("paddleocr_vl",), gguf_dense.ernie4_5),
    "hunyuan-dense": GgufArchitecture(("hunyuan_v1_dense",)),
    "starcoder2": GgufArchitecture(("starcoder2",), gguf_dense.starcoder2),
    "nemotron": GgufArchitecture(("nemotron",)),
    "olmo": GgufArchitecture(("olmo",), gguf_dense.olmo, interleaved=True),
    "stablelm": GgufArchitecture(("stablelm",), gguf_dense.stablelm),
    "phi2": GgufArchitecture(("phi",), names=_ONE_NORM),
    "command-r": GgufArchitecture(("cohere",), gguf_dense.cohere, _ONE_NORM),
    "cohere2": GgufArchitecture(("cohere2",), gguf_dense.cohere, _ONE_NORM),
    "gpt2": GgufArchitecture(("gpt2",)),
    "starcoder": GgufArchitecture(("gpt_bigcode",)),
    "gptj": GgufArchitecture(("gptj",), gguf_dense.gptj, _ONE_NORM),
    "gptneox": GgufArchitecture(("gpt_neox",), gguf_dense.gptneox),
    "jais2": GgufArchitecture(("jais2",)),
    "falcon": GgufArchitecture(("falcon",), gguf_dense.falcon),
    "bloom": GgufArchitecture(("bloom",)),
    "mpt": GgufArchitecture(("mpt",), gguf_dense.mpt),
    "bitnet": GgufArchitecture(("bitnet",), gguf_dense.bitnet),  # llama.cpp's
    "bitnet-b1.58": GgufArchitecture(("bitnet",), gguf_dense.bitnet),  # bitnet.cpp's, of BitNet b1.58 2B4T
    "exaone": GgufArchitecture(("exaone",)),
    "internlm2": GgufArchitecture(("internlm2",), gguf_dense.internlm2, interleaved=True),
    "minicpm": GgufArchitecture(("minicpm",), gguf_dense.minicpm, interleaved=True),
    "baichuan": GgufArchitecture(("baichuan",), gguf_dense.baichuan, interleaved=True),
    "qwen": GgufArchitecture(("qwen",), gguf_dense.qwen),
    "deci": GgufArchitecture(
        ("nemotron-nas", "deci"), gguf_dense.deci, interleaved=True, varies=("attention.head_count", *_BY_LAYER)
    ),
    "xverse": GgufArchitecture(("llama",), gguf_dense.meta_layout, interleaved=True),
    "pangu-embedded": GgufArchitecture(("llama",)),
    "refact": GgufArchitecture(("baichuan",), gguf_dense.refact),
    "orion": GgufArchitecture(("stablelm",), gguf_dense.orion),
    "codeshell": GgufArchitecture(("starcoder2",), gguf_dense.codeshell),
    "maincoder": GgufArchitecture(("hunyuan_v1_dense",), interleaved=True),
    # with experts
    "deepseek": GgufArchitecture(("deepseek",), gguf_experts.routed, interleaved=True),
    "bailingmoe": GgufArchitecture(("bailing_moe", "bailing_moe_v2"), gguf_experts.bailing, interleaved=True),
    "bailingmoe2": GgufArchitecture(("bailing_moe", "bailing_moe_v2"), gguf_experts.bailing),
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
    "exaone-moe": GgufArchitecture(("exaone_moe",), gguf_dense.exaone_moe),
    "afmoe": GgufArchitecture(("afmoe",), gguf_experts.corrected, {"q_gate": "attn_gate"}),
    "mimo2": GgufArchitecture(
        ("mimo_v2_flash",), gguf_dense.mimo2, {"sinks": "attn_sinks.weight"},
        varies=("attention.head_count_kv", "attention.value_length"),
    ),
    "mellum": GgufArchitecture(("mellum",), gguf_mixtures.mellum),
    "laguna": GgufArchitecture(
        ("laguna",), gguf_mixtures.laguna, {"q_gate": "attn_gate"}, varies=("attention.head_count",)
    ),
    "step35": GgufArchitecture(
        ("step3p5",), gguf_mixtures.step35, {"q_gate": "attn_gate"}, varies=("attention.head_count",)
    ),
    "cohere2moe": GgufArchitecture(("cohere2_moe",), gguf_mixtures.cohere2_moe, _ONE_NORM),
    "hy_v3": GgufArchitecture(("hy_v3",), gguf_mixtures.hy_v3, {"correction": "exp_probs_b"}),
    "smallthinker": GgufArchitecture(("smallthinker",), gguf_mixtures.smallthinker),
    "phimoe": GgufArchitecture(("phimoe",), gguf_experts.phimoe),
    "deepseek2": GgufArchitecture(
        ("deepseek_v3", "deepseek_v2", "glm4_moe_lite", "youtu", "mistral4"), gguf_experts.deepseek2, _LATENT
    ),
    "mistral4": GgufArchitecture(("mistral4",), gguf_experts.mistral4, _LATENT),
    "deepseek32": GgufArchitecture(("deepseek_v32",), gguf_experts.indexed, _LATENT),
    "glm-dsa": GgufArchitecture(("glm_moe_dsa",), gguf_experts.indexed, _LATENT),
    "deepseek2-ocr": GgufArchitecture(
        ("deepseek_ocr2",), gguf_mixtures.deepseek_ocr, varies=("rope.dimension_count",)
    ),
    "deepseek4": GgufArchitecture(
        ("deepseek_v4",), gguf_mixtures.deepseek4, gguf_mixtures.V4, varies=("feed_forward_length",)
    ),
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
    "rwkv7": GgufArchitecture(("rwkv7",), gguf_states.rwkv7, _RWKV),
    # embedding models
    "bert": GgufArchitecture(("bert",), gguf_encoders.bert, gguf_encoders.BERT),
    "nomic-bert": GgufArchitecture(("nomic_bert",), gguf_encoders.nomic_bert, gguf_encoders.BERT),
    "nomic-bert-moe": GgufArchitecture(("nomic_bert_moe",), gguf_encoders.nomic_bert_moe, gguf_encoders.BERT),
    "jina-bert-v2": GgufArchitecture(("jina_bert_v2",), gguf_encoders.with_types, gguf_encoders.BERT),
    "jina-bert-v3": GgufArchitecture(("jina_embeddings_v3",), gguf_encoders.with_types, gguf_encoders.BERT),
    "modern-bert": GgufArchitecture(("modernbert",), gguf_encoders.modern_bert, gguf_encoders.MODERN),
    "eurobert": GgufArchitecture(("llama",)),
    "neo-bert": GgufArchitecture(("neobert",), gguf_encoders.neo_bert, gguf_encoders.NEO, rows=("q", "k", "v")),
    "t5encoder": GgufArchitecture(("t5", "umt5"), gguf_encoders.t5_encoder, gguf_encoders.T5),
    "llama-embed": GgufArchitecture(("llama",), interleaved=True),
    "gemma-embedding": GgufArchitecture(("gemma3_text",), gguf_encoders.embedding_gemma),
}  # fmt: skip
