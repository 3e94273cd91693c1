"""Gemmas in .gguf files: names of tensors, and the keys that only they have.

Source: the converter (conversion/) and src/models/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from forearm.errors import ConfigError
from forearm.model.families.switches import FULL, SLIDING
from forearm.model.gguf import gguf_experts
from forearm.model.gguf.gguf_metadata import GgufMetadata

_PER_LAYER = {
    "embed_per_layer": "per_layer_token_embd", "project_per_layer": "per_layer_model_proj",
    "per_layer_norm": "per_layer_proj_norm", "per_layer_gate": "inp_gate", "per_layer_out": "proj",
    "post_per_layer_norm": "post_norm",
}  # fmt: skip
GEMMA3N = {
    **_PER_LAYER, "laurel_left": "laurel_l", "laurel_right": "laurel_r", "laurel_norm": "laurel_post_norm",
    "alt_up_norm": "altup_router_norm.weight", "alt_up_router": "altup_router.weight",
    "alt_up_predict": "altup_predict_coef.weight", "alt_up_correct": "altup_correct_coef.weight",
    "alt_up_scale": "altup_correct_scale.weight",
    **{f"stream_in_{i}": f"altup_proj[{i - 1}]" for i in range(1, 8)},
    **{f"stream_out_{i}": f"altup_unembd_proj[{i - 1}]" for i in range(1, 8)},
}  # fmt: skip
GEMMA4 = {
    **_PER_LAYER, "scalar": "layer_output_scale.weight",
    "router_norm": "ffn_gate_inp.scale", "expert_scale": "ffn_down_exps.scale", "pre_experts_norm": "pre_ffw_norm_2",
    "post_shared_norm": "post_ffw_norm_1", "post_experts_norm": "post_ffw_norm_2",
    **{f"shared.{part}": f"ffn_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip


def windows(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    """Add the sliding window, and the kind of each layer."""
    values["sliding_window"] = metadata.integer("attention.sliding_window")
    slides = metadata.each("attention.sliding_window_pattern", values["num_hidden_layers"])
    values["layer_types"] = [SLIDING if one else FULL for one in slides]


def gemma2(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Gemma 2's window, softcaps and scale of queries."""
    values["sliding_window"] = metadata.integer("attention.sliding_window", 4096)
    values["attn_logit_softcapping"] = metadata.number("attn_logit_softcapping", 50.0)
    values["final_logit_softcapping"] = metadata.number("final_logit_softcapping", 30.0)
    _query_scale(values, 46)
    return None


def gemma3(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Gemma 3's window, the angles of its sliding layers and the scale of queries."""
    values["sliding_window"] = metadata.integer("attention.sliding_window")
    values["sliding_window_pattern"] = metadata.integer("attention.sliding_window_pattern", 6)
    values["rope_local_base_freq"] = metadata.number("rope.freq_base_swa", 1e4)
    values["final_logit_softcapping"] = metadata.number("final_logit_softcapping", 0.0)
    _query_scale(values, 62)
    return None


def _query_scale(values: dict[str, Any], wide: int) -> None:
    """Add the scale of queries; the 27B models, known by their number of layers, have a wider one."""
    hidden = values["hidden_size"] // values["num_attention_heads"]
    values["query_pre_attn_scalar"] = hidden if values["num_hidden_layers"] == wide else values["head_dim"]


def gemma3n(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Gemma 3n's streams, gates that are cut and shared keys; Laurel's rank is a tensor's size.

    The converter pads the table of each layer to the whole vocabulary, and writes for each layer how many deviations
    above the mean its gates are cut: minus infinity for none.
    """
    windows(metadata, values)
    values["rope_local_base_freq"] = metadata.number("rope.freq_base_swa", 1e4)
    values["final_logit_softcapping"] = metadata.number("final_logit_softcapping", 30.0)
    values["altup_active_idx"] = metadata.integer("altup.active_idx", 0)
    values["altup_num_inputs"] = metadata.integer("altup.num_inputs", 4)
    for key, tensor in (("laurel_rank", "blk.0.laurel_l"), ("vocab_size_per_layer_input", "per_layer_token_embd")):
        if not metadata.has(f"{tensor}.weight"):
            raise ConfigError(f"{metadata.gguf.path} has no tensor {tensor}.weight, which Gemma 3n needs")
        values[key] = metadata.gguf.tensors[f"{tensor}.weight"].shape[0]
    values["hidden_size_per_layer_input"] = metadata.integer("embedding_length_per_layer_input")
    behind = max(values["num_hidden_layers"] - 20, 0)  # as in llama.cpp: the first 20 layers have keys of their own
    values["num_kv_shared_layers"] = metadata.integer("attention.shared_kv_layers", behind)
    values["intermediate_size"] = metadata.each("feed_forward_length", values["num_hidden_layers"])
    cuts = metadata.keys.get("gemma3n.activation_sparsity_scale")
    if not isinstance(cuts, list) or not all(isinstance(one, float) for one in cuts):
        raise metadata.wrong("activation_sparsity_scale", "a list of numbers, one for each layer")
    values["activation_sparsity_pattern"] = [NormalDist().cdf(one) for one in cuts]
    return None


def gemma4(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Gemma 4's two kinds of layers: head sizes and kv heads of each, and the angles of the wide heads."""
    slides = metadata.each("attention.sliding_window_pattern", values["num_hidden_layers"])
    values["layer_types"] = [SLIDING if one else FULL for one in slides]
    heads = metadata.each("attention.head_count_kv", len(slides))
    full = next((i for i, one in enumerate(slides) if not one), len(slides) - 1)
    narrow = next((i for i, one in enumerate(slides) if one), full)
    values["num_key_value_heads"], values["num_global_key_value_heads"] = heads[narrow], heads[full]
    values["attention_k_eq_v"] = not metadata.has(f"blk.{full}.attn_v.weight")
    values["global_head_dim"] = values["head_dim"]
    values["head_dim"] = metadata.size("attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if metadata.integer(key, values["head_dim"]) != values["head_dim"]:
            raise metadata.wrong(key, f"the same as attention.key_length_swa ({values['head_dim']})")
    values["sliding_window"] = metadata.integer("attention.sliding_window")
    values["num_kv_shared_layers"] = shared = metadata.integer("attention.shared_kv_layers", 0)
    widths = metadata.each("feed_forward_length", len(slides))
    values["intermediate_size"], values["use_double_wide_mlp"] = widths[0], bool(shared) and widths[-1] == 2 * widths[0]
    values["hidden_size_per_layer_input"] = metadata.integer("embedding_length_per_layer_input", 0)
    values["vocab_size_per_layer_input"] = values["vocab_size"]
    gguf_experts.plain(metadata, values)
    values["enable_moe_block"], values["top_k_experts"] = bool(values["num_experts"]), values.get("num_experts_per_tok")
    values["final_logit_softcapping"] = metadata.number("final_logit_softcapping", 0.0)
    # Pairs that do not turn have factors of 1e30 (_as_stored leaves them out).
    turning = [one for one in metadata.factors("rope_freqs.weight") if one < 1e29]
    angles = {"rope_type": "proportional", "partial_rotary_factor": 2 * len(turning) / values["global_head_dim"]}
    values["rope_parameters"] = {
        FULL: angles | {"rope_theta": values.pop("rope_theta")},
        SLIDING: {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", 1e4)},
    }
    return None
