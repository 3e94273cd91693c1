"""A folder in compressed-tensors' W8A8 form: int8 weights, a scale for each row; activations int8 for each token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from bench.shapes import POOL, Shape, bfloat16, cut, tensors, write_config, write_tokenizer

_ARGS = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _ARGS | {"strategy": "channel", "dynamic": False},
            "input_activations": _ARGS | {"strategy": "token", "dynamic": True},
        }
    },
}


def write_model(shape: Shape, folder: Path) -> None:
    """The folder, unless it is there already."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_config(shape, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}, indent=1))
    write_tokenizer(shape.vocab, folder)
    write_weights(shape, folder / "model.safetensors")
    (folder / "complete").touch()


def write_weights(shape: Shape, path: Path) -> None:
    """Layers' matrices as codes and scales, all else in bfloat16."""
    rng = np.random.default_rng(0)
    pool = rng.normal(0, 1, POOL).astype(np.float32)
    codes = np.clip(np.rint(pool * 31), -127, 127).astype(np.int8)
    entries: dict[str, tuple[str, tuple[int, ...], float, float]] = {}
    for name, size, mean, deviation in tensors(shape):
        if len(size) == 2 and "layers" in name:
            entries[name] = ("I8", size, 0.0, 0.0)
            entries[name.removesuffix("weight") + "weight_scale"] = ("BF16", (size[0], 1), deviation / 31, 0.0)
        else:
            entries[name] = ("BF16", size, mean, deviation)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, size, _, _) in entries.items():
        begin, end = end, end + int(np.prod(size)) * (1 if dtype == "I8" else 2)
        header[name] = {"dtype": dtype, "shape": size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for dtype, size, mean, deviation in entries.values():
            if dtype == "I8":
                for begin in range(0, int(np.prod(size)), POOL - 1):
                    file.write(codes[: min(POOL - 1, int(np.prod(size)) - begin)].tobytes())
            else:
                for part in cut(pool, int(np.prod(size))):
                    file.write(bfloat16(part * np.float32(deviation) + np.float32(mean)).tobytes())
