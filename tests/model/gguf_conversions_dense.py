"""Families without states that are read from .gguf files, with the rules by which the converter writes them."""

from __future__ import annotations

import re
from math import inf
from statistics import NormalDist
from typing import Any

import numpy as np
from tests.model.cases import Case
from tests.model.gguf_conversions import (
    AFTER,
    GRANITE,
    LATENT,
    SANDWICH,
    W,
    converted_case,
    corrected,
    granite,
    granite_keys,
    latent,
    latent_keys,
    moe_keys,
    window_keys,
)
from tests.model.gguf_converter import Config, Conversion, Tensors
from tests.model.gguf_models import permuted_rows

_FUSED = {"mlp.gate_up_proj": "ffn_up"}
_GLM4 = _FUSED | {
    "post_attention_layernorm": "ffn_norm", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
_PHI = {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
_STARCODER = {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
_HUNYUAN = {f"self_attn.{name}_layernorm": f"attn_{name[0]}_norm" for name in ("query", "key")}
_PHIMOE = {"block_sparse_moe.gate": "ffn_gate_inp"} | {
    f"block_sparse_moe.experts.{w}": f"ffn_{part}_exps" for w, part in W.items()
}
_BITNET = {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}


def _bitnet(config: Config) -> Config:
    return {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}


def _norm_eps(config: Config) -> Config:
    return {"attention.layer_norm_epsilon": config.get("norm_eps", config.get("norm_epsilon"))}


def _ernie(config: Config) -> Config:
    return moe_keys(
        config, expert_count=config["moe_num_experts"], expert_used_count=config["moe_k"],
        leading_dense_block_count=config["moe_layer_start_index"],
        interleave_moe_layer_step=config["moe_layer_interval"], expert_shared_count=config["moe_num_shared_experts"],
        expert_shared_feed_forward_length=50,  # intermediate_size / shared experts: of no use
    )  # fmt: skip


def _glm_moe(config: Config) -> Config:
    return moe_keys(config, expert_gating_func=2, expert_weights_norm=config["norm_topk_prob"])


def _deepseek(config: Config) -> Config:
    sigmoid = config["model_type"] != "deepseek_v2"
    return moe_keys(config) | latent_keys(config) | ({"expert_gating_func": 2} if sigmoid else {})


def _gemma4(config: Config) -> Config:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    shared = config["num_kv_shared_layers"]
    full = next(iter(config["per_layer_config"].values()))
    width, kv = config["intermediate_size"], config["num_key_value_heads"]
    wide = [i >= len(slides) - shared and config["use_double_wide_mlp"] for i in range(len(slides))]
    return {
        "attention.key_length": full["head_dim"], "attention.value_length": full["head_dim"],
        "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": full["head_dim"], "rope.dimension_count_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "attention.head_count_kv": [kv if one else full.get("num_key_value_heads", kv) for one in slides],
        "feed_forward_length": [width * (1 + one) for one in wide] if any(wide) else width,
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "expert_count": config.get("num_experts") if config["enable_moe_block"] else None,
        "expert_used_count": config.get("top_k_experts"), "expert_feed_forward_length": config["moe_intermediate_size"],
    }  # fmt: skip


_GEMMA3N = SANDWICH | {
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm", "altup.router_norm": "altup_router_norm",
    "altup.modality_router": "altup_router", "altup.prediction_coefs": "altup_predict_coef",
    "altup.correction_coefs": "altup_correct_coef",
}  # fmt: skip
_GEMMA4 = _GEMMA3N | {
    "router.proj": "ffn_gate_inp", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
}  # fmt: skip
_GEMMA4_TENSORS = {
    "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.down_proj": "ffn_down_exps.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
}  # fmt: skip


def _gemma3n(config: Config) -> Config:
    layers = config["layer_types"]
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in layers],
        "attention.shared_kv_layers": config["num_kv_shared_layers"], "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"], "final_logit_softcapping": config["final_logit_softcapping"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(share) if share else -inf for share in config["activation_sparsity_pattern"]
        ],
    }  # fmt: skip


def _gemma3n_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([("altup_correct_scale.weight", values)]) if name == "altup.correct_output_scale" else None


def _gemma3n_shared(config: Config) -> dict[str, np.ndarray]:
    """Keys and values of layers that read those of others: in published checkpoints, and of no use to any."""
    rows, hidden = config["num_key_value_heads"] * config["head_dim"], config["hidden_size"]
    shapes = {"attn_k": (rows, hidden), "attn_v": (rows, hidden), "attn_k_norm": (config["head_dim"],)}
    first, end = config["num_hidden_layers"] - config["num_kv_shared_layers"], config["num_hidden_layers"]
    return {
        f"blk.{i}.{name}.weight": np.zeros(shape, np.float32)
        for i in range(first, end)
        for name, shape in shapes.items()
    }


