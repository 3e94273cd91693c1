"""Keys of .gguf files whose layers keep a state, as config.json's keys of their families."""

from __future__ import annotations

from typing import Any

from forearm.model.families.switches import FULL
from forearm.model.gguf import gguf_experts
from forearm.model.gguf.gguf_metadata import GgufMetadata


def lfm2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add LFM2's convolutions: layers without kv heads."""
    values |= {"norm_eps": values["rms_norm_eps"], "block_auto_adjust_ff_dim": False}
    values["conv_L_cache"] = metadata.integer("shortconv.l_cache")
    values["layer_types"] = _kinds(metadata, values, "conv")
    return None


def lfm2_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add LFM2-MoE's convolutions and experts."""
    lfm2(metadata, values)
    gguf_experts.plain(metadata, values)
    metadata.integer("expert_gating_func", 2)
    values["num_dense_layers"] = metadata.integer("leading_dense_block_count", 0)
    values["routed_scaling_factor"] = metadata.number("expert_weights_scale", 1.0)
    values["use_expert_bias"] = metadata.any_layer("exp_probs_b.bias")
    return None


def qwen(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the delta rule of Qwen3-Next and Qwen3.5, and their experts."""
    heads = metadata.size("ssm.time_step_rank")
    values["linear_num_key_heads"] = metadata.size("ssm.group_count")
    values["linear_num_value_heads"] = heads
    values["linear_key_head_dim"] = metadata.size("ssm.state_size")
    values["linear_value_head_dim"] = metadata.size("ssm.inner_size") // heads
    values["linear_conv_kernel_dim"] = metadata.size("ssm.conv_kernel")
    every, layers = metadata.size("full_attention_interval", 4), values["num_hidden_layers"]
    states = metadata.each("attention.recurrent_layers", layers, [(i + 1) % every != 0 for i in range(layers)])
    values["layer_types"] = ["linear_attention" if one else FULL for one in states]
    if metadata.integer("expert_count", 0):
        gguf_experts.plain(metadata, values)
        values["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length")
    return {"qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text"}.get(metadata.architecture)


def granite_hybrid(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of Granite 4 H, or of Bamba, whose attention has positions and which has no multipliers."""
    _mamba2(metadata, values)
    values["layer_types"] = _kinds(metadata, values, "mamba")
    rotated = metadata.flag("rope.scaling.finetuned", True)
    if rotated and "granitehybrid.embedding_scale" not in metadata.keys:
        values["attn_layer_indices"] = [i for i, kind in enumerate(values["layer_types"]) if kind == FULL]
        return "bamba"
    gguf_experts.granite_moe(metadata, values)
    values["position_embedding_type"] = "rope" if rotated else "nope"
    if not values["num_local_experts"]:  # the shared expert, which is alone, is the feed-forward
        values["shared_intermediate_size"] = metadata.tensor("blk.0.ffn_up.weight").shape[0]
    return None


def falcon_h1(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Falcon-H1's Mamba2; the converter has multiplied the weights with its multipliers."""
    _mamba2(metadata, values)
    values["mamba_d_ssm"] = metadata.size("ssm.inner_size")
    values["mamba_rms_norm"] = metadata.has("blk.0.ssm_norm.weight")
    values["mamba_norm_before_gate"] = False
    return None


def nemotron_h(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Nemotron-H's layers, each of one half, which its tensors tell."""
    _mamba2(metadata, values)
    gguf_experts.plain(metadata, values)
    heads = values["mamba_n_heads"]
    values |= {
        "mamba_num_heads": heads, "mamba_head_dim": values["mamba_d_head"], "n_groups": values["mamba_n_groups"],
        "ssm_state_size": values["mamba_d_state"], "conv_kernel": values["mamba_d_conv"],
        "use_conv_bias": values["mamba_conv_bias"], "use_bias": values["mamba_proj_bias"],
        "layer_norm_epsilon": values["rms_norm_eps"], "mlp_bias": metadata.any_layer("ffn_up.bias"),
        "n_group": metadata.integer("expert_group_count", 1),
        "topk_group": metadata.integer("expert_group_used_count", 1),
        "norm_topk_prob": metadata.flag("expert_weights_norm", True),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "moe_shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length", 1),
        "n_shared_experts": metadata.integer("expert_shared_count", 1),
        "moe_latent_size": metadata.integer("moe_latent_size", 0) or None,
    }  # fmt: skip
    marks = {"mamba": "ssm_in", "attention": "attn_q", "moe": "ffn_gate_inp", "mlp": "ffn_up"}
    values["layers_block_type"] = [
        next((kind for kind, tensor in marks.items() if metadata.has(f"blk.{i}.{tensor}.weight")), "none")
        for i in range(values["num_hidden_layers"])
    ]
    for i, kind in enumerate(values["layers_block_type"]):
        if kind == "mlp":
            values["intermediate_size"] = metadata.gguf.tensors[f"blk.{i}.ffn_up.weight"].shape[0]
    return None


def mamba2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of a model of Mamba2 alone."""
    _mamba2(metadata, values)
    values |= {
        "num_heads": values["mamba_n_heads"], "head_dim": values["mamba_d_head"], "expand": values["mamba_expand"],
        "state_size": values["mamba_d_state"], "n_groups": values["mamba_n_groups"],
        "conv_kernel": values["mamba_d_conv"], "use_conv_bias": values["mamba_conv_bias"],
        "use_bias": values["mamba_proj_bias"], "layer_norm_epsilon": values["rms_norm_eps"],
    }  # fmt: skip
    return None


def mamba(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of a model of Mamba alone, whose steps, b and c are normalized in Falcon-Mamba."""
    values |= {
        "head_dim": 16, "intermediate_size": metadata.size("ssm.inner_size"),
        "state_size": metadata.size("ssm.state_size"), "time_step_rank": metadata.size("ssm.time_step_rank"),
        "conv_kernel": metadata.size("ssm.conv_kernel"), "use_conv_bias": metadata.any_layer("ssm_conv1d.bias"),
        "use_bias": metadata.any_layer("ssm_in.bias"), "layer_norm_epsilon": values["rms_norm_eps"],
    }  # fmt: skip
    return "falcon_mamba" if metadata.flag("ssm.dt_b_c_rms", False) else "mamba"


def jamba(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Jamba's Mamba, in layers without kv heads, and its experts, in layers that have a router."""
    gguf_experts.plain(metadata, values)
    values |= {
        "mamba_expand": metadata.size("ssm.inner_size") / values["hidden_size"],
        "mamba_d_state": metadata.size("ssm.state_size"), "mamba_dt_rank": metadata.size("ssm.time_step_rank"),
        "mamba_d_conv": metadata.size("ssm.conv_kernel"), "mamba_conv_bias": metadata.any_layer("ssm_conv1d.bias"),
        "mamba_proj_bias": metadata.any_layer("ssm_in.bias"),
    }  # fmt: skip
    layers = range(values["num_hidden_layers"])
    attends = [kind == FULL for kind in _kinds(metadata, values, "mamba")]
    routed = [metadata.has(f"blk.{i}.ffn_gate_inp.weight") for i in layers]
    for name, marked, key in (("attn", attends, "attention.head_count_kv"), ("expert", routed, "expert_count")):
        found = [i for i in layers if marked[i]]
        offset = found[0] if found else len(layers)
        period = found[1] - offset if len(found) > 1 else len(layers) + 1
        if marked != [i % period == offset for i in layers]:
            raise metadata.wrong(key, f"of layers at equal distances, which layers {found} are not")
        values |= {f"{name}_layer_period": period, f"{name}_layer_offset": offset}
    return None


def rwkv7(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the keys of RWKV-7; the norm of each head's results has the epsilon that llama.cpp gives it."""
    if metadata.integer("token_shift_count", 2) != 2:
        raise metadata.wrong("token_shift_count", "2: both halves of a layer read the token before")
    ranks = {"decay": "decay", "a": "iclr", "v": "value_residual_mix", "gate": "gate"}
    values |= {
        "head_dim": metadata.size("wkv.head_size"), "head_norm_eps": 64e-5,
        **{f"{name}_low_rank_dim": metadata.size(f"attention.{of}_lora_rank") for name, of in ranks.items()},
    }  # fmt: skip
    return None


def _mamba2(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    inner, heads = metadata.size("ssm.inner_size"), metadata.size("ssm.time_step_rank")
    values |= {
        "mamba_n_heads": heads, "mamba_d_head": inner // heads, "mamba_expand": inner / values["hidden_size"],
        "mamba_d_state": metadata.size("ssm.state_size"), "mamba_n_groups": metadata.size("ssm.group_count", 1),
        "mamba_d_conv": metadata.size("ssm.conv_kernel"), "mamba_conv_bias": metadata.any_layer("ssm_conv1d.bias"),
        "mamba_proj_bias": metadata.any_layer("ssm_in.bias"),
    }  # fmt: skip


def _kinds(metadata: GgufMetadata, values: dict[str, Any], other: str) -> list[str]:
    """Return full_attention for layers with kv heads, and `other` for those without."""
    kv_heads = metadata.each("attention.head_count_kv", values["num_hidden_layers"])
    return [FULL if one else other for one in kv_heads]
