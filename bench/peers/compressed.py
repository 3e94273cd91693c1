"""Write compressed-tensors checkpoints for vLLM: layers' matrices as codes and scales, all other tensors in bfloat16.

w8a8: int8 weights with a scale for each row; int8 activations with a scale for each token. w4a16: int4 weights with a
scale for every 128 values of a row; activations are not rounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench.shapes import POOL, Shape, Tensor, cut, normal, tensors, write_config, write_safetensors, write_tokenizer

GROUP = 128
DEVIATION = {"w8a8": 31, "w4a16": 2.5}  # of the codes, which are cut off at four and at three deviations


def _scheme(layout: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


_INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
SCHEMES = {
    "w8a8": _scheme(
        "int-quantized",
        _INT8 | {"strategy": "channel", "dynamic": False},
        _INT8 | {"strategy": "token", "dynamic": True},
    ),
    "w4a16": _scheme(
        "pack-quantized", _INT8 | {"num_bits": 4, "strategy": "group", "group_size": GROUP, "dynamic": False}, None
    ),
}


def write_model(shape: Shape, folder: Path, form: str) -> None:
    """Write the folder, unless it exists already. form: a key of SCHEMES."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_config(shape, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": SCHEMES[form]}, indent=1))
    write_tokenizer(shape.vocab, folder)
    write_safetensors(list(stored(shape, form)), folder / "model.safetensors")
    (folder / "complete").touch()


def stored(shape: Shape, form: str) -> Iterator[Tensor]:
    """Yield the file's entries of every tensor of the shape."""
    pool = np.random.default_rng(0).normal(0, 1, POOL).astype(np.float32)
    most = 127 if form == "w8a8" else 7
    codes = np.clip(np.rint(pool * DEVIATION[form]), -most, most).astype(np.int8)
    words = np.packbits((codes + 8).astype(np.uint8)[:, None] >> np.arange(4) & 1, bitorder="little").view("<i4")
    for name, size, mean, deviation in tensors(shape):
        if len(size) == 1 or "layers" not in name:
            yield Tensor(name, "BF16", size, normal(pool, size, mean, deviation))
            continue
        rows, columns = size
        groups = 1 if form == "w8a8" else columns // GROUP
        scale = normal(pool, (rows, groups), deviation / DEVIATION[form], 0.0)
        yield Tensor(f"{name}_scale", "BF16", (rows, groups), scale)
        if form == "w8a8":
            yield Tensor(name, "I8", size, cut(codes, rows * columns))
        else:
            yield Tensor(f"{name}_packed", "I32", (rows, columns // 8), cut(words, rows * columns // 8))
            yield Tensor(f"{name}_shape", "I64", (2,), iter([np.array(size, np.int64)]))