def _gemma4_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([(_GEMMA4_TENSORS[name], values)]) if name in _GEMMA4_TENSORS else None


def _gemma4_angles(config: Config) -> dict[str, np.ndarray]:
    """Factors that stop the pairs of full layers' heads that do not turn."""
    head_dim = next(iter(config["per_layer_config"].values()))["head_dim"]
    turning = int(head_dim * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    factors = [1.0] * turning + [1e30] * (head_dim // 2 - turning)
    return {"rope_freqs.weight": np.array(factors, np.float32)}


_APERTUS = {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}


def _apertus(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the constants of the activation, which become metadata."""
    return iter([(f"xielu.{name.rpartition('.')[2]}", values)]) if ".act_fn." in name else None


def apertus_angles(config: Config) -> dict[str, np.ndarray]:
    """Factors of Llama 3's stretched angles."""
    rope, head_dim = config["rope_parameters"], config["hidden_size"] // config["num_attention_heads"]
    if rope["rope_type"] != "llama3":
        return {}
    inv_freq = rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] * inv_freq / (2 * np.pi)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)}


def _minicpm3(config: Config) -> Config:
    found = latent_keys(config)
    key = found["attention.key_length_mla"]
    mla = ("attention.key_length_mla", "attention.value_length_mla", "attention.value_length")
    heads = config["num_attention_heads"]
    return found | dict.fromkeys(mla) | {"attention.key_length": key, "attention.head_count_kv": heads}


def _kimi_keys(config: Config) -> Config:
    kinds = config["layer_types"]
    return {
        **moe_keys(config), **latent_keys(config), "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"], "expert_gating_func": 2,
        "attention.head_count_kv": [int(kind == "full_attention") for kind in kinds],
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_token"],
        "expert_shared_count": config["num_shared_experts"], "context_length": config["model_max_length"],
    }  # fmt: skip


