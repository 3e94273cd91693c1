"""Quantized matrices as the quantizers store them, and a plain decoder of each format, written from its description.

A Format turns a float matrix into the tensors that a checkpoint would hold, and these back into float64 weights. Both
are as simple as can be: what forearm reads is compared with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Stored = dict[str, torch.Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@dataclass(frozen=True)
class Format:
    """One way to store matrices.

    settings: config.json's quantization_config. encode: float64 [n, k] -> tensors by the end of their names.
    decode: the tensors and shape -> float64 [n, k]. skip: ends of modules' names that stay floats. error: the largest
    error of random weights, as a part of the largest that is stored.
    """

    name: str
    settings: dict[str, Any]
    encode: Callable[[Array], Stored]
    decode: Callable[[Stored, tuple[int, int]], Array]
    skip: tuple[str, ...] = field(default=("embed_tokens", "lm_head"))
    error: float = 0.5


def rounded(w: Array, group: int, low: int, high: int, asymmetric: bool = False) -> tuple[Array, Array, Array]:
    """Codes low .. high [n, k], float32 scales and integer zeros [n, groups]; plain rounding, groups of `group`."""
    n, k = w.shape
    groups = -(-k // group)
    codes, scales, zeros = np.zeros((n, k)), np.zeros((n, groups), np.float32), np.zeros((n, groups))
    for g in range(groups):
        part = w[:, g * group : (g + 1) * group]
        if asymmetric:
            least, most = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = np.maximum((most - least) / (high - low), 1e-9).astype(np.float16).astype(np.float32)
            zero = np.clip(np.round(low - least / scale), low + 1, high)  # version 1 stores one less
        else:
            scale = np.maximum(np.abs(part).max(1) / high, 1e-9).astype(np.float16).astype(np.float32)
            zero = np.zeros(n)
        codes[:, g * group : (g + 1) * group] = np.clip(np.round(part / scale[:, None] + zero[:, None]), low, high)
        scales[:, g], zeros[:, g] = scale, zero
    return codes.astype(np.int64), scales, zeros.astype(np.int64)


def rounded_in_order(
    w: Array, group: int, bits: int, sym: bool, act_order: bool, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """Signed codes, scales, zeros and each column's group; act_order: groups are of columns in another order."""
    k, middle = w.shape[1], 1 << bits - 1
    size = group if group > 0 else k
    order = np.random.default_rng(k + seed).permutation(k) if act_order else np.arange(k)
    codes, scales, zeros = rounded(w[:, order], size, -middle, middle - 1, not sym)
    g_idx, plain = np.zeros(k, np.int32), np.zeros_like(codes)
    g_idx[order] = np.arange(k) // size
    plain[:, order] = codes
    return plain, scales, zeros, g_idx


