"""GGUF files for tests, written by ggml's own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

BLOCK_VALUES = {
    "Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32, "Q8_0": 32, "IQ4_NL": 32, "MXFP4": 32, "NVFP4": 64, "Q1_0": 128,
}  # fmt: skip
# Where the float16 of a block lie, in bytes from its start.
_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)), "IQ1_M": (), "TQ1_0": (52,),
    "TQ2_0": (64,), "Q1_0": (0,), "NVFP4": (),
}  # fmt: skip
_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176,
    "Q6_K": 210, "IQ4_NL": 18, "IQ4_XS": 136, "MXFP4": 17, "IQ1_S": 50, "IQ1_M": 56, "IQ2_XXS": 66, "IQ2_XS": 74,
    "IQ2_S": 82, "IQ3_XXS": 98, "IQ3_S": 110, "TQ1_0": 54, "TQ2_0": 66,
    "NVFP4": 36, "Q1_0": 18,
}  # fmt: skip


def random_blocks(dtype: str, rows: int, columns: int, size: float = 1.0, seed: int = 0) -> np.ndarray:
    """Every bit of the codes random, scales of about `size`: uint8 [rows, bytes of a row]."""
    random = np.random.default_rng(seed)
    blocks = rows * columns // BLOCK_VALUES.get(dtype, 256)
    stored = random.integers(0, 256, (blocks, _BYTES[dtype]), dtype=np.uint8)

    def halves() -> np.ndarray:
        spread = random.uniform(0.5, 1.5, (blocks, 1)) * random.choice([-1, 1], (blocks, 1))
        return np.asarray((size * spread).astype(np.float16))

    for at in _HALVES[dtype]:
        stored[:, at : at + 2] = halves().view(np.uint8)
    if dtype == "IQ1_M":  # four bits of the float16 are the upper ones of each of the last four words
        parts = halves().view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) << np.uint16(12)
        stored[:, 48:] = (stored[:, 48:].copy().view(np.uint16) & 0x0FFF | parts).view(np.uint8)
    if dtype == "MXFP4":
        stored[:, 0] = np.round(np.log2(size)).astype(int) + random.integers(125, 130, blocks)
    if dtype == "NVFP4":  # an exponent of 4 bits and 3 more bits
        nearest = 8 * (8 + np.round(np.log2(size)).astype(int))
        stored[:, :4] = np.clip(nearest + random.integers(-8, 8, (blocks, 4)), 0, 126)
    return stored.reshape(rows, -1)


def write_gguf(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray | tuple[str, np.ndarray]],
) -> Path:
    """A file of these keys and tensors; a tensor of blocks comes with its type."""
    writer = GGUFWriter(path, architecture)
    for key, value in keys.items():
        _add(writer, key, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[1], raw_dtype=GGMLQuantizationType[tensor[0]])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
