"""Further families that are read from .gguf files, with the rules by which the converter writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tests.model.cases import Case
from tests.model.gguf_conversions import LATENT, W, converted_case, latent, latent_keys, moe_keys, window_keys
from tests.model.gguf_converter import Config, Conversion, Tensors

_MINIMAX = {"block_sparse_moe.gate": "ffn_gate_inp"} | {
    f"block_sparse_moe.experts.{w}": f"ffn_{part}_exps" for w, part in W.items()
}
_HUNYUAN = {f"self_attn.{name}_layernorm": f"attn_{name[0]}_norm" for name in ("query", "key")}
_HUNYUAN |= {f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in W.values()} | {
    "mlp.gate.wg": "ffn_gate_inp"
}
INDEXED = LATENT | {
    "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj",
}  # fmt: skip
_AFMOE = {
    "post_attention_layernorm": "post_attention_norm", "pre_mlp_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm", "self_attn.gate_proj": "attn_gate", "mlp.router.gate": "ffn_gate_inp",
}  # fmt: skip
_FALCON = {
    "input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
    "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip


def _corrected(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    bias = name.endswith(("e_score_correction_bias", "expert_bias"))
    return iter([("exp_probs_b.bias", values)]) if bias else None


def _with_sinks(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    sinks = name == "self_attn.attention_sink_bias"
    return iter([("attn_sinks.weight", values)]) if sinks else _corrected(config, name, values)


def _mimo2(config: Config) -> Config:
    slides, few = window_keys(config), config["num_key_value_heads"]
    kv_heads = [few * (1 + one) for one in slides["attention.sliding_window_pattern"]]
    return moe_keys(config, leading_dense_block_count=None) | slides | {
        "attention.head_count_kv": kv_heads, "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config["attention_value_scale"], "expert_gating_func": 2,
        "expert_weights_norm": config["norm_topk_prob"],
    }  # fmt: skip


def _minimax(config: Config) -> Config:
    return {"expert_feed_forward_length": config["intermediate_size"], "expert_gating_func": 2}


def _hunyuan(config: Config) -> Config:
    return {
        "expert_shared_feed_forward_length": config["intermediate_size"], "expert_used_count": config["moe_topk"],
        "expert_feed_forward_length": config["intermediate_size"], "expert_shared_count": 1,
    }  # fmt: skip


def _sigmoid(config: Config) -> Config:
    more = {} if config["model_type"] == "dots1" else window_keys(config)
    scale = config.get("routed_scaling_factor", config.get("route_scale"))
    shared = config.get("n_shared_experts", config.get("num_shared_experts"))
    dense = [kind == "dense" for kind in config.get("mlp_layer_types") or ()]
    return moe_keys(
        config, expert_gating_func=2, expert_weights_norm=config.get("norm_topk_prob", True),
        expert_shared_count=shared, expert_weights_scale=scale,
        leading_dense_block_count=sum(dense) or config.get("first_k_dense_replace", config.get("num_dense_layers")),
    ) | more  # fmt: skip


def _afmoe(config: Config) -> Config:
    return _sigmoid(config) | {"attention.sliding_window_pattern": None}


def _youtu(config: Config) -> Config:
    dense = {"leading_dense_block_count": config["num_hidden_layers"], "expert_shared_count": 0}
    return latent_keys(config) | dense | {"expert_feed_forward_length": config["intermediate_size"]}


def _indexed(config: Config) -> Config:
    kinds = config.get("indexer_types")
    return moe_keys(config) | latent_keys(config) | {
        "expert_gating_func": 2, "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"], "attention.indexer.top_k": config["index_topk"],
        "attention.indexer.types": kinds and [kind == "full" for kind in kinds],
    }  # fmt: skip


def _mistral4(name: str, **rope: Any) -> Case:
    """A case of Mistral Small 4 with other settings of its angles."""
    found = converted_case(name)
    text = found.settings["text_config"]
    text = text | {"rope_parameters": text["rope_parameters"] | rope}
    return replace(found, settings=found.settings | {"text_config": text})


def _mistral4_keys(config: Config) -> Config:
    return moe_keys(config) | latent_keys(config)


def _stacked(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the experts as Hugging Face's format has them: gate and up in one tensor."""
    names = {"mlp.experts.gate_up_proj": "ffn_gate_up_exps", "mlp.experts.down_proj": "ffn_down_exps"}
    return iter([(f"{names[name]}.weight", values)]) if name in names else latent(config, name, values)


