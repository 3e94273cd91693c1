"""The quantization of a checkpoint and the one the user asks for; methods that are not in the table are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from forearm.config.number_formats import AT_LOAD, INTEGERS, METHODS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.families.keys import Keys, read_json, text_part
from forearm.model.gguf.gguf_codes import gguf_matrices
from forearm.model.quantization.bitnet import bitnet
from forearm.model.quantization.codes import CheckpointTensors, Find
from forearm.model.quantization.compressed_tensors import compressed_tensors
from forearm.model.quantization.fp8 import fp8, mxfp4
from forearm.model.quantization.gptq import awq, gptq
from forearm.model.quantization.quality import read_report

log = logging.getLogger(__name__)

# Values of a row of an int8 down projection that share a scale, as do the activations before it. Those are products of
# two activations and have the largest outliers: on SmolLM2-135M the KL divergence is 0.0173 with one scale for a row,
# 0.0112, 0.0095, 0.0078 and 0.0073 with 512, 256, 128 and 64 values a scale. Prefill takes 2 % longer with 128 and
# 3.5 % with 64 (Qwen2.5-0.5B, Zen 4), 13 % with 128 where products are fast (AMX). Rotated models therefore turn groups
# of 512 (rotation.py), which lose as little as groups of 128. The last layer's have activations of 16 bits: of all
# layers' it loses most (KL 0.0072 -> 0.0067), and a prompt multiplies its last row alone with it. Where all activations
# are of 16 bits, one scale for a row is enough. Models that are not rotated keep groups in all matrices then: 0.0048
# with one scale for a row, 0.0031 so (rounded without feedback), 0.0035 turned.
INT8_GROUP = 128
# Values of a row of a tied int8 head beside fp8 layers that share a scale, as do the activations before it, which are
# not turned: the embedding has no columns that are. On SmolLM2-135M the KL divergence is 0.0292 with one scale for a
# row, 0.0225 and 0.0210 with 64 and 32 values a scale; 0.0213 with one and float activations.
FP8_HEAD_GROUP = 32
# The same beside 4-bit layers, which are not rotated, in groups of theirs. SmolLM2-135M's KL divergence falls from
# 0.216 to 0.206 with 64 values a scale (layers in groups of 128) and from 0.146 to 0.139 (groups of 32), 1,275
# predictions. A decode of 32 sequences of Qwen2.5-0.5B beside layers in groups of 128 takes 29.7, 28.0, 27.2 and 27.0
# ms with 64, 128 and 448 values a scale and one for a row (AMX). Activations of 16 bits keep one scale for a row.
HEAD_GROUPS = 2
# Values of a row of the int8 embedding that share a scale. SmolLM2-135M's KL divergence is 0.0020 with 64 of them and a
# head of its own, 0.0021 with one scale for a row, 0.0019 with floats. In a model that is not smoothed the embedding
# may be the head, with as many activations to a scale: 0.0054 with 64; 0.0120, 0.0044 and 0.0034 with one scale, 32 and
# floats.
EMBEDDING_GROUP = 64
# Matrices that fp8 keeps in int8, weights alone: all but gate and up of the layers in the middle, which lose least for
# their size (bench/results/quantization.md); one in so many layers lies at each end of the model. SmolLM2-135M, 10,220
# predictions, the head as above: the KL divergence is 0.0194 with all in E4M3, 0.0079 with gate and up of all layers;
# less the means of activations, 0.0063 so, 0.0037 with those of the middle half, 0.0030 with those of the middle third;
# smoothed and turned, 0.0023 (18,158 predictions). Models without gate and up are fp8 throughout, and those that are
# not rotated have groups as above.
FP8_INT8_ROLES = ("mixer_in", "mixer_inner", "mixer_groups", "mixer_shifted", "mixer_out", "feed_forward_out")
FP8_END_LAYERS = 3
# Their groups in rows that 128 does not divide, such as those of 576 values. The two digits of 16-bit activations have
# two sums a group: with 64, which divides 576, 512 tokens of SmolLM2-135M take 168 ms, so 130, and 32 sequences 28.6
# and 26.1 ms a step (AMX). The KL divergence is 0.0030 with 64, 0.0032 with 128 and a shorter last group, 0.0035 so.
FP8_WIDER_GROUP = 192
# Calibrated weights of 4 bits keep down projections in int8, in groups as above, in one of so many layers at each end
# of the model, where the largest activations arise and are taken back. SmolLM2-135M, 4 of 30 layers, groups of 32: the
# KL divergence falls from 0.175 to 0.147 for 0.12 bits a weight (bench/results/quantization.md).
INT4_END_LAYERS = 14
# Files that old quantizers wrote next to a config.json without quantization_config.
_BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_REMEDY = (
    f"serve the original weights (--quantization {' or '.join(INTEGERS.values())} rounds them while loading), or a "
    "checkpoint in "
)


@dataclass(frozen=True)
class Asked:
    """The settings --quantization, --quantization-embeddings and --quantization-activations."""

    weights: str = "none"
    embeddings: str = "auto"
    activations: str = "auto"
    portable: bool = False  # weights are written in a form that other engines read

    @property
    def at_load(self) -> WeightFormat | None:
        """The format that float weights are rounded to while loading; None: they stay floats."""
        format = AT_LOAD.get(self.weights)
        return None if format is None else replace(format, wide=format.wide or self.wide)

    @property
    def rotated(self) -> bool:
        """True if rotations spread the outliers of what int8 rounds, activations and weights (rotation.py).

        Beside fp8, whose rounding is relative to each value, that is the matrices that stay in int8.
        """
        return self.weights == "int8" or (self.weights == "fp8" and not self.portable)

    @property
    def turned(self) -> bool:
        """True if activations are turned before matrices of int8 while serving, which other engines do not do."""
        return self.rotated and not self.portable

    @property
    def centred(self) -> bool:
        """True if the means of activations are taken away before they, or 8-bit weights, are rounded (centred.py)."""
        return self.weights in ("int8", "fp8") and not self.portable

    @property
    def calibrated(self) -> bool:
        """True if float weights are rounded so that a calibration text loses least."""
        return self.at_load is not None and self.at_load.bits == 4 and not self.weights.endswith("-fast")

    @property
    def wide(self) -> bool:
        """True if the settings ask for activations of 16 bits (beside fp8, floats)."""
        return self.activations == "float"


def quantization_of(config: Keys, folder: Path) -> tuple[str, Keys] | None:
    """Return quant_method and settings of the checkpoint with this config.json; None if its weights are floats.

    Raises: ConfigError naming a method that is not supported.
    """
    inner = text_part(config)
    for keys in (config, *([inner] if inner is not None else [])):
        for key in ("quantization_config", "compression_config"):
            settings = keys.object(key)
            if settings is not None:
                default = "compressed-tensors" if key == "compression_config" else None
                method = settings.text("quant_method", default).lower()
                if method not in METHODS or method == "gguf":
                    raise ConfigError(f"{settings.source}: quant_method {method} is not supported; {_REMEDY}{_known()}")
                return method, settings
    for name, method in _BESIDE.items():
        if (folder / name).exists():
            return method, read_json(folder / name)
    if (folder / "hf_quant_config.json").exists():
        raise ConfigError(f"{folder}: hf_quant_config.json (modelopt) is not supported; {_REMEDY}{_known()}")
    return None


def find_coded(
    quantized: tuple[str, Keys] | None, asked: Asked, tensors: Mapping[str, StoredTensor], folder: Path
) -> Find:
    """Return the function that finds the quantized matrices of the checkpoint in a folder or .gguf file.

    Raises: ConfigError if --quantization names another method than the checkpoint's, or the checkpoint's settings are
    not supported.
    """
    if quantized is None:
        if asked.weights != "none" and asked.at_load is None:
            raise ConfigError(
                f"--quantization {asked.weights}: the checkpoint is not quantized; {', '.join(AT_LOAD)} round it while "
                "loading"
            )
        return lambda module, shape: None
    method, settings = quantized
    if asked.weights not in ("none", *METHODS[method]):
        raise ConfigError(
            f"--quantization {asked.weights}: the checkpoint is quantized already ({method}) and keeps its format; "
            f"leave the flag out, or serve the original weights"
        )
    # auto is what a quality report says; else int8 if the checkpoint does not choose, as in vLLM on CPUs: in 4 bits it
    # moves the demo model's perplexity by less than 0.1 % (bench/quality/accuracy.py: +3.35 % with int8, +3.23 % with
    # float activations).
    report = read_report(folder) if asked.activations == "auto" else None
    wide = asked.wide if report is None else report.activations == "float"
    stored = CheckpointTensors(tensors)
    make: dict[str, Callable[[], Find]] = {
        "gptq": lambda: gptq(settings, stored, wide),
        "awq": lambda: awq(settings, stored, wide),
        "compressed-tensors": lambda: compressed_tensors(
            settings, stored, None if asked.activations == "auto" and report is None else wide
        ),
        "fp8": lambda: fp8(settings, stored, wide),
        "fbgemm_fp8": lambda: fp8(settings, stored, wide),
        "mxfp4": lambda: mxfp4(stored, wide),
        "bitnet": lambda: bitnet(settings, stored, wide),
        "gguf": lambda: gguf_matrices(tensors, wide),
    }
    return make[method]()


def _known() -> str:
    return ", ".join(name for name in METHODS if name != "gguf") + " or GGUF"
