"""Families that are read from .gguf files, with the rules by which llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tests.model.cases import CASES, Case
from tests.model.gguf_converter import Config, Conversion, Tensors

W = {"w1": "gate", "w2": "down", "w3": "up"}
_MAMBA = {"conv1d": "ssm_conv1d", "in_proj": "ssm_in", "out_proj": "ssm_out"}
AFTER = {"post_attention_layernorm": "post_attention_norm"}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm": "ffn_norm",
}  # fmt: skip
# --- what some families' tensors become ---


def _recurrent(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield Mamba2's vectors and norms as llama.cpp wants them."""
    module, _, end = name.rpartition(".")
    groups = config.get("n_groups", config.get("mamba_n_groups", 1))
    made = {
        "A_log": ("ssm_a", lambda: -np.exp(values)[:, None]), "D": ("ssm_d", lambda: values[:, None]),
        "dt_bias": ("ssm_dt.bias", lambda: values),
    }  # fmt: skip
    if end in made:
        return iter([(made[end][0], made[end][1]())])
    if module.endswith("conv1d") and end == "weight":
        return iter([("ssm_conv1d.weight", values[:, 0])])
    if module in ("mamba.norm", "mixer.norm"):
        return iter([("ssm_norm.weight", values.reshape(groups, -1))])
    if end == "e_score_correction_bias":
        return iter([("exp_probs_b.bias", values)])
    return None