def _kimi(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the delta attention's vectors."""
    inner = name.removeprefix("self_attn.")
    if inner == "A_log":
        return iter([("ssm_a", -np.exp(values))])
    if inner == "dt_bias":
        return iter([("ssm_dt.bias", values)])
    if inner.endswith("_conv1d.weight"):
        return iter([(f"ssm_conv1d_{inner[0]}.weight", values.reshape(1, len(values), 1, -1))])
    return latent(config, name, values)


_KIMI = LATENT | {
    "self_attn.o_norm": "ssm_norm", "self_attn.b_proj": "ssm_beta", "block_sparse_moe.gate": "ffn_gate_inp",
    **{f"self_attn.{gate}_{part}_proj": f"ssm_{gate}_{part}" for gate in "fg" for part in "ab"},
    **{f"block_sparse_moe.experts.{w}": f"ffn_{part}_exps" for w, part in W.items()},
    **{f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in W.values()},
}  # fmt: skip


def _ministral(config: Config) -> Config:
    rope = config["rope_parameters"]
    return {
        "rope.scaling.yarn_log_multiplier": rope.get("mscale_all_dim"),
        "attention.temperature_scale": rope.get("llama_4_scaling_beta"),
    }


def _olmo(config: Config) -> Config:
    return {"attention.clamp_kqv": config["clip_qkv"], "attention.layer_norm_epsilon": 1e-5}


def _stablelm(config: Config) -> Config:
    return {"use_parallel_residual": config["use_parallel_residual"]}


def _stacked(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield a head's norm by its number."""
    found = re.fullmatch(r"self_attn\.(.)_layernorm\.norms\.(\d+)\.weight", name)
    return iter([(f"attn_{found[1]}_norm.weight#{found[2]}", values)]) if found else None


def _cohere(config: Config) -> Config:
    found = {"logit_scale": config["logit_scale"]}
    return found | {"attention.sliding_window": config.get("sliding_window")}


def _phimoe(config: Config) -> Config:
    return {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"]}


_LLAMA4_FIXED = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}  # the file has no key for it
_LLAMA4 = {"feed_forward.router": "ffn_gate_inp"} | {
    f"feed_forward.{own}{part}_proj": f"ffn_{part}{end}" for part in ("gate", "up", "down")
    for own, end in (("", ""), ("shared_expert.", "_shexp"))
}  # fmt: skip


def _llama4(config: Config) -> Config:
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def _llama4_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the experts' gate, up and down as rows."""
    if name == "feed_forward.experts.down_proj":
        return iter([("ffn_down_exps.weight", np.swapaxes(values, 1, 2))])
    if name != "feed_forward.experts.gate_up_proj":
        return None
    halves = zip(("gate", "up"), np.split(np.swapaxes(values, 1, 2), 2, axis=1), strict=True)
    return iter([(f"ffn_{part}_exps.weight", rows) for part, rows in halves])


_GPT2 = {
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def _gpt2(config: Config) -> Config:
    return {"feed_forward_length": config["intermediate_size"] or 4 * config["hidden_size"]}


def _gpt2_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([(name, values.T if values.ndim == 2 else values)])


def _starcoder(config: Config) -> Config:
    return _gpt2(config) | {"attention.head_count_kv": 1}


_NEOX = {
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip


def _neox(config: Config) -> Config:
    return {"use_parallel_residual": config["use_parallel_residual"]}


def _neox_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the rows of all heads' queries, then those of their keys, then those of their values."""
    if "query_key_value" not in name:
        return None
    by_head = values.reshape(config["num_attention_heads"], 3, -1, *values.shape[1:])
    return iter([(name, np.moveaxis(by_head, 1, 0).reshape(values.shape))])


_GPTJ = {
    "ln_1": "attn_norm", "attn.out_proj": "attn_output", "mlp.fc_in": "ffn_up", "mlp.fc_out": "ffn_down",
    **{f"attn.{part}_proj": f"attn_{part}" for part in "qkv"},
}  # fmt: skip


def _gptj(config: Config) -> Config:
    return _gpt2(config) | {"rope.dimension_count": config["rotary_dim"]}


_XDROPE = {
    "rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 50.0, "mrope_section": [2, 2, 1, 1],
}  # fmt: skip
_ORION_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}


def _hunyuan_vl(config: Config) -> Config:
    rope = config["rope_parameters"]
    return {"rope.scaling.alpha": rope.get("alpha"), "rope.scaling.type": "none", "rope.scaling.factor": 1.0}


def _turned_norms(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield weights of norms behind angles in the order of rows, of which neighbours turn."""
    norm = re.fullmatch(r"self_attn\.(?:query|key)_layernorm\.weight", name)
    return iter([(name, permuted_rows(values, 1))]) if norm else None


def _orion(config: Config) -> Config:
    return {"tensor_data_layout": "Meta AI original pth", "rope.dimension_count": None}


def _codeshell(config: Config) -> Config:
    return _norm_eps(config) | {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}


def _case(name: str, **settings: Any) -> Case:
    return converted_case(name, **settings)


OTHERS: list[tuple[Case, Conversion]] = [
    (_case("gemma"), Conversion("gemma", plus_one=True)),
    *(
        (_case(f"gemma4{kind}"), Conversion("gemma4", _gemma4, _GEMMA4, _gemma4_tensor, extra=_gemma4_angles))
        for kind in ("", "-shared", "-per-layer", "-experts")
    ),
    (_case("gemma3n-text"), Conversion("gemma3n", _gemma3n, _GEMMA3N, _gemma3n_tensor, extra=_gemma3n_shared)),
    *(
        (_case(f"apertus{kind}"), Conversion("apertus", names=_APERTUS, change=_apertus, extra=apertus_angles))
        for kind in ("", "-biases")
    ),
    (_case("arcee-biases"), Conversion("arcee", permuted=True)),
    (_case("bitnet"), Conversion("bitnet-b1.58", names=_BITNET)),
    (_case("bitnet-biases-tied", hidden_act="silu"), Conversion("bitnet", _bitnet, _BITNET)),
    (_case("seed_oss-o-bias"), Conversion("seed_oss", names=AFTER)),
    (_case("olmo3"), Conversion("olmo2", window_keys, SANDWICH)),
    (_case("exaone4"), Conversion("exaone4", window_keys, SANDWICH)),
    (_case("exaone4-full"), Conversion("exaone4", window_keys, SANDWICH)),
    (_case("glm4"), Conversion("glm4", names=_GLM4)),
    (_case("glm", head_dim=12), Conversion("chatglm", names=_FUSED)),
    (_case("starcoder2", sliding_window=4096), Conversion("starcoder2", _norm_eps, _STARCODER)),
    (_case("starcoder2-no-bias"), Conversion("starcoder2", _norm_eps, _STARCODER)),
    (_case("nemotron", head_dim=12), Conversion("nemotron", _norm_eps, plus_one=True)),
    (_case("hunyuan"), Conversion("hunyuan-dense", names=_HUNYUAN)),
    (_case("hunyuan", tie_word_embeddings=False, hidden_act="silu"),
     Conversion("maincoder", names=_HUNYUAN, change=_turned_norms, permuted=True)),
    *(
        (_case("hunyuan_vl", text_config=text), Conversion("hunyuan_vl", _hunyuan_vl, _HUNYUAN))
        for text in ({"head_dim": 12, "rope_parameters": _XDROPE}, {"head_dim": 12})
    ),
    (_case("paddleocr_vl"), Conversion("paddleocr")),
    (Case("xverse", "LlamaConfig", {"num_key_value_heads": 6}),
     Conversion("xverse", lambda config: {"tensor_data_layout": "Meta AI original pth"}, permuted=True)),
    (Case("pangu-embedded", "LlamaConfig", {"attention_bias": True}), Conversion("pangu-embedded")),
    (_case("stablelm", use_qkv_bias=False, rope_parameters=_ORION_ROPE), Conversion("orion", _orion)),
    (_case("starcoder2", sliding_window=None, tie_word_embeddings=False),
     Conversion("codeshell", _codeshell, _STARCODER, fused=True)),
    (_case("internlm3-biases"), Conversion("llama", permuted=True)),
    (_case("ministral3"), Conversion("mistral3", _ministral, permuted=True)),
    (_case("qwen2_vl"), Conversion("qwen2vl")),
    (_case("qwen3_vl"), Conversion("qwen3vl")),
    (_case("olmo-clipped"), Conversion("olmo", _olmo, permuted=True)),
    (_case("stablelm"), Conversion("stablelm", _stablelm)),
    (_case("stablelm-parallel"), Conversion("stablelm", _stablelm, change=_stacked)),
    (_case("phi", intermediate_size=384), Conversion("phi2", names=_PHI)),
    (_case("cohere-norms"), Conversion("command-r", _cohere)),
    (_case("cohere2"), Conversion("cohere2", _cohere)),
    (_case("gpt2"), Conversion("gpt2", _gpt2, _GPT2, _gpt2_tensor)),
    (_case("gpt_bigcode"), Conversion("starcoder", _starcoder, _GPT2)),
    *((_case(name), Conversion("gptj", _gptj, _GPTJ)) for name in ("gptj", "gptj-n-inner")),
    (_case("gpt_neox"), Conversion("gptneox", _neox, _NEOX, _neox_tensor)),
    (_case("gpt_neox-in-turn"), Conversion("gptneox", _neox, _NEOX, _neox_tensor)),
    # with experts
    (_case("qwen3-moe", mlp_only_layers=[]), Conversion("qwen3vlmoe", moe_keys)),
    (_case("llama4-text", **_LLAMA4_FIXED), Conversion("llama4", _llama4, _LLAMA4, _llama4_tensor)),
    (_case("glm4-moe"), Conversion("glm4moe", _glm_moe, AFTER, corrected)),
    (_case("ernie-moe"), Conversion("ernie4_5-moe", _ernie, change=corrected)),
    (_case("granite-moe"), Conversion("granitemoe", granite_keys, GRANITE, granite, permuted=True)),
    (_case("granite-moe-shared"), Conversion("granitemoe", granite_keys, GRANITE, granite, permuted=True)),
    (_case("phimoe", router_jitter_noise=0.01), Conversion("phimoe", _phimoe, _PHIMOE)),
    # with latent attention
    (_case("deepseek-v2-lite"), Conversion("deepseek2", _deepseek, LATENT, latent)),
    (_case("deepseek-v2-groups"), Conversion("deepseek2", _deepseek, LATENT, latent)),
    (_case("deepseek-v3"), Conversion("deepseek2", _deepseek, LATENT, latent)),
    (_case("glm4-moe-lite"), Conversion("deepseek2", _deepseek, LATENT, latent)),
    (_case("deepseek-v3", seed=1), Conversion("deepseek2", _deepseek, LATENT, corrected)),  # kv_b_proj in one
    (_case("kimi-linear", linear_num_heads=6), Conversion("kimi-linear", _kimi_keys, _KIMI, _kimi)),
    (_case("minicpm3", scale_emb=12, scale_depth=1.4, dim_model_base=256), Conversion("minicpm3", _minicpm3, LATENT)),
]  # fmt: skip
