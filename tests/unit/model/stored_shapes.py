"""Shapes of tensors by their names in published files, of those that transformers computes with."""

from __future__ import annotations

import math
import re


def as_stored(shapes: dict[str, tuple[int, ...]], model_type: str) -> dict[str, tuple[int, ...]]:
    """Shapes by the names in files: transformers 5 joins the experts of a layer only in memory, but for gpt-oss."""
    if model_type == "apertus":  # scalars, stored as vectors of one value
        return {name: shape or (1,) for name, shape in shapes.items()}
    if model_type in ("gpt_oss", "llama4", "llama4_text"):  # matrices [experts, k, rows]: the rows of all experts
        return {
            name: (math.prod(shape) // shape[1], shape[1]) if len(shape) == 3 else
            (math.prod(shape),) if ".experts." in name else shape
            for name, shape in shapes.items()
        }  # fmt: skip
    if model_type == "gpt2":  # matrices [k, rows]
        return {n: s[::-1] if n.endswith((".c_attn.weight", ".c_fc.weight", ".c_proj.weight")) else s
                for n, s in shapes.items()}  # fmt: skip
    if model_type.startswith("gemma4"):  # experts stay joined: the rows of all of them
        return {n: (math.prod(s[:-1]), s[-1]) if ".experts." in n else s for n, s in shapes.items()}
    small = ("coefs.weight", "modality_router.weight", "tid2eid", "position_bias", "_hc.fn", "hc_head.hc_fn", ".A_log")
    shapes = {n: (math.prod(s),) if n.endswith(small) else s for n, s in shapes.items()}  # which are read as vectors
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        before, _, joined = name.partition("experts.")
        joined = joined if before.endswith(("mlp.", "feed_forward.")) else ""
        rows = {"gate_up_proj": shape[1] // 2, "down_proj": shape[1]}[joined] if joined else 0
        count = shapes[f"{before}experts.down_proj"][0] if joined else 0  # LongCat-Flash has gates of identities, too
        for expert in range(count):
            for part in ("gate_proj", "up_proj") if joined == "gate_up_proj" else ("down_proj",):
                found[f"{before}experts.{expert}.{part}.weight"] = (rows, *shape[2:])
        if not joined:
            found[name] = shape
    if model_type.startswith("granitemoe"):
        for joint, stored in (("experts.gate_up_proj", "input_linear"), ("experts.down_proj", "output_linear")):
            for name in [name for name in found if name.endswith(joint)]:
                count, rows, width = found.pop(name)
                found[name.replace(joint, f"{stored}.weight")] = (count * rows, width)
        found = {name.replace("router.weight", "router.layer.weight"): shape for name, shape in found.items()}
    taps = [name for name in found if name.endswith(("conv.conv.weight", "conv1d.weight"))]
    found |= {name: (math.prod(found[name]),) for name in taps}  # [channels, 1, taps], which are read as a vector
    if model_type == "ernie4_5_moe":  # its correction is a matrix of one row
        found = {name.replace("mlp.gate.moe_statics", "mlp.moe_statics"): shape for name, shape in found.items()}
        found = {name: shape[1:] if name.endswith("correction_bias") else shape for name, shape in found.items()}
    if model_type not in ("mixtral", "lfm2_moe", "phimoe"):
        return found
    renamed = (("mlp.", "block_sparse_moe."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
    renamed += (("block_sparse_moe.router", "block_sparse_moe.gate"),)
    for old, new in renamed:
        found = {name.replace(old, new): shape for name, shape in found.items()}
    return found


def kimi_stored(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Kimi Linear's names: convolutions of queries, keys and values apart, a block of experts beside dense layers."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        name = re.sub(
            r"mlp\.(experts|gate|shared_experts)\.", r"block_sparse_moe.\1.", name.replace("forget_gate.", "")
        )
        for part, stored in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            name = name.replace(part, stored) if ".experts." in name else name
        parts = [name.replace("conv1d", f"{part}_conv1d") for part in "qkv"] if "conv1d" in name else [name]
        shape = (math.prod(shape),) if name.endswith("A_log") else shape
        found |= {part: (shape[0] // len(parts), *shape[1:]) for part in parts}
    return found


def zamba_stored(shapes: dict[str, tuple[int, ...]], blocks: list[int]) -> dict[str, tuple[int, ...]]:
    """The matrices of each call of a shared block, which is stored once: it has its own where it has an adapter."""
    found: dict[str, tuple[int, ...]] = {}
    of_blocks = tuple(f"model.layers.{i}.shared_transformer." for i in blocks)
    for name, shape in shapes.items():
        if ".shared_transformer." not in name or (name.startswith(of_blocks) and "_adapter_list." not in name):
            found[name] = shape
        elif name.startswith(of_blocks) and name.endswith(".1.weight"):
            module, call = name.removesuffix(".1.weight").split("_adapter_list.")
            found[f"{module}.call.{call}.weight"] = shapes[f"{module}.weight"]
    return {name: shape for name, shape in found.items() if not name.endswith("gate_up_proj.weight")}


def gates_stored(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """RecurrentGemma's gates, [heads, k, rows] and [heads, rows], as the rows of all heads; taps as a vector."""
    joined = {n: (math.prod(s[1:-1]) * s[0], *s[2:]) if n.endswith("gate_weight") else s for n, s in shapes.items()}
    return {n: (math.prod(s),) if n.endswith(("gate_bias", "conv_1d.weight")) else s for n, s in joined.items()}
