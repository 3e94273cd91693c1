"""BitNet checkpoints: weights -1, 0 and 1 with one scale for a matrix, activations of 8 bits with one for a token.

Weights are stored four to a byte, two bits each with 1 added: row r of [rows, k] in byte row r % n of n = rows / 4,
from bit 2 * (r // n) on; or as floats -1, 0 and 1; or, quantization_mode online, as the floats that training keeps,
which become the nearest of -m, 0 and m while they are loaded, where m is their matrix's mean magnitude. They are kept
as int4, which holds them exactly, and multiplied with int8 activations, as in training (Ma et al. 2024,
arXiv:2402.17764).
Source: transformers' integrations/bitnet.py.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from forearm.array_types import Float32Array, Int8Array
from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import FLOATS, Files, StoredTensor, widened
from forearm.model.families.keys import Keys
from forearm.model.quantization.codes import CheckpointTensors, CodedMatrix, Codes, Find, scale_dtype

_IN_BYTE = 4  # weights
_LEAST_MEAN = 1e-5
_PIECE = 1 << 17  # values that are widened at once for a mean: their floats fit a core's second-level cache


def bitnet(settings: Keys, tensors: CheckpointTensors, wide: bool) -> Find:
    """Return the function that finds the matrices of a checkpoint with quant_method bitnet. wide: see WeightFormat.

    Raises: ConfigError naming the key whose value is not supported.
    """
    linear, mode = settings.text("linear_class", "bitlinear"), settings.text("quantization_mode", "offline")
    if linear not in ("bitlinear", "autobitlinear"):
        raise settings.wrong("linear_class", "bitlinear or autobitlinear")
    if mode not in ("online", "offline"):
        raise settings.wrong("quantization_mode", "online or offline")
    if settings.flag("use_rms_norm"):
        raise settings.wrong("use_rms_norm", "false: norms within linear layers are not supported")
    if linear == "autobitlinear" and mode == "online":
        return partial(_of_training, tensors, _not_converted(settings), {}, wide)
    return partial(_ternary, tensors, linear == "bitlinear", wide)


def _not_converted(settings: Keys) -> tuple[re.Pattern[str], ...]:
    """Return patterns of the names of linear modules that stay floats, which the output head must be among."""
    keys = settings.get("modules_to_not_convert")
    keys = ["lm_head"] if keys is None else keys
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise settings.wrong("modules_to_not_convert", "a list of names, or null")
    try:
        # the beginning of a name up to a dot, or its end
        patterns = tuple(re.compile(rf"(?:{key})(?:(?<=\.)|(?=\.|$))|.*{re.escape(key)}$") for key in keys)
    except (re.error, OverflowError, RecursionError) as problem:
        raise settings.wrong("modules_to_not_convert", f"names of modules or patterns ({problem})") from None
    if not any(pattern.match("lm_head") for pattern in patterns):
        raise settings.wrong("modules_to_not_convert", "null, or a list with lm_head")
    return patterns


def _ternary(
    tensors: CheckpointTensors, divides: bool, wide: bool, module: str, shape: tuple[int, int]
) -> CodedMatrix | None:
    """Return a matrix of weights that are ternary in the file. divides: by the stored scale, instead of times it."""
    name, (rows, k) = f"{module}.weight", shape
    packed = tensors.has(name) and tensors.stored[name].dtype == "U8"
    if not packed and not tensors.has(f"{name}_scale"):
        return None
    codes = tensors.take(name, ("U8", *FLOATS), (-(-rows // _IN_BYTE), k) if packed else shape)
    scale = tensors.scales(f"{name}_scale", (1,), ())
    format = WeightFormat("int4", scale_dtype="float32" if divides else scale_dtype(scale), wide=wide)
    return CodedMatrix(module, shape, format, (codes, scale), partial(_ternary_rows, codes, scale, divides))


def _ternary_rows(codes: StoredTensor, scale: StoredTensor, divides: bool, files: Files, begin: int, end: int) -> Codes:
    factor = files.floats(scale).reshape(1, 1)
    values = _unpacked(codes, files, begin, end) if codes.dtype == "U8" else _whole(codes, files, begin, end)
    return Codes(values, np.repeat(1 / factor if divides else factor, end - begin, axis=0))


def _unpacked(codes: StoredTensor, files: Files, begin: int, end: int) -> Int8Array:
    quarter, at = np.divmod(np.arange(begin, end), codes.shape[0])
    pairs = files.array(codes)[at]
    pairs >>= (2 * quarter).astype(np.uint8)[:, None]
    pairs &= 3
    return pairs.view(np.int8) - np.int8(1)


def _whole(codes: StoredTensor, files: Files, begin: int, end: int) -> Int8Array:
    """Return floats that are -1, 0 or 1 as codes. Raises: ConfigError if one is not."""
    floats = _floats(codes, files, begin, end)
    values = np.sign(floats)
    if not np.array_equal(values, floats):
        raise ConfigError(
            f"{codes.path}: tensor {codes.name} has weights that are not -1, 0 or 1, but quantization_config says "
            '"quantization_mode": "offline"; if they are those of training, set it to "online" in config.json'
        )
    return values.astype(np.int8)


def _of_training(
    tensors: CheckpointTensors,
    kept: tuple[re.Pattern[str], ...],
    means: dict[str, np.float32],
    wide: bool,
    module: str,
    shape: tuple[int, int],
) -> CodedMatrix | None:
    """Return a matrix of floats that become ternary, if its module is linear. means: those known, by tensor."""
    name, last = f"{module}.weight", module.rpartition(".")[2]
    is_table = "embed" in last or last in ("wte", "wpe")
    if not tensors.has(name) or is_table or any(pattern.match(module) for pattern in kept):
        return None
    stored = tensors.take(name, tuple(FLOATS), shape)
    format = WeightFormat("int4", wide=wide)
    return CodedMatrix(module, shape, format, (stored,), partial(_rounded_rows, stored, means))


def _rounded_rows(stored: StoredTensor, means: dict[str, np.float32], files: Files, begin: int, end: int) -> Codes:
    """Return rows as transformers rounds them, half to even. Threads that need a mean at once all compute the same."""
    mean = means.get(stored.name)
    if mean is None:
        mean = means[stored.name] = _mean_magnitude(stored, files)
    values = _floats(stored, files, begin, end)
    values *= np.float32(1) / mean
    codes = (values > 0.5).view(np.int8)  # the nearest of -1, 0 and 1
    codes -= (values < -0.5).view(np.int8)
    return Codes(codes, np.full((end - begin, 1), mean))


def _mean_magnitude(stored: StoredTensor, files: Files) -> np.float32:
    rows, k = stored.shape
    total, step = 0.0, max(1, _PIECE // k)
    for begin in range(0, rows, step):
        values = _floats(stored, files, begin, min(begin + step, rows))
        total += float(np.abs(values, out=values).sum(dtype=np.float64))
    return np.float32(max(total / (rows * k), _LEAST_MEAN))


def _floats(stored: StoredTensor, files: Files, begin: int, end: int) -> Float32Array:
    return widened(files.mapping(stored.path).rows(stored, range(begin, end)), stored.float_dtype)
