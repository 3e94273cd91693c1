"""Keys of .gguf files with experts whose layers differ, as config.json's keys of their families.

Source: the converter (conversion/) and src/models/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

from typing import Any

from forearm.model.families.switches import FULL, SLIDING
from forearm.model.gguf import gguf_experts
from forearm.model.gguf.gguf_metadata import GgufMetadata

_SQRT_SOFTPLUS = 4  # a value of expert_gating_func
V4 = {
    "q_norm": "attn_q_a_norm", "kv": "attn_kv", "k_norm": "attn_kv_a_norm", "groups": "attn_output_a",
    "o": "attn_output_b", "sinks": "attn_sinks.weight", "experts_by_token": "ffn_gate_tid2eid.weight",
    "hyper_attention": "hc_attn_{part}.weight", "hyper_mlp": "hc_ffn_{part}.weight",
    "hyper_head": "output_hc_{part}.weight", "entry_norm": "attn_compressor_norm",
    "compressed_index_norm": "indexer_compressor_norm",
    **{f"entry{part}": f"attn_compressor_{name}" for part, name in (("", "kv"), ("_gate", "gate"))},
    **{f"index{part}": f"indexer_compressor_{name}" for part, name in (("", "kv"), ("_gate", "gate"))},
    "entry_bias": "attn_compressor_ape.weight", "index_bias": "indexer_compressor_ape.weight",
}  # fmt: skip


def mellum(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Mellum 2's experts, which every layer has, windows and angles by kind of layer."""
    gguf_experts.plain(metadata, values)
    _windows(metadata, values)
    _angles(metadata, values)
    values["mlp_layer_types"] = ["sparse"] * values["num_hidden_layers"]
    if values["partial_rotary_factor"] != 1:
        raise metadata.wrong("rope.dimension_count", f"that of attention.key_length ({values['head_dim']})")
    return None