def pack_first(values: Array, bits: int) -> torch.Tensor:
    """Unsigned [n, m] -> int32 [ceil(n / per word), m], low bits first."""
    per_word = 32 // bits
    words = np.zeros((-(-len(values) // per_word), values.shape[1]), np.uint64)
    for i, row in enumerate(values):
        words[i // per_word] |= row.astype(np.uint64) << np.uint64(bits * (i % per_word))
    return torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())


def unpack_first(words: torch.Tensor, bits: int, count: int) -> Array:
    """The other way: int64 [count, m]."""
    stored = words.numpy().astype(np.int64) & 0xFFFFFFFF
    per_word = 32 // bits
    return np.stack([stored[i // per_word] >> bits * (i % per_word) & (1 << bits) - 1 for i in range(count)])


# --- GPTQ and AWQ ---


def gptq(bits: int, group: int, *, sym: bool, version: int = 1, act_order: bool = False, seed: int = 0) -> Format:
    """AutoGPTQ's (1) and GPTQModel's (2) layout. seed: of the order of columns."""
    middle = 1 << bits - 1
    name = f"gptq-{bits}bit-g{group}{'-sym' if sym else ''}-v{version}{'-actorder' if act_order else ''}"

    def encode(w: Array) -> Stored:
        plain, scales, zeros, g_idx = rounded_in_order(w, group, bits, sym, act_order, seed)
        return {
            "qweight": pack_first(plain.T + middle, bits),
            "qzeros": pack_first(zeros + middle - (version == 1), bits).T.contiguous(),
            "scales": torch.from_numpy(scales.T.astype(np.float16).copy()),
            "g_idx": torch.from_numpy(g_idx),
        }

    def decode(stored: Stored, shape: tuple[int, int]) -> Array:
        n, k = shape
        codes = unpack_first(stored["qweight"], bits, k)
        zeros = unpack_first(stored["qzeros"].T, bits, n).T + (version == 1)
        group_of = stored["g_idx"].numpy()
        w: Array = (codes - zeros[group_of]) * stored["scales"].numpy().astype(np.float64)[group_of]
        return w.T

    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": act_order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    return Format(name, settings, encode, decode)


def awq(group: int) -> Format:
    """AutoAWQ's gemm layout."""

    def shuffled(values: Array) -> torch.Tensor:
        n = len(values)
        order = [8 * (i // 8) + AWQ_ORDER[i % 8] for i in range(n)]
        return pack_first(values[order], 4).T.contiguous()

    def back(words: torch.Tensor, n: int) -> Array:
        values = unpack_first(words.T, 4, n)
        out = np.zeros_like(values)
        for i in range(n):
            out[8 * (i // 8) + AWQ_ORDER[i % 8]] = values[i]
        return out

    def encode(w: Array) -> Stored:
        codes, scales, zeros = rounded(w, group, 0, 15, True)
        return {
            "qweight": shuffled(codes),
            "qzeros": shuffled(zeros),
            "scales": torch.from_numpy(scales.T.astype(np.float16).copy()),
        }

    def decode(stored: Stored, shape: tuple[int, int]) -> Array:
        n, k = shape
        group_of = np.arange(k) // group
        codes, zeros = back(stored["qweight"], n), back(stored["qzeros"], n)
        scales = stored["scales"].numpy().astype(np.float64).T
        return (codes - zeros[:, group_of]) * scales[:, group_of]

    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Format(f"awq-g{group}", settings, encode, decode)


# --- compressed-tensors ---


def compressed(
    bits: int, group: int, *, sym: bool = True, packed: bool, int8_activations: bool, act_order: bool = False,
    static: bool = False,
) -> Format:  # fmt: skip
    """int-quantized or pack-quantized; group 0 is channel."""
    middle = 1 << bits - 1
    activations = "a8" if int8_activations else "a16"
    name = f"ct-w{bits}{activations}-{'packed' if packed else 'int'}-{f'g{group}' if group else 'channel'}"
    name += ("" if sym else "-asym") + ("-actorder" if act_order else "") + ("-static" if static else "")

    def encode(w: Array) -> Stored:
        plain, scales, zeros, g_idx = rounded_in_order(w, group, bits, sym, act_order)
        stored = {"weight_scale": torch.from_numpy(scales).to(torch.bfloat16 if not group else torch.float32)}
        if packed:
            stored["weight_packed"] = pack_first(plain.T + middle, bits).T.contiguous()
            stored["weight_shape"] = torch.tensor(w.shape)
        else:
            stored["weight"] = torch.from_numpy(plain.astype(np.int8))
        if not sym:
            own = torch.from_numpy(zeros.astype(np.int8))
            stored["weight_zero_point"] = pack_first(zeros + middle, bits) if packed else own
        if act_order:
            stored["weight_g_idx"] = torch.from_numpy(g_idx)
        if static:
            stored["input_scale"] = torch.tensor([0.05])
        return stored

    def decode(stored: Stored, shape: tuple[int, int]) -> Array:
        n, k = shape
        group_of = np.arange(k) // (group or k)
        if "weight_g_idx" in stored:
            group_of = stored["weight_g_idx"].numpy()
        codes = stored["weight"].numpy().astype(np.int64) if not packed else (
            unpack_first(stored["weight_packed"].T, bits, k).T - middle
        )  # fmt: skip
        zeros = np.zeros((n, -(-k // (group or k))), np.int64)
        if not sym:
            own = stored["weight_zero_point"]
            zeros = unpack_first(own, bits, n) - middle if packed else own.numpy().astype(np.int64)
        w: Array = (codes - zeros[:, group_of]) * stored["weight_scale"].double().numpy()[:, group_of]
        return w

    form = "pack-quantized" if packed else "int-quantized"
    return Format(
        name, _compressed_settings(form, bits, group, sym, act_order, int8_activations, static), encode, decode
    )


def _compressed_settings(
    form: str, bits: int, group: int, sym: bool, act_order: bool, int8_activations: bool, static: bool
) -> dict[str, Any]:
    weights = {
        "num_bits": bits, "type": "int", "symmetric": sym, "strategy": "group" if group else "channel",
        "group_size": group or None, "actorder": "group" if act_order else None,
    }  # fmt: skip
    inputs: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    if static:
        inputs |= {"strategy": "tensor", "dynamic": False}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs if int8_activations else None}
    return {
        "quant_method": "compressed-tensors", "format": form,
        "config_groups": {"group_0": scheme}, "ignore": ["lm_head"],
    }  # fmt: skip


# --- small floats ---


def fp8(strategy: str, *, method: str = "fp8") -> Format:
    """strategy: tensor, channel or block (128 by 128)."""

    def scale_of(w: Array) -> Array:
        n, k = w.shape
        if strategy == "tensor":
            return np.full((1, 1), np.abs(w).max() / 448)
        if strategy == "channel":
            return np.abs(w).max(1, keepdims=True) / 448
        return np.array([[np.abs(w[i : i + 128, j : j + 128]).max() / 448 for j in range(0, k, 128)]
                         for i in range(0, n, 128)])  # fmt: skip

    def spread(scales: Array, shape: tuple[int, int]) -> Array:
        if strategy != "block":
            return np.broadcast_to(scales.reshape(-1, 1), (scales.size, shape[1])) if scales.size > 1 else (
                np.full(shape, scales.item())
            )  # fmt: skip
        return np.repeat(np.repeat(scales, 128, 0), 128, 1)[: shape[0], : shape[1]]

    def encode(w: Array) -> Stored:
        scales = scale_of(w).astype(np.float32)
        codes = torch.from_numpy(w / spread(scales, (w.shape[0], w.shape[1]))).to(torch.float8_e4m3fn)
        name = "weight_scale_inv" if strategy == "block" and method == "fp8" else "weight_scale"
        own = torch.from_numpy(scales)
        return {"weight": codes, name: own.reshape(()) if strategy == "tensor" else own}

    def decode(stored: Stored, shape: tuple[int, int]) -> Array:
        scales = next(stored[name] for name in ("weight_scale", "weight_scale_inv") if name in stored)
        w: Array = stored["weight"].double().numpy() * spread(scales.double().numpy(), shape)
        return w

    settings: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if strategy == "block":
        settings["weight_block_size"] = [128, 128]
    if method != "fp8":
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
        if strategy == "block":
            weights["block_structure"] = [128, 128]
        inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
        scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        settings = {"quant_method": method, "format": "float-quantized", "config_groups": {"group_0": scheme}}
    return Format(f"{'fp8' if method == 'fp8' else 'ct-fp8'}-{strategy}", settings, encode, decode)


def mxfp4(*, method: str = "mxfp4") -> Format:
    """OCP's MXFP4; `blocks` and `scales` as gpt-oss names them, or compressed-tensors' names."""
    blocks, scale = ("weight_blocks", "weight_scales") if method == "mxfp4" else ("weight_packed", "weight_scale")

    def encode(w: Array) -> Stored:
        n, k = w.shape
        parts = w.reshape(n, k // 32, 32)
        exponents = np.floor(np.log2(np.maximum(np.abs(parts).max(2), 1e-30))).astype(int) - 2
        scaled = parts / 2.0 ** exponents[:, :, None]
        codes = np.abs(np.abs(scaled)[..., None] - np.array(E2M1)).argmin(-1) + 8 * (scaled < 0)
        pairs = codes.reshape(n, k // 32, 16, 2)
        packed = torch.from_numpy((pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8))
        own = torch.from_numpy((exponents + 127).astype(np.uint8))
        return {blocks: packed if method == "mxfp4" else packed.reshape(n, k // 2), scale: own}

    def decode(stored: Stored, shape: tuple[int, int]) -> Array:
        n, k = shape
        packed = stored[blocks].numpy().reshape(n, k // 2)
        out = np.zeros(shape)
        for half in (0, 1):
            codes = packed >> 4 * half & 15
            out[:, half::2] = np.array(E2M1)[codes & 7] * np.where(codes & 8, -1.0, 1.0)
        return out * np.repeat(2.0 ** (stored[scale].numpy().astype(int) - 127), 32, 1)

    settings: dict[str, Any] = {"quant_method": "mxfp4"}
    if method != "mxfp4":
        weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
        scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        settings = {"quant_method": method, "format": "mxfp4-pack-quantized", "config_groups": {"group_0": scheme}}
    return Format("mxfp4" if method == "mxfp4" else "ct-mxfp4", settings, encode, decode)


# --- BitNet ---


def bitnet(linear: str, *, mode: str = "offline", packed: bool = True) -> Format:
    """Four weights in a byte or, not packed, as floats; online: the floats that become ternary."""
    online = mode == "online"

    def encode(w: Array) -> Stored:
        if online:
            return {"weight": torch.from_numpy(w.astype(np.float32))}
        mean = np.abs(w).mean()
        ternary = np.clip(np.round(w / mean), -1, 1)
        scale = torch.tensor([1 / mean if linear == "bitlinear" else mean], dtype=torch.bfloat16)
        if not packed:
            return {"weight": torch.from_numpy(ternary).to(torch.bfloat16), "weight_scale": scale}
        quarters = (ternary + 1).astype(np.uint8).reshape(4, -1, w.shape[1])
        codes = sum(quarter << 2 * i for i, quarter in enumerate(quarters))
        return {"weight": torch.from_numpy(np.asarray(codes, np.uint8)), "weight_scale": scale}

    def decode(stored: Stored, shape: tuple[int, int]) -> Array:
        if online:
            w = stored["weight"].double().numpy()
            mean = np.float32(np.abs(w).mean())
            return np.asarray(np.clip(np.round(w.astype(np.float32) / mean), -1, 1) * np.float64(mean))
        codes = stored["weight"].double().numpy()
        if packed:
            codes = np.concatenate([(stored["weight"].numpy() >> 2 * i & 3).astype(int) - 1 for i in range(4)])
        scale = float(stored["weight_scale"])
        return np.asarray(codes * np.float64(1 / np.float32(scale)) if linear == "bitlinear" else codes * scale)

    settings = {"quant_method": "bitnet", "linear_class": linear, "quantization_mode": mode}
    name = f"bitnet-{linear}" + ("-online" if online else "" if packed else "-floats")
    return Format(name, settings, encode, decode, error=30.0)


FORMATS = [
    gptq(4, 32, sym=True),
    gptq(4, 128, sym=False),
    gptq(4, -1, sym=True, version=2),
    gptq(4, 64, sym=False, version=2, act_order=True),
    gptq(4, 32, sym=True, act_order=True),
    gptq(8, 64, sym=True),
    gptq(8, -1, sym=False, act_order=True),
    awq(32),
    awq(128),
    compressed(8, 0, packed=False, int8_activations=True),
    compressed(8, 0, packed=False, int8_activations=True, static=True),
    compressed(8, 64, packed=False, int8_activations=True, sym=False),
    compressed(8, 0, packed=True, int8_activations=False),
    compressed(8, 32, packed=True, int8_activations=False, sym=False),
    compressed(4, 0, packed=True, int8_activations=False),
    compressed(4, 32, packed=True, int8_activations=False, sym=False),
    compressed(4, 64, packed=True, int8_activations=False, act_order=True),
    compressed(4, 128, packed=False, int8_activations=True),
    compressed(4, 0, packed=False, int8_activations=True),
    fp8("tensor"),
    fp8("block"),
    fp8("tensor", method="compressed-tensors"),
    fp8("channel", method="compressed-tensors"),
    fp8("block", method="compressed-tensors"),
    mxfp4(),
    mxfp4(method="compressed-tensors"),
    bitnet("bitlinear"),
    bitnet("autobitlinear"),
    bitnet("autobitlinear", packed=False),
    bitnet("autobitlinear", mode="online"),
]