def _scanned(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the vectors of Mamba's selective scan as llama.cpp wants them."""
    module, _, end = name.rpartition(".")
    if end == "A_log":
        return iter([("ssm_a", -np.exp(values))])
    if end == "D":
        return iter([("ssm_d", values)])
    return iter([("ssm_conv1d.weight", values[:, 0])]) if module.endswith("conv1d") and end == "weight" else None


def corrected(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    bias = name.endswith(("e_score_correction_bias", "expert_bias"))
    if name == "conv.conv.weight":
        return iter([("shortconv.conv.weight", values[:, 0])])
    return iter([("exp_probs_b.bias", values)]) if bias else None


def latent(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield kv_b_proj's keys, transposed, and values."""
    if name != "self_attn.kv_b_proj.weight":
        return corrected(config, name, values)
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    heads = values.reshape(-1, plain + value, values.shape[1])
    return iter([("attn_k_b.weight", heads[:, :plain].swapaxes(1, 2)), ("attn_v_b.weight", heads[:, plain:])])


def granite(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield the halves of fused matrices; a shared expert that is alone is the feed-forward."""
    shared = "mlp.shared_experts." if config.get("num_local_experts") else "mlp."
    if name.endswith("input_linear.weight"):
        block = "mlp.experts." if "sparse" in name else shared
        gate, up = np.split(values, 2, axis=-2)
        return iter([(f"{block}gate_proj.weight", gate), (f"{block}up_proj.weight", up)])
    if name.endswith("output_linear.weight"):
        return iter([(("mlp.experts." if "sparse" in name else shared) + "down_proj.weight", values)])
    return _recurrent(config, name, values)


def _falcon(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield tensors multiplied with Falcon-H1's multipliers."""
    into, out = config["attention_in_multiplier"], config["attention_out_multiplier"]
    gate, down = config["mlp_multipliers"]
    scales: dict[str, Any] = {
        "self_attn.q_proj": into, "self_attn.v_proj": into, "self_attn.k_proj": into * config["key_multiplier"],
        "self_attn.o_proj": out, "feed_forward.gate_proj": gate, "feed_forward.down_proj": down,
        "mamba.out_proj": config["ssm_out_multiplier"],
    }  # fmt: skip
    module = name.removesuffix(".weight")
    if module == "mamba.in_proj":
        inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, shared, shared, config["mamba_n_heads"])
        scales[module] = config["ssm_in_multiplier"] * np.repeat(config["ssm_multipliers"], sizes)[:, None]
    if module == "pre_ff_layernorm":
        return iter([("ffn_norm", values)])  # without ".weight"
    return iter([(name, values * scales[module])]) if module in scales else _recurrent(config, name, values)


def _tiled(values: np.ndarray, config: Config, width: int, begin: int = 0) -> np.ndarray:
    """Rows from `begin` on, `width` for each value head, in the order of key heads first."""
    keys = config["linear_num_key_heads"]
    own = values[begin:].reshape(keys, -1, width, *values.shape[1:]).swapaxes(0, 1)
    return np.concatenate([values[:begin], own.reshape(values[begin:].shape)])


def _delta(config: Config, name: str, values: np.ndarray, tiled: bool) -> Tensors | None:
    """Yield the delta rule's tensors; q, k, v and gates of a key head, which alternate in Qwen3-Next, are parted."""
    if not name.startswith("linear_attn."):
        return None
    inner, key, value = name[12:], config["linear_key_head_dim"], config["linear_value_head_dim"]
    keys = config["linear_num_key_heads"]
    group = config["linear_num_value_heads"] // keys
    order = partial(_tiled, config=config) if tiled else lambda values, width, begin=0: values
    if inner == "in_proj_qkvz.weight":
        heads = values.reshape(keys, -1, values.shape[1])
        q, k, v, z = (
            one.reshape(-1, values.shape[1])
            for one in np.split(heads, np.cumsum([key, key, group * value]), axis=1)
        )  # fmt: skip
        return iter([("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z)])
    table: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
        "in_proj_ba.weight": ("ssm_ba.weight", lambda: values),
        "in_proj_qkv.weight": ("attn_qkv.weight", lambda: order(values, width=value, begin=2 * keys * key)),
        "in_proj_z.weight": ("attn_gate.weight", lambda: order(values, width=value)),
        "in_proj_b.weight": ("ssm_beta.weight", lambda: order(values, width=1)),
        "in_proj_a.weight": ("ssm_alpha.weight", lambda: order(values, width=1)),
        "conv1d.weight": ("ssm_conv1d.weight", lambda: order(values[:, 0], width=value, begin=2 * keys * key)),
        "A_log": ("ssm_a", lambda: -np.exp(order(values, width=1))),
        "dt_bias": ("ssm_dt.bias", lambda: order(values, width=1)),
        "norm.weight": ("ssm_norm.weight", lambda: values),
        "out_proj.weight": ("ssm_out.weight", lambda: order(values.T, width=value).T),
    }
    ours, made = table[inner]
    return iter([(ours, made())])


# --- the families ---


def _layers(config: Config, kinds: tuple[str, ...]) -> list[bool]:
    return [one in kinds for one in config.get("layer_types") or config["layers_block_type"]]


def _kv(config: Config) -> list[int]:
    """Kv heads of each layer: none where there is no attention."""
    attends = _layers(config, ("full_attention", "attention"))
    return [one * config["num_key_value_heads"] for one in attends]


def window_keys(config: Config) -> Config:
    if not config.get("sliding_window"):
        return {}
    slides = _layers(config, ("sliding_attention",))
    return {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides}


def moe_keys(config: Config, **more: Any) -> Config:
    return {
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config.get("n_shared_experts"),
        "leading_dense_block_count": config.get("first_k_dense_replace", config.get("num_dense_layers")),
        "expert_weights_scale": config.get("routed_scaling_factor"), **more,
    }  # fmt: skip


def _ssm(config: Config, heads: str, inner: int, state: str, taps: str, groups: str) -> Config:
    return {
        "ssm.conv_kernel": config[taps], "ssm.inner_size": inner, "ssm.state_size": config[state],
        "ssm.time_step_rank": config[heads], "ssm.group_count": config[groups],
    }  # fmt: skip


def converted_case(name: str, **settings: Any) -> Case:
    """A case of cases.py with what the converter takes for granted."""
    found = next(case for case in CASES if case.name == name)
    return replace(found, settings={**found.settings, **settings}, max_model_len=None)


def latent_keys(config: Config) -> Config:
    rope = config.get("rope_parameters") or {}
    weight = rope.get("mscale_all_dim")
    return {
        "attention.head_count_kv": 1, "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": config["v_head_dim"], "rope.dimension_count": config["qk_rope_head_dim"],
        "rope.scaling.yarn_log_multiplier": None if weight is None else 0.1 * weight,
        "expert_weights_norm": config.get("norm_topk_prob"),
        "leading_dense_block_count": sum(kind == "dense" for kind in config.get("mlp_layer_types") or ())
        or config.get("first_k_dense_replace"),
    }  # fmt: skip


def _delta_keys(config: Config) -> Config:
    value_heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": value_heads,
        "ssm.inner_size": config["linear_value_head_dim"] * value_heads,
        "attention.recurrent_layers": _layers(config, ("linear_attention",)),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }  # fmt: skip


GRANITE = {
    "block_sparse_moe.router.layer": "ffn_gate_inp", **{f"mamba.{name}": ours for name, ours in _MAMBA.items()},
}  # fmt: skip
_LFM2 = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj", "feed_forward.gate": "ffn_gate_inp",
    **{f"feed_forward.{w}": f"ffn_{part}" for w, part in W.items()},
    **{f"feed_forward.experts.{w}": f"ffn_{part}_exps" for w, part in W.items()},
}  # fmt: skip
LATENT = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}  # fmt: skip
_NEMOTRON_H = {
    "norm": "attn_norm", "mixer.o_proj": "attn_output", "mixer.gate": "ffn_gate_inp",
    **{f"mixer.{name}": ours for name, ours in _MAMBA.items()},
    **{f"mixer.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"mixer.{part}_proj": f"ffn_{part}" for part in ("up", "down")},
    **{f"mixer.experts.{part}_proj": f"ffn_{part}_exps" for part in ("up", "down")},
    **{f"mixer.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("up", "down")},
}  # fmt: skip
_QWEN = (
    AFTER
    | {"mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
    | {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
)


def granite_keys(config: Config) -> Config:
    found = {
        "embedding_scale": config["embedding_multiplier"], "residual_scale": config["residual_multiplier"],
        "attention.scale": config["attention_multiplier"], "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
    }  # fmt: skip
    if "mamba_d_state" in config:
        inner = config["mamba_n_heads"] * config["mamba_d_head"]
        found |= _ssm(config, "mamba_n_heads", inner, "mamba_d_state", "mamba_d_conv", "mamba_n_groups")
        found |= {"attention.head_count_kv": _kv(config), "rope.scaling.finetuned": False}
    return found


def _bamba_keys(config: Config) -> Config:
    """Kv heads are where it attends; the rotated half of a head is in config.json as published."""
    inner, attends = config["mamba_n_heads"] * config["mamba_d_head"], config["attn_layer_indices"]
    kv_heads = [config["num_key_value_heads"] * (i in attends) for i in range(config["num_hidden_layers"])]
    return _ssm(config, "mamba_n_heads", inner, "mamba_d_state", "mamba_d_conv", "mamba_n_groups") | {
        "attention.head_count_kv": kv_heads, "rope.scaling.finetuned": True,
        "rope.dimension_count": config["attn_rotary_emb"],
    }  # fmt: skip


def _nemotron_h_keys(config: Config) -> Config:
    kinds = config["layers_block_type"]
    moe = "moe" in kinds
    width = config["moe_intermediate_size" if moe else "intermediate_size"]
    found = _ssm(
        config, "mamba_num_heads", config["mamba_num_heads"] * config["mamba_head_dim"], "ssm_state_size",
        "conv_kernel", "n_groups",
    )  # fmt: skip
    found |= {
        "block_count": len(kinds), "attention.head_count_kv": _kv(config),
        "feed_forward_length": [width * (kind in ("moe", "mlp")) for kind in kinds],
    }  # fmt: skip
    if not moe:
        return found | dict.fromkeys(("expert_count", "expert_used_count"))
    more = {"expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"]}
    return found | moe_keys(config, expert_weights_norm=config["norm_topk_prob"], **more)


def _mamba2_keys(config: Config) -> Config:
    inner = config["num_heads"] * config["head_dim"]
    own = {"attention.head_count": 0} | dict.fromkeys(
        f"attention.{key}" for key in ("head_count_kv", "key_length", "value_length")
    )
    return own | _ssm(config, "num_heads", inner, "state_size", "conv_kernel", "n_groups")


def _mamba_keys(config: Config) -> Config:
    """No size of attention or a feed-forward; the epsilon of Falcon-Mamba's other norms is not kept."""
    return {
        "feed_forward_length": 0, "attention.head_count": 0,
        **dict.fromkeys(f"attention.{key}" for key in ("head_count_kv", "key_length", "value_length")),
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"], "attention.layer_norm_epsilon": None,
        "ssm.conv_kernel": config["conv_kernel"], "ssm.inner_size": config["intermediate_size"],
        "ssm.state_size": config["state_size"], "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }  # fmt: skip


def _jamba_keys(config: Config) -> Config:
    layers, attends = range(config["num_hidden_layers"]), (config["attn_layer_period"], config["attn_layer_offset"])
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] * (i % attends[0] == attends[1]) for i in layers],
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"], "ssm.time_step_rank": config["mamba_dt_rank"],
    }  # fmt: skip


def _falcon_keys(config: Config) -> Config:
    return _ssm(config, "mamba_n_heads", config["mamba_d_ssm"], "mamba_d_state", "mamba_d_conv", "mamba_n_groups")


def _lfm2_keys(config: Config) -> Config:
    more = {"attention.head_count_kv": _kv(config), "shortconv.l_cache": config["conv_L_cache"]}
    return moe_keys(config, expert_gating_func=2, **more)


_SCAN = (
    _MAMBA | {"x_proj": "ssm_x", "dt_proj": "ssm_dt"} | {f"{n}_layernorm": f"ssm_{n}_norm" for n in ("dt", "b", "c")}
)
_PLAIN_MAMBA = Conversion(
    "mamba", _mamba_keys, {"norm": "attn_norm"} | {f"mixer.{name}": ours for name, ours in _SCAN.items()}, _scanned
)
_QWEN_CONVERSION = Conversion("qwen35", _delta_keys, _QWEN, partial(_delta, tiled=True), plus_one=True)
_FEED_FORWARD = {f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
_FALCON = Conversion(
    "falcon-h1", _falcon_keys,
    _FEED_FORWARD | {f"mamba.{name}": ours for name, ours in _MAMBA.items()},
    _falcon, scaled={"embed_tokens": "embedding_multiplier", "lm_head": "lm_head_multiplier"},
)  # fmt: skip
_BAMBA = Conversion(
    "granitehybrid", _bamba_keys, GRANITE | _FEED_FORWARD | {"pre_ff_layernorm": "ffn_norm"}, _recurrent, permuted=True
)
_JAMBA = Conversion(
    "jamba", _jamba_keys,
    _FEED_FORWARD | {"pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp"}
    | {f"feed_forward.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
    | {f"mamba.{name}": ours for name, ours in _SCAN.items()}, _scanned,
)  # fmt: skip
_GATE_FIRST = {"mamba_norm_before_gate": False, "tie_word_embeddings": False}
STATES: list[tuple[Case, Conversion]] = [
    (converted_case("qwen3.5-text"), _QWEN_CONVERSION),
    (converted_case("qwen3.5-tied", linear_num_value_heads=6), _QWEN_CONVERSION),
    (converted_case("qwen3.5"), _QWEN_CONVERSION),
    (converted_case("qwen3.5-moe-text"), replace(_QWEN_CONVERSION, architecture="qwen35moe")),
    (converted_case("qwen3-next", mlp_only_layers=[]),
     Conversion("qwen3next", _delta_keys, _QWEN, partial(_delta, tiled=False), plus_one=True)),
    (converted_case("granite-h"), Conversion("granitehybrid", granite_keys, GRANITE, granite, permuted=True)),
    (converted_case("granite-h-groups", position_embedding_type="nope"),
     Conversion("granitehybrid", granite_keys, GRANITE, granite, permuted=True)),
    (converted_case("bamba", attn_rotary_emb=6), _BAMBA),
    (converted_case("bamba", attn_rotary_emb=12, attention_bias=True, num_attention_heads=3, num_key_value_heads=3,
                    attn_layer_indices=[0, 2], tie_word_embeddings=True, num_hidden_layers=4), _BAMBA),
    (converted_case("falcon-h1", **_GATE_FIRST), _FALCON),
    (converted_case("falcon-h1-norm", **_GATE_FIRST), _FALCON),
    (converted_case("nemotron-h"), Conversion("nemotron_h", _nemotron_h_keys, _NEMOTRON_H, _recurrent)),
    (converted_case("nemotron-h-mixer"), Conversion("nemotron_h", _nemotron_h_keys, _NEMOTRON_H, _recurrent)),
    (converted_case("nemotron-h-moe"), Conversion("nemotron_h_moe", _nemotron_h_keys, _NEMOTRON_H, _recurrent)),
    (converted_case("mamba2"), Conversion("mamba2", _mamba2_keys, _NEMOTRON_H, _recurrent)),
    *((converted_case(name), _PLAIN_MAMBA) for name in ("mamba", "mamba-biases")),
    (converted_case("falcon_mamba", mixer_rms_eps=1e-6), _PLAIN_MAMBA),
    *((converted_case(name), _JAMBA) for name in ("jamba", "jamba-dense")),
    (converted_case("lfm2-moe", routed_scaling_factor=1.0), Conversion("lfm2moe", _lfm2_keys, _LFM2, corrected)),
]  # fmt: skip