def laguna(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Laguna's heads by layer, gates, experts, windows and angles by kind of layer.

    Files do not say whether a gate is of a head or of each number of it; its tensor's rows do.
    """
    gguf_experts.corrected(metadata, values)
    if not values["norm_topk_prob"]:
        raise metadata.wrong("expert_weights_norm", "true")
    _windows(metadata, values, full_first=True)
    _angles(metadata, values)
    dense = values["first_k_dense_replace"]
    values["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in range(values["num_hidden_layers"])]
    heads = metadata.each("attention.head_count", values["num_hidden_layers"])
    values |= {
        "num_attention_heads_per_layer": heads, "moe_routed_scaling_factor": values["routed_scaling_factor"],
        "shared_expert_intermediate_size": metadata.size("expert_shared_feed_forward_length"),
        "gating": "per-head" if metadata.tensor("blk.0.attn_gate.weight").shape[0] == heads[0] else "per-element",
    }  # fmt: skip
    return None


def step35(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Step 3.5's heads and angles by kind of layer, windows, experts and limits; tensors tell which have experts.

    As in llama.cpp's graph, layers with full attention rotate half of rope.dimension_count. The converter makes factors
    for the angles of a whole head, of which these layers have every second one; llama.cpp takes the first ones.
    """
    gguf_experts.corrected(metadata, values)
    if not values["norm_topk_prob"]:
        raise metadata.wrong("expert_weights_norm", "true")
    metadata.integer("moe_every_n_layers", 1)  # marks it as read
    _windows(metadata, values, full_first=True)
    _angles(metadata, values)
    full = values["rope_parameters"][FULL]
    full["partial_rotary_factor"] /= 2
    if metadata.has("rope_freqs.weight"):
        factors = metadata.factors("rope_freqs.weight")[::2]
        full |= {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    layers, kinds = values["num_hidden_layers"], values["layer_types"]
    heads = metadata.each("attention.head_count", layers)
    by_kind = {kind: {n for n, own in zip(heads, kinds, strict=True) if own == kind} for kind in (FULL, SLIDING)}
    if any(len(numbers) > 1 for numbers in by_kind.values()):
        raise metadata.wrong("attention.head_count", "one number for layers with a window, and one for the others")
    sparse = [metadata.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(layers)]
    values |= {
        "num_attention_heads": min(by_kind[FULL] or by_kind[SLIDING]),
        "num_sliding_attention_heads": min(by_kind[SLIDING] or by_kind[FULL]),
        "mlp_layer_types": ["sparse" if one else "dense" for one in sparse],
        "moe_router_scaling_factor": values["routed_scaling_factor"],
        "share_expert_dim": metadata.size("expert_shared_feed_forward_length"),
        "swiglu_limits": _limits(metadata, "swiglu_clamp_exp", layers),
        "swiglu_limits_shared": _limits(metadata, "swiglu_clamp_shexp", layers),
    }  # fmt: skip
    return None


def cohere2_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Cohere 2's scale of logits, dense first layers, experts, windows, and RMSNorm where its epsilon is given.

    llama.cpp averages the sum of the experts and the result of the shared ones; no key says so.
    """
    gguf_experts.corrected(metadata, values)
    _windows(metadata, values, full_first=True)
    if values["routed_scaling_factor"] != 1:
        raise metadata.wrong("expert_weights_scale", "1 or absent")
    width = metadata.size("expert_feed_forward_length")
    together = width * values["num_shared_experts"]
    if metadata.integer("expert_shared_feed_forward_length", together) != together:
        raise metadata.wrong("expert_shared_feed_forward_length", f"{together}: that of all shared experts together")
    values |= {
        "prefix_dense_intermediate_size": values["intermediate_size"], "intermediate_size": width,
        "expert_selection_fn": "sigmoid", "logit_scale": metadata.number("logit_scale"),
    }  # fmt: skip
    if not metadata.optional_number("attention.layer_norm_rms_epsilon"):
        values["rms_norm_eps"] = None
    return None


def hy_v3(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Hy3's experts; tensors tell which layers have them, the width of the shared ones how many there are."""
    gguf_experts.corrected(metadata, values)
    width = metadata.size("expert_feed_forward_length")
    together = metadata.size("expert_shared_feed_forward_length", width)
    if together % width:
        raise metadata.wrong("expert_shared_feed_forward_length", f"a multiple of expert_feed_forward_length ({width})")
    sparse = [metadata.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(values["num_hidden_layers"])]
    values |= {
        "num_shared_experts": together // width, "norm_topk_prob": metadata.flag("expert_weights_norm", True),
        "mlp_layer_types": ["sparse" if one else "dense" for one in sparse],
    }  # fmt: skip
    return None


def deepseek_ocr(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add DeepSeek-OCR's experts, chosen as DeepSeek V2's. All values of a head turn; files may say that none does."""
    metadata.keys.get(f"{metadata.architecture}.rope.dimension_count")  # marks it as read: that of latent attention
    gguf_experts.routed(metadata, values)
    if gguf_experts.sigmoid(metadata, False):
        raise metadata.wrong("expert_gating_func", "1 (softmax)")
    if values["norm_topk_prob"]:
        raise metadata.wrong("expert_weights_norm", "false or absent")
    return None


def smallthinker(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add SmallThinker's experts and windows, without which a layer has no angles where other layers have windows."""
    gguf_experts.plain(metadata, values)
    _windows(metadata, values, full_first=True)
    slides = [int(kind == SLIDING) for kind in values["layer_types"]]
    values |= {
        "moe_num_primary_experts": values["num_experts"], "sliding_window_layout": slides,
        "moe_num_active_primary_experts": metadata.integer("expert_used_count"),
        "moe_ffn_hidden_size": values["moe_intermediate_size"], "sliding_window_size": values["sliding_window"] or 0,
        "moe_primary_router_apply_softmax": not gguf_experts.sigmoid(metadata, False),
        "rope_layout": slides if any(slides) else [1] * len(slides),
    }  # fmt: skip
    return None


def deepseek4(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add DeepSeek V4's compressed attention, residual streams and experts, which a table chooses in the first layers.

    yarn's angles are not scaled, as in llama.cpp's graph.
    """
    gguf_experts.plain(metadata, values)
    if metadata.integer("expert_gating_func", _SQRT_SOFTPLUS) != _SQRT_SOFTPLUS:
        raise metadata.wrong("expert_gating_func", f"{_SQRT_SOFTPLUS} (square root of softplus)")
    layers = values["num_hidden_layers"]
    limits = {one for of in ("exp", "shexp") for one in _limits(metadata, f"swiglu_clamp_{of}", layers) or ()}
    if len(limits) != 1 or not all(isinstance(one, float) and one > 0 for one in limits):
        raise metadata.wrong("swiglu_clamp_exp", "a list of one number, more than 0, for each layer")
    values.get("rope_scaling", {}).pop("attention_factor", None)
    sizes = {
        "q_lora_rank": "attention.q_lora_rank", "o_groups": "attention.output_group_count",
        "o_lora_rank": "attention.output_lora_rank", "sliding_window": "attention.sliding_window",
        "index_n_heads": "attention.indexer.head_count", "index_head_dim": "attention.indexer.key_length",
        "index_topk": "attention.indexer.top_k", "hc_mult": "hyper_connection.count",
        "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations", "qk_rope_head_dim": "rope.dimension_count",
        "n_shared_experts": "expert_shared_count",
    }  # fmt: skip
    values |= {name: metadata.size(key) for name, key in sizes.items()} | {
        "compress_ratios": metadata.each("attention.compress_ratios", layers),
        "compress_rope_theta": metadata.number("attention.compress_rope_freq_base"),
        "hc_eps": metadata.number("hyper_connection.epsilon"), "num_hash_layers": metadata.integer("hash_layer_count"),
        "routed_scaling_factor": metadata.number("expert_weights_scale"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", False), "swiglu_limit": limits.pop(),
    }  # fmt: skip
    return None


def _limits(metadata: GgufMetadata, key: str, layers: int) -> list[Any] | None:
    """Return a limit for each of the first layers, of a list or the same for all; None: the file has none."""
    value = metadata.keys.get(f"{metadata.architecture}.{key}")
    return value[:layers] if isinstance(value, list) else None if value is None else [value] * layers


def _windows(metadata: GgufMetadata, values: dict[str, Any], *, full_first: bool = False) -> None:
    """Add the sliding window, and the kind of each layer: a list in the file, or every how many layers have none.

    full_first: of so many layers the first has no window; otherwise the last.
    """
    layers, key = values["num_hidden_layers"], "attention.sliding_window_pattern"
    window = metadata.integer("attention.sliding_window", 0)
    if isinstance(metadata.keys.get(f"{metadata.architecture}.{key}"), list):
        slides = metadata.each(key, layers)
    else:
        every = metadata.size(key, 4)
        slides = [i % every != (0 if full_first else every - 1) for i in range(layers)]
    values["sliding_window"] = window or None
    values["layer_types"] = [SLIDING if one and window else FULL for one in slides]


def _angles(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    """Add the angles of layers with full attention, which alone are stretched, and of those with a window.

    The factor of yarn's angles is config.json's own where the file has it; llama.cpp computes it of the stretch.
    """
    head_dim, theta = values["head_dim"], values["rope_theta"]
    rotated = metadata.size("rope.dimension_count", head_dim)
    full = values.pop("rope_scaling", {"rope_type": "default"})
    if (factor := metadata.optional_number("rope.scaling.yarn_attn_factor")) is not None:
        full |= {"attention_factor": factor}
    values["rope_parameters"] = {
        FULL: full | {"rope_theta": theta, "partial_rotary_factor": rotated / head_dim},
        SLIDING: {
            "rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", theta),
            "partial_rotary_factor": metadata.size("rope.dimension_count_swa", rotated) / head_dim,
        },
    }  # fmt: skip