def _apart(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the experts of Mistral's format: a tensor each for gate and up."""
    if name != "mlp.experts.gate_up_proj":
        return _stacked(config, name, values)
    halves = zip(("gate", "up"), np.split(values, 2, axis=1), strict=True)
    return iter([(f"ffn_{part}_exps.weight", rows) for part, rows in halves])


def _mistral_format(config: Config) -> Config:
    rope = config["rope_parameters"]
    return _mistral4_keys(config) | {
        "expert_gating_func": 1, "attention.temperature_scale": rope["llama_4_scaling_beta"],
        "attention.temperature_length": rope["original_max_position_embeddings"],
    }  # fmt: skip


def _falcon(config: Config) -> Config:
    return {
        "context_length": 2048, "tensor_data_layout": "jploski", "feed_forward_length": config["ffn_hidden_size"],
        "attention.head_count_kv": config["num_kv_heads"] if config["new_decoder_architecture"] else 1,
    }  # fmt: skip


def _falcon_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the rows of all queries, then those of keys, then those of values."""
    if name != "self_attention.query_key_value.weight":
        return None
    few = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    groups = values.reshape(few, config["num_attention_heads"] // few + 2, -1, values.shape[1])
    rows = [part.reshape(-1, values.shape[1]) for part in np.split(groups, [-2, -1], axis=1)]
    return iter([(name, np.concatenate(rows))])


_MPT = {
    "norm_1": "attn_norm", "norm_2": "ffn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output",
    "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
}  # fmt: skip


def _bloom(config: Config) -> Config:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return {"attention.head_count_kv": heads, "feed_forward_length": 4 * hidden}


def _by_part(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the rows of all queries, then those of keys, then those of values, which a head has side by side."""
    if not name.startswith("self_attention.query_key_value"):
        return None
    heads = values.reshape(config["num_attention_heads"], 3, -1, *values.shape[1:])
    return iter([(name, heads.swapaxes(0, 1).reshape(values.shape))])


def _mpt(config: Config) -> Config:
    own = config["attn_config"]
    return {
        "feed_forward_length": 4 * config["hidden_size"], "attention.clamp_kqv": own["clip_qkv"],
        "attention.max_alibi_bias": float(own["alibi_bias_max"]),
    }  # fmt: skip


_DBRX = {
    "norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.norm_2": "attn_output_norm",
    "norm_attn_norm.attn.Wqkv": "attn_qkv", "norm_attn_norm.attn.out_proj": "attn_output",
    "ffn.router.layer": "ffn_gate_inp",
}  # fmt: skip


def _dbrx(config: Config) -> Config:
    attention, experts = config["attn_config"], config["ffn_config"]
    return {
        "feed_forward_length": experts["ffn_hidden_size"], "attention.head_count_kv": attention["kv_n_heads"],
        "rope.freq_base": attention["rope_theta"], "attention.clamp_kqv": attention["clip_qkv"],
        "expert_count": experts["moe_num_experts"], "expert_used_count": experts["moe_top_k"],
        "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip


def _dbrx_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the matrices of all experts, the last ones turned: their columns are stored as rows."""
    module, _, matrix = name.rpartition(".")
    if module != "ffn.experts.mlp":
        return None
    part, each = W.get(matrix, "up"), values.reshape(config["ffn_config"]["moe_num_experts"], -1, values.shape[1])
    return iter([(f"ffn_{part}_exps.weight", each.swapaxes(1, 2) if part == "down" else each)])


def _mellum(config: Config) -> Config:
    slides = window_keys(config)
    rope = config["rope_parameters"]["full_attention"]
    factor = {"rope.scaling.yarn_attn_factor": rope.get("attention_factor")}
    return slides | factor | {"expert_feed_forward_length": config["moe_intermediate_size"]}


def _laguna(config: Config) -> Config:
    """Heads by layer, and no list of layers with a window."""
    layers, shares = config["num_hidden_layers"], config["rope_parameters"]
    heads = config.get("num_attention_heads_per_layer") or [config["num_attention_heads"]] * layers
    rotated = {kind: int(config["head_dim"] * one.get("partial_rotary_factor", 1)) for kind, one in shares.items()}
    return moe_keys(config) | {
        "attention.head_count": heads, "attention.sliding_window": config["sliding_window"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"], "expert_weights_norm": True,
        "expert_weights_scale": config["moe_routed_scaling_factor"], "expert_gating_func": 2,
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "rope.dimension_count": rotated["full_attention"], "rope.dimension_count_swa": rotated["sliding_attention"],
    }  # fmt: skip


def _step35(config: Config) -> Config:
    """Lists go on with the layer that predicts; the rotated part is that of layers with a window."""
    kinds, few = [*config["layer_types"], *(config.get("mtp_layer_types") or ())], config["num_key_value_heads"]
    slides = [kind == "sliding_attention" for kind in kinds]
    limits = {
        f"swiglu_clamp_{ours}": [one or 0.0 for one in config[name]] + [0.0] * (len(kinds) - len(config[name]))
        for ours, name in (("exp", "swiglu_limits"), ("shexp", "swiglu_limits_shared"))
        if config[name]
    }
    return moe_keys(config) | limits | {
        "attention.head_count": [
            config["num_sliding_attention_heads" if one else "num_attention_heads"] for one in slides
        ], "attention.head_count_kv": [few] * len(kinds), "block_count": len(kinds), "moe_every_n_layers": 1,
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides,
        "nextn_predict_layers": len(kinds) - config["num_hidden_layers"] or None, "expert_weights_norm": True,
        "expert_shared_feed_forward_length": config["share_expert_dim"], "rope.dimension_count": None,
        "expert_weights_scale": config["moe_router_scaling_factor"],
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
    }  # fmt: skip


def _step35_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([("exp_probs_b.bias", values)]) if name == "moe.router_bias" else None


def _step35_predicts(config: Config) -> dict[str, np.ndarray]:
    """Two tensors of a layer that predicts further tokens."""
    at, width = f"blk.{config['num_hidden_layers']}", config["hidden_size"]
    vectors = ("attn_norm", "nextn.enorm") if config["num_nextn_predict_layers"] else ()
    return {f"{at}.{name}.weight": np.ones(width, np.float32) for name in vectors}


def _step35_factors(config: Config) -> dict[str, np.ndarray]:
    """The factors of llama3 for the angles of a whole head, though only half of it is rotated."""
    dim, rope = config["head_dim"], config["rope_parameters"]["full_attention"]
    turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim) / (2 * np.pi)
    low, high, factor = (rope[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)}


def _step_case(name: str, **text: Any) -> Case:
    found = converted_case(name)
    return replace(found, settings=found.settings | {"text_config": found.settings["text_config"] | text})


def _cohere2_moe(config: Config) -> Config:
    width, beside = config["intermediate_size"], config["num_shared_experts"]
    shared = {"expert_shared_count": beside, "expert_shared_feed_forward_length": width * beside} if beside else {}
    return window_keys(config) | shared | {
        "feed_forward_length": config.get("prefix_dense_intermediate_size") or width, "rope.scaling.type": "none",
        "expert_feed_forward_length": width, "logit_scale": config["logit_scale"], "expert_gating_func": 2,
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_weights_norm": config["norm_topk_prob"], "rope.dimension_count": config["head_dim"],
    }  # fmt: skip


def _hy_v3(config: Config) -> Config:
    width = config["moe_intermediate_size"]
    return {
        "expert_feed_forward_length": width, "expert_gating_func": 2, "expert_weights_norm": True,
        "expert_shared_feed_forward_length": width * config["num_shared_experts"],
        "expert_weights_scale": config["router_scaling_factor"],
    }  # fmt: skip


def _ocr(config: Config) -> Config:
    return moe_keys(config, expert_weights_scale=None) | {
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"), "rope.dimension_count": 0,
    }  # fmt: skip


_V4_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_V4_ENTRIES = {"kv_proj": "kv", "gate_proj": "gate", "kv_norm": "norm"}
_V4 = {
    **{f"hc_head.hc_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")},
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_norm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_proj": "attn_kv", "self_attn.kv_norm": "attn_kv_a_norm", "self_attn.o_a_proj": "attn_output_a",
    "self_attn.o_b_proj": "attn_output_b", "self_attn.compressor.indexer.q_b_proj": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj": "indexer.proj",
    **{f"self_attn.compressor.{name}": f"attn_compressor_{ours}" for name, ours in _V4_ENTRIES.items()},
    **{f"self_attn.compressor.indexer.{name}": f"indexer_compressor_{ours}" for name, ours in _V4_ENTRIES.items()},
}  # fmt: skip
_V4_ALONE = {
    "self_attn.sinks": "attn_sinks.weight", "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "self_attn.compressor.position_bias": "attn_compressor_ape.weight",
    "self_attn.compressor.indexer.position_bias": "indexer_compressor_ape.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"attn_hc.{part}": f"hc_attn_{part}.weight" for part in ("fn", "base", "scale")},
    **{f"ffn_hc.{part}": f"hc_ffn_{part}.weight" for part in ("fn", "base", "scale")},
}  # fmt: skip


def _deepseek4(config: Config) -> Config:
    """The number of layers that predict further tokens is told, but these are neither written nor counted."""
    rope = config["rope_parameters"]["compress"]
    yarn = rope["rope_type"] == "yarn"
    limit = [config["swiglu_limit"]] * config["num_hidden_layers"]
    return moe_keys(config) | {
        "feed_forward_length": None, "leading_dense_block_count": None, "expert_gating_func": 4,
        "expert_weights_norm": config["norm_topk_prob"], "swiglu_clamp_exp": limit, "nextn_predict_layers": 1,
        "rope.freq_base": config["rope_theta"], "rope.dimension_count": config["qk_rope_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"], "attention.output_lora_rank": config["o_lora_rank"],
        "attention.output_group_count": config["o_groups"], "attention.sliding_window": config["sliding_window"],
        "attention.compress_ratios": [*(_V4_RATIOS[kind] for kind in config["layer_types"]), 0],
        "attention.compress_rope_freq_base": config["compress_rope_theta"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"], "attention.indexer.top_k": config["index_topk"],
        "hyper_connection.count": config["hc_mult"], "hyper_connection.epsilon": config["hc_eps"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "hash_layer_count": config["mlp_layer_types"].count("hash_moe"),
        "rope.scaling.type": "yarn" if yarn else None, "rope.scaling.factor": rope.get("factor"),
        "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
    }  # fmt: skip


def _deepseek4_tensor(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([(_V4_ALONE[name], values)]) if name in _V4_ALONE else _apart(config, name, values)


def _without_suffix(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([("exp_probs_b", values)]) if name.endswith("expert_bias") else None


_LAGUNA = {"self_attn.g_proj": "attn_gate"}
_LAGUNA |= {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in W.values()}
_LAGUNA_KINDS = ["full_attention", *["sliding_attention"] * 3, "full_attention"]
_STEP35 = {"self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp"}
_STEP35 |= {f"moe.{part}_proj": f"ffn_{part}_exps" for part in W.values()}
_STEP35 |= {f"share_expert.{part}_proj": f"ffn_{part}_shexp" for part in W.values()}
_STEP_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0},
}  # fmt: skip
_STEP_CONVERSION = Conversion("step35", _step35, _STEP35, _step35_tensor, plus_one=True, extra=_step35_predicts)
_HY_V3 = {"mlp.router.gate": "ffn_gate_inp"}
_HY_V3 |= {f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in W.values()}
_YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64}
_MELLUM_ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}
_MISTRAL4 = Conversion("mistral4", _mistral4_keys, LATENT, _stacked, told="queries do not grow")
MIXTURES: list[tuple[Case, Conversion]] = [
    (converted_case("minimax_m2"), Conversion("minimax-m2", _minimax, _MINIMAX, _corrected)),
    (converted_case("hunyuan_v1_moe"), Conversion("hunyuan-moe", _hunyuan, _HUNYUAN)),
    (converted_case("dots1", max_window_layers=3), Conversion("dots1", _sigmoid, change=_corrected)),
    (converted_case("exaone_moe"), Conversion("exaone-moe", _sigmoid, change=_corrected)),
    (converted_case("mellum", mlp_layer_types=["sparse"] * 4), Conversion("mellum", _mellum)),
    *(
        (
            converted_case(
                "mellum",
                mlp_layer_types=["sparse"] * 4,
                max_position_embeddings=128,
                rope_parameters=_MELLUM_ROPE | {"full_attention": _YARN | given},
            ),
            Conversion("mellum", _mellum),
        )
        for given in ({}, {"attention_factor": 1.0})
    ),
    (
        converted_case(
            "laguna",
            num_hidden_layers=5,
            num_attention_heads_per_layer=[4, 8, 2, 4, 6],
            layer_types=_LAGUNA_KINDS,
            mlp_layer_types=["dense"] * 2 + ["sparse"] * 3,
        ),
        Conversion("laguna", _laguna, _LAGUNA, _corrected),
    ),
    (
        converted_case(
            "laguna-per-element",
            num_hidden_layers=5,
            sliding_window=16,
            layer_types=_LAGUNA_KINDS,
            mlp_layer_types=["sparse"] * 5,
        ),
        Conversion("laguna", _laguna, _LAGUNA, _corrected),
    ),
    (_step_case("step3p7-yarn", rope_parameters=_STEP_ROPE, query_pre_attn_scalar=None), _STEP_CONVERSION),
    (_step_case("step3p7"), replace(_STEP_CONVERSION, extra=_step35_factors)),
    (_step_case("step3p7", rope_scaling=None), _STEP_CONVERSION),
    (converted_case("cohere2_moe"), Conversion("cohere2moe", _cohere2_moe)),
    (
        converted_case(
            "cohere2_moe",
            num_shared_experts=2,
            norm_topk_prob=False,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            intermediate_size=40,
        ),
        Conversion("cohere2moe", _cohere2_moe),
    ),
    (
        converted_case("cohere2_moe-rms", num_shared_experts=0, expert_selection_fn="sigmoid"),
        Conversion("cohere2moe", _cohere2_moe),
    ),
    (converted_case("deepseek_ocr2"), Conversion("deepseek2-ocr", _ocr)),
    *(
        (
            replace(
                converted_case(
                    "deepseek_v4-long",
                    index_topk=20,
                    num_hidden_layers=3,
                    sliding_window=40,
                    layer_types=list(_V4_RATIOS)[::-1],
                    num_hash_layers=1,
                    **more,
                ),
                prompt=300,
            ),
            Conversion("deepseek4", _deepseek4, _V4, _deepseek4_tensor),
        )
        for more in ({}, {"rope_parameters": _YARN, "swiglu_limit": 0.7, "hc_mult": 3})
    ),
    (converted_case("hy_v3"), Conversion("hy_v3", _hy_v3, _HY_V3, _without_suffix)),
    (converted_case("mimo_v2_flash", n_group=1, topk_group=1), Conversion("mimo2", _mimo2, change=_with_sinks)),
    (converted_case("dbrx"), Conversion("dbrx", _dbrx, _DBRX, _dbrx_tensor)),
    (converted_case("afmoe"), Conversion("afmoe", _afmoe, _AFMOE, _corrected)),
    *(
        (converted_case(f"falcon{kind}", bias=False), Conversion("falcon", _falcon, _FALCON, _falcon_tensor))
        for kind in ("", "-grouped", "-one-norm")
    ),
    *((converted_case(name), Conversion("bloom", _bloom, _FALCON, _by_part)) for name in ("bloom", "bloom-untied")),
    (converted_case("mpt"), Conversion("mpt", _mpt, _MPT)),
    (converted_case("mpt-clamped", attn_config={"clip_qkv": 1.5}), Conversion("mpt", _mpt, _MPT)),
    (converted_case("jais2"), Conversion("jais2")),
    (converted_case("youtu"), Conversion("deepseek2", _youtu, LATENT, latent)),
    (converted_case("deepseek_v32"), Conversion("deepseek32", _indexed, INDEXED, latent)),
    (converted_case("glm_moe_dsa"), Conversion("glm-dsa", _indexed, INDEXED, latent)),
    (_mistral4("mistral4", llama_4_scaling_beta=0.0), _MISTRAL4),
    (_mistral4("mistral4-dense", rope_type="default", llama_4_scaling_beta=0.0), replace(_MISTRAL4, told="")),
    (_mistral4("mistral4"), Conversion("deepseek2", _mistral_format, LATENT, _apart)),
    (converted_case("youtu-plain", rope_interleave=True), Conversion("deepseek2", _youtu, LATENT, latent)),
]
