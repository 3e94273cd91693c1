"""A model folder, opened: its config, the dtypes it will have in memory, every tensor found and checked. Headers only.

This is what the engine plans with before anything big is read: sizes in bytes, context length, end tokens.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from forearm.errors import ConfigError
from forearm.model.config import DTypeName, ModelConfig
from forearm.model.families import read_config
from forearm.model.names import Part, leftover, parts
from forearm.model.shards import StoredTensor, read_tensors
from forearm.model.switches import DTYPES

log = logging.getLogger(__name__)

_PANEL = 16  # kernels.h, kPanel: columns of a packed panel
_QUANTUM = 4  # the most values of k a layout keeps together (kernels.h, Layout)


@dataclass(frozen=True)
class Checkpoint:
    """One model folder and how it is to be served.

    sources: what to load, each with the tensor it comes from, in the order of the files' bytes.
    max_model_len: longest sequence, tokens.
    """

    folder: Path
    config: ModelConfig
    weight_dtype: DTypeName
    kv_dtype: DTypeName
    max_model_len: int
    sources: tuple[tuple[Part, StoredTensor], ...]

    @property
    def packed_bytes(self) -> int:
        """Bytes the weights take in memory, at most: panels of 16 rows, columns in fours, vectors in float32."""
        item = 4 if self.weight_dtype == "float32" else 2
        return sum(_packed_bytes(part.shape, item) for part, _ in self.sources)

    @property
    def stored_bytes(self) -> int:
        """Bytes that loading reads."""
        return sum(_bytes(part, tensor) for part, tensor in self.sources)


def open_checkpoint(
    folder: Path,
    *,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
    allow_longer: bool = False,
) -> Checkpoint:
    """Read config.json and the headers of the safetensors files, and check that they fit each other.

    dtype: auto (the checkpoint's), or bfloat16, float16, half, float32, float. kv_dtype: auto is the weights'.
    max_model_len: None is the model's own context length; more than it is refused unless allow_longer.
    Raises: ConfigError naming the key, tensor or file, with the remedy.
    """
    tensors = read_tensors(folder)
    wanted = None if dtype == "auto" else _dtype(dtype, "--dtype")
    config = read_config(folder, weight_dtype=wanted, max_model_len=max_model_len, allow_longer=allow_longer)
    weight_dtype = wanted or config.dtype
    found = _match(folder, config, tensors)
    return Checkpoint(
        folder=folder,
        config=config,
        weight_dtype=weight_dtype,
        kv_dtype=weight_dtype if kv_dtype == "auto" else _dtype(kv_dtype, "--kv-cache-dtype"),
        max_model_len=max_model_len or config.max_positions,
        sources=tuple(sorted(found, key=lambda s: (str(s[1].path), s[1].begin, s[0].row))),
    )


def _dtype(name: str, flag: str) -> DTypeName:
    if name not in DTYPES:
        raise ConfigError(f"{flag} {name} is not supported; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _match(folder: Path, config: ModelConfig, tensors: dict[str, StoredTensor]) -> list[tuple[Part, StoredTensor]]:
    """Pair every part with its tensor; warn of tensors nothing uses.

    Raises: ConfigError naming what is missing or has another shape than config.json makes it.
    """
    wanted = parts(config, tensors.keys())
    missing = sorted({part.stored for part in wanted} - tensors.keys())
    if missing:
        raise ConfigError(
            f"{folder}: {_some(missing)} missing from its safetensors files; download it again, or see whether "
            "config.json belongs to them (tie_word_embeddings, num_hidden_layers)"
        )
    by_tensor: dict[str, list[Part]] = defaultdict(list)
    for part in wanted:
        by_tensor[part.stored].append(part)
    for name, sharing in by_tensor.items():
        expected = (sum(part.shape[0] for part in sharing), *sharing[0].shape[1:])
        if tensors[name].shape != expected:
            raise ConfigError(
                f"{tensors[name].path}: tensor {name} has shape {list(tensors[name].shape)}; config.json makes it "
                f"{list(expected)}"
            )
        _ = tensors[name].float_dtype
    unused = leftover(tensors.keys(), by_tensor.keys(), config)
    if unused:
        log.warning("%s: %s in the files but not in the model that config.json describes", folder, _some(unused))
    return [(part, tensors[part.stored]) for part in wanted]


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return (
        f"{shown} and {len(names) - 5} more are" if len(names) > 5 else f"{shown} {'is' if len(names) == 1 else 'are'}"
    )


def _bytes(part: Part, tensor: StoredTensor) -> int:
    return (tensor.end - tensor.begin) * part.shape[0] // tensor.shape[0]


def _packed_bytes(shape: tuple[int, ...], item: int) -> int:
    if len(shape) == 1:
        return 4 * shape[0]
    rows, columns = (-(-size // step) * step for size, step in zip(shape, (_PANEL, _QUANTUM), strict=True))
    return rows * columns * item
