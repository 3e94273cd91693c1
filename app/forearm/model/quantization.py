"""Which quantisation a checkpoint has, and what the user asks for: one table of methods, everything else refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forearm.errors import ConfigError
from forearm.model.codes import Find, Tensors
from forearm.model.compressed_tensors import compressed_tensors
from forearm.model.config import WeightFormat
from forearm.model.fp8 import fp8, mxfp4
from forearm.model.gptq import awq, gptq
from forearm.model.keys import Keys, read_json
from forearm.model.shards import StoredTensor

log = logging.getLogger(__name__)

Activations = Literal["auto", "int8", "float"]

# Formats that float weights are rounded to while they are loaded. float16 scales take half a bit a weight at group 32.
AT_LOAD = {
    "int8": WeightFormat("int8"),
    "int4": WeightFormat("int4", 128, "float16"),
    "int4-g32": WeightFormat("int4", 32, "float16"),
    "int4-g64": WeightFormat("int4", 64, "float16"),
    "int4-g128": WeightFormat("int4", 128, "float16"),
    "fp8": WeightFormat("fp8_e4m3", wide=True),
}
# quant_method -> vLLM's names of the same.
METHODS = {
    "gptq": ("gptq", "gptq_marlin"),
    "awq": ("awq", "awq_marlin"),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("fp8",),
    "fbgemm_fp8": ("fbgemm_fp8", "fp8"),
    "mxfp4": ("mxfp4",),
    "gguf": ("gguf",),
}
_NAMES = {name for names in METHODS.values() for name in names}
# Files that old quantisers wrote beside a config.json that says nothing.
_BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_REMEDY = "serve the original weights (--quantization int8 or int4 rounds them while loading), or a checkpoint in "


@dataclass(frozen=True)
class Asked:
    """--quantization, --quantization-embeddings and --quantization-activations."""

    weights: str = ""
    embeddings: str = "auto"
    activations: Activations = "auto"


def quantisation_of(config: Keys, folder: Path) -> tuple[str, Keys] | None:
    """quant_method and settings of the checkpoint with this config.json; None where it has floats.

    Raises: ConfigError naming a method that is not supported.
    """
    inner = config.object("text_config")
    for keys in (config, *([inner] if inner is not None else [])):
        for key in ("quantization_config", "compression_config"):
            settings = keys.object(key)
            if settings is not None:
                default = "compressed-tensors" if key == "compression_config" else None
                return _supported(settings.text("quant_method", default), settings), settings
    for name, method in _BESIDE.items():
        if (folder / name).exists():
            return method, read_json(folder / name)
    if (folder / "hf_quant_config.json").exists():
        raise ConfigError(f"{folder}: hf_quant_config.json (modelopt) is not supported; {_REMEDY}{_known()}")
    return None


def find_coded(quantised: tuple[str, Keys] | None, asked: Asked, tensors: Mapping[str, StoredTensor]) -> Find:
    """What finds the quantised matrices of a checkpoint.

    Raises: ConfigError if --quantization asks for another method than the checkpoint's, or its settings are not
    supported.
    """
    if quantised is None:
        _check_float(asked)
        return lambda module, shape: None
    method, settings = quantised
    if asked.weights and asked.weights not in METHODS[method]:
        raise ConfigError(
            f"--quantization {asked.weights}: the checkpoint is quantised already ({method}), and is served as it is; "
            f"leave the flag out, or take the original weights"
        )
    # Eight bits for what is multiplied with 4 or 8 bits is what vLLM does with these on CPUs as well.
    wide = asked.activations == "float"
    stored = Tensors(tensors)
    make: dict[str, Callable[[], Find]] = {
        "gptq": lambda: gptq(settings, stored, wide),
        "awq": lambda: awq(settings, stored, wide),
        "compressed-tensors": lambda: compressed_tensors(settings, stored, asked.activations),
        "fp8": lambda: fp8(settings, stored),
        "fbgemm_fp8": lambda: fp8(settings, stored),
        "mxfp4": lambda: mxfp4(stored, wide),
    }
    return make[method]()


def _supported(method: str, settings: Keys) -> str:
    method = method.lower()
    if method not in METHODS or method == "gguf":
        raise ConfigError(f"{settings.source}: quant_method {method} is not supported; {_REMEDY}{_known()}")
    return method


def _check_float(asked: Asked) -> None:
    """Raises: ConfigError if --quantization names a method of checkpoints, and this one has floats."""
    if asked.weights and asked.weights not in AT_LOAD:
        raise ConfigError(
            f"--quantization {asked.weights}: the checkpoint is not quantised; {', '.join(AT_LOAD)} round it while it "
            "is loaded"
        )


def _known() -> str:
    return ", ".join(name for name in METHODS if name != "gguf") + " or GGUF"
