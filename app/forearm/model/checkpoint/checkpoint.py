"""Opens a model folder: reads its config, finds and checks every tensor, chooses the formats it will have in memory.

Only headers are read, and the order of columns where a checkpoint has sorted them (g_idx). The engine plans memory with
the result before it reads any weights: sizes in bytes, context length, end-of-text tokens.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from forearm.config.number_formats import DTYPES, KV_DTYPES, DTypeName, KvDTypeName, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.formats import described, plan_formats, spec_bytes
from forearm.model.checkpoint.names import parts, stored_module
from forearm.model.checkpoint.shards import WHOLE, StoredTensor, read_tensors
from forearm.model.checkpoint.tensor_part import TensorPart, stored_shape
from forearm.model.checkpoint.unread_tensors import HEADS, check_unread, some
from forearm.model.families.config import ModelConfig
from forearm.model.families.families import read_config
from forearm.model.families.keys import Keys, read_json, text_part
from forearm.model.families.matrices import matrices
from forearm.model.families.matrix_spec import MatrixSpec
from forearm.model.gguf.gguf import is_gguf, read_gguf
from forearm.model.gguf.gguf_config import gguf_config, is_quantized, predicted_layers
from forearm.model.pooling.adapters import AdaptedTensor, with_calls
from forearm.model.pooling.plan import PoolingPlan
from forearm.model.pooling.pooled_checkpoint import with_pooling
from forearm.model.predictor import predictor
from forearm.model.quantization.codes import CodedMatrix, Find
from forearm.model.quantization.quantization import Asked, find_coded, quantization_of
from forearm.model.quantization.rotation import obstacle

log = logging.getLogger(__name__)

DEFAULT = Asked()
Name = TypeVar("Name", bound=str)
Stored = StoredTensor | CodedMatrix


@dataclass(frozen=True)
class Checkpoint:
    """One model folder (or .gguf file) and how it is to be served.

    weight_dtype: the dtype of matrices that are not quantized.
    max_model_len: the longest sequence, in tokens.
    sources: every part to load with the tensor or quantized matrix that holds it, in the order of the files' bytes.
    formats: the format of each packed matrix, by the executor's name for it.
    method: the checkpoint's quant_method; empty if its weights are floats.
    rotated: loading rotates the residual stream and values (rotation.py); config then has no tied head.
    own_cache: why transformers' own cache is used, if it computes the model (config.modules); empty: ours is.
    recomputes: the model has no cache at all, so each token computes its whole text.
    module_bytes: bytes of the tensors that torch keeps then, in float32.
    own_code: the code of its modules is the checkpoint's own.
    pooling, columns: how its texts become vectors, and of how many values, if it pools.
    calibrated: floats are rounded so that a calibration text loses least (calibration.py), or less the means of its
        activations (config.centred, centred.py). Not in models whose layers
        cannot be computed one by one: those with norms on the residual stream, and Gemma 4's.
    borrowed: matrices that another's executor lends (config.shared) and rows are multiplied with; formats has theirs.
    """

    folder: Path
    config: ModelConfig
    weight_dtype: DTypeName
    kv_dtype: KvDTypeName
    max_model_len: int
    sources: tuple[tuple[TensorPart, Stored], ...]
    formats: dict[str, WeightFormat]
    method: str = ""
    rotated: bool = False
    own_cache: str = ""
    recomputes: bool = False
    module_bytes: int = 0
    own_code: bool = False
    pooling: PoolingPlan | None = None
    columns: int = 0
    calibrated: bool = False
    borrowed: tuple[MatrixSpec, ...] = ()

    @property
    def multiplied(self) -> list[MatrixSpec]:
        """The packed matrices that the executor has, and those of another that it multiplies rows with."""
        return [*matrices(self.config), *self.borrowed]

    @property
    def packed_bytes(self) -> int:
        """Upper bound of the bytes that the weights take in memory; vectors are float32, padded to panels of 16."""
        sizes = [part.shape[0] for part, _ in self.sources if not part.matrix]
        if not self.config.key_bias:  # which have room beside those of queries and values
            sizes += [part.rows for one in matrices(self.config) for part in one.parts if one.bias and not part.bias]
        if self.config.centred:  # biases that the checkpoint may not have
            sizes += [part.rows * spec.experts for spec in matrices(self.config) if spec.bias for part in spec.parts]
            sizes += [self.config.hidden] * (2 * len(self.config.layers) + 1 + self.config.keeps_hidden)
        vectors = sum(4 * -(-size // 16) * 16 for size in sizes)
        packed = sum(spec_bytes(spec, self.formats[spec.name]) for spec in matrices(self.config))
        return self.module_bytes + vectors + packed

    @property
    def rounds_4_bits_unseen(self) -> bool:
        """True if floats are rounded to 4 bits by the weights alone: the effect of outlier activations is unknown."""
        return not self.method and not self.calibrated and any(one.bits == 4 for one in self.formats.values())

    @property
    def stored_bytes(self) -> int:
        """Bytes of the files that loading reads."""
        return sum(stored_bytes(part, stored) for part, stored in self.sources)

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        if self.config.modules:
            return self.module_bytes // 4 + sum(one.rows * one.k for one in self.config.linears)
        once = {(part.stored, part.row, part.shape): stored for part, stored in self.sources}  # layers may share them
        calls = {one.name: one for one in once.values() if isinstance(one, AdaptedTensor) and one.adapter is None}
        whole = {(call.path, call.begin): math.prod(call.shape) for call in calls.values()}
        adapters = sum(math.prod(one.shape) for call in calls.values() for one in (call.left, call.right))
        return sum(whole.values()) + adapters + sum(math.prod(key[2]) for key in once if key[0] not in calls)

    @property
    def number_format(self) -> str:
        """Format in which the weights are served: a quantization and its commonest format, or a dtype."""
        formats = [described(one) for one in self.formats.values()]
        common = max(set(formats), key=formats.count) if formats else self.weight_dtype
        return f"{self.method} {common}".strip()


def open_checkpoint(
    folder: Path,
    *,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
    allow_longer: bool = False,
    quantization: Asked = DEFAULT,
    pooling: PoolingPlan | None = None,
    ignore_unread: bool = False,
    rope: dict[str, Any] | None = None,
    predicts: bool = False,
) -> Checkpoint:
    """Read config.json and the headers of the safetensors files, and check that they fit each other.

    folder: a model folder, or a .gguf file, which holds config and tensors in one.
    dtype: auto (the checkpoint's dtype), bfloat16, float16, half, float32 or float.
    kv_dtype: auto (the same as dtype; bfloat16 if a pooling model's layers round activations to int8, beside which 16
    bits of attention cost no accuracy, and their products take half the time), or a name of KV_DTYPES.
    max_model_len: None selects the model's own context length; a longer one is refused unless allow_longer is set.
    quantization: the --quantization settings; a quantized checkpoint keeps the format it is stored in.
    pooling: how texts become vectors; None: the model generates text.
    rope: changes to the rotary angles, by config.json's names (rope.py).
    ignore_unread: leave tensors that nothing reads out even if they would change the model.
    predicts: open the layer that predicts further tokens (predictor.py) in place of the model, without calibration.
    Raises: ConfigError naming the key, tensor or file, with the remedy.
    """
    wanted = None if dtype == "auto" else dtype_of(dtype, "--dtype", DTYPES)
    asked = dict[str, Any](weight_dtype=wanted, max_model_len=max_model_len, allow_longer=allow_longer, rope=rope)
    config, tensors, quantized, nextn = _described(folder, bool(pooling), asked)
    if pooling is not None:
        config, tensors = with_pooling(folder, config, tensors, pooling)
        max_model_len = max_model_len or min(config.max_positions, pooling.max_tokens or config.max_positions)
    weight_dtype = wanted or config.dtype
    if predicts:
        config = predictor(config, tensors)
        quantization = replace(quantization, weights="none") if quantized else quantization
    served, rotated, turned = (config, False, False) if quantized else _served(config, tensors, quantization)
    found, used = _match(folder, served, tensors, find_coded(quantized, quantization, tensors, folder))
    if not predicts:  # else all tensors of the model itself are left out
        read = [part for part, _ in found]
        check_unread(folder, config, tensors, used, read, predicted_layers=nextn, ignore=ignore_unread)
    formats = plan_formats(matrices(served), found, weight_dtype, quantization, quantized is not None, rotated, turned)
    return Checkpoint(
        folder=folder,
        config=served,
        weight_dtype=weight_dtype,
        max_model_len=max_model_len or config.max_positions,
        sources=tuple(sorted(found, key=_place)),
        formats=formats,
        kv_dtype=_kv_dtype(kv_dtype, weight_dtype, formats if pooling else {}),
        method="" if quantized is None else quantized[0],
        rotated=rotated,
        calibrated=served.centred or (quantization.calibrated and quantized is None and config.layers_stand_alone),
    )


def _described(
    folder: Path, pooled: bool, asked: Mapping[str, Any]
) -> tuple[ModelConfig, dict[str, StoredTensor], tuple[str, Keys] | None, int]:
    """Return what a folder or .gguf file holds: the model, its tensors, quant_method and settings if they are
    quantized, and how many layers behind the model's own predict further tokens.
    """
    if is_gguf(folder):
        gguf = read_gguf(folder, merges=False)
        config = gguf_config(gguf, pooled=pooled, **asked)
        vectors = {name: gguf.vectors[name] for name in gguf.vectors.keys() & config.names.values()}
        quantized = ("gguf", Keys({}, str(gguf.path))) if is_quantized(gguf) else None
        return config, gguf.tensors | vectors, quantized, predicted_layers(gguf)
    tensors = with_calls(read_tensors(folder))
    config = read_config(folder, pooled=pooled, own_head=not tensors.keys().isdisjoint(HEADS), **asked)
    keys = read_json(folder / "config.json")
    nextn = (text_part(keys) or keys).integer("num_nextn_predict_layers", 0)
    return config, tensors, quantization_of(keys, folder), nextn


def _served(config: ModelConfig, tensors: Mapping[str, StoredTensor], asked: Asked) -> tuple[ModelConfig, bool, bool]:
    """Return a float model as it is served, whether rotated, in int8 with a head of its own, and whether turned.

    A log line says why the model's maths do not allow a rotation. Its norms may take the means of activations away.
    """
    why = obstacle(config, asked.portable)
    centred, turned = asked.centred and not why, asked.turned and not config.pooled
    if not asked.rotated or why:
        if asked.rotated:
            how = (config.model_type, asked.weights, why)
            log.info("%s: %s is not calibrated, because %s (rotation.py)", *how)
        return replace(config, centred=centred), False, turned
    if asked.weights == "fp8":
        return replace(config, centred=centred), True, turned
    names = config.names
    if config.tied_head:
        names = names | {"head": stored_module(config, tensors.keys(), "embed")}
    return replace(config, tied_head=False, names=names, centred=centred), True, turned


def _kv_dtype(asked: str, weight_dtype: DTypeName, pooled: Mapping[str, WeightFormat]) -> KvDTypeName:
    """Return the dtype of keys and values. pooled: the formats of a pooling model's matrices; else none."""
    if asked != "auto":
        return dtype_of(asked, "--kv-cache-dtype", KV_DTYPES)
    rounded = (one.is_integer and not one.wide for name, one in pooled.items() if name.startswith("layers."))
    return "bfloat16" if any(rounded) else weight_dtype


def dtype_of(name: str, flag: str, known: Mapping[str, Name]) -> Name:
    """Return the dtype that a flag names. Raises: ConfigError listing those that it takes."""
    if name not in known:
        raise ConfigError(f"{flag} {name} is not supported; use auto, {', '.join(known)}")
    return known[name]


def _match(
    folder: Path, config: ModelConfig, tensors: dict[str, StoredTensor], find: Find
) -> tuple[list[tuple[TensorPart, Stored]], set[str]]:
    """Pair every part with its tensor or quantized matrix; also return the names of all tensors that are read.

    Raises: ConfigError naming tensors that are missing, or one whose shape does not follow from config.json.
    """
    if len(config.layers) > len(tensors):  # before the names of all parts, of which there may be millions, are made
        raise ConfigError(
            f"{folder}: it has {len(tensors)} tensors for {len(config.layers)} layers; download it again, or see "
            "num_hidden_layers in config.json"
        )
    by_name: dict[str, list[TensorPart]] = defaultdict(list)
    try:
        stored = {name.removesuffix("_packed") for name in tensors}  # the ending of compressed-tensors' codes
        for part in parts(replace(config, centred=False), stored):  # biases of means are not stored
            by_name[part.stored].append(part)
    except ConfigError as problem:
        raise ConfigError(f"{folder}: {problem}; see model_type in config.json") from None
    shapes = {name: stored_shape(sharing) for name, sharing in by_name.items()}
    coded = dict.fromkeys(shapes, None) | {
        name: find(name.removesuffix(".weight"), (shape[0], shape[1]))
        for name, shape in shapes.items()
        if len(shape) == 2  # without .weight: a tensor of all experts
    }
    missing = sorted(name for name in by_name if coded[name] is None and name not in tensors)
    if missing:
        if is_gguf(folder):
            raise ConfigError(f"{folder}: {some(missing)} missing from its tensors; download it again")
        raise ConfigError(
            f"{folder}: {some(missing)} missing from its safetensors files; download it again, or see whether "
            "config.json belongs to them (tie_word_embeddings, num_hidden_layers)"
        )
    matched = {
        name: coded[name] or _fitting(tensors[name], expected, by_name[name][0]) for name, expected in shapes.items()
    }
    used = {t.name for matrix in coded.values() if matrix is not None for t in matrix.tensors} | set(by_name)
    return [(part, matched[name]) for name, sharing in by_name.items() for part in sharing], used


def _fitting(tensor: StoredTensor, expected: tuple[int, ...], part: TensorPart) -> StoredTensor:
    """Return a float tensor as a vector or matrix. Raises: ConfigError if it has another shape or is quantized."""
    shape, columns, transposed = tensor.shape or (1,), 0, part.transposed
    if part.joined and len(shape) == 3:
        shape = (shape[0], shape[1] * shape[2])
    # Qwen3-VL's experts are columns on the hub, and rows in what transformers 5 writes.
    if len(shape) == 3 and shape[1] != expected[-1] == shape[2]:
        transposed = False
    if len(shape) == 2 and transposed:  # one matrix, or those of DBRX's experts
        count = shape[0] // expected[-1] if shape[0] and shape[0] % expected[-1] == 0 else 1
        shape = (count, shape[0] // count, shape[1])
    if len(shape) == 3 and len(expected) == 2:  # the matrices of all experts: their rows follow each other
        rows, columns = (shape[2], shape[2]) if transposed else (shape[1], 0)
        shape = (shape[0] * rows, shape[1] if transposed else shape[2])
    if part.name == "head" and shape == part.shape:  # without rows of no tokens, which the embedding may have
        expected = shape
    # A vector may have any shape: the taps of a convolution are [channels, 1, taps].
    if shape != expected and (len(expected) > 1 or math.prod(shape) != expected[0]):
        raise ConfigError(
            f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)}; config.json makes it {list(expected)}"
        )
    if not (part.whole and tensor.dtype in WHOLE):
        _ = tensor.float_dtype
    return replace(tensor, shape=shape, transposed=columns)


def _place(source: tuple[TensorPart, Stored]) -> tuple[str, int, int]:
    """Sort key of a source: file, first byte and first row of the tensor that holds most of its bytes."""
    part, stored = source
    tensor = stored.tensors[0] if isinstance(stored, CodedMatrix) else stored
    return str(tensor.path), tensor.begin, part.row


def stored_bytes(part: TensorPart, stored: Stored) -> int:
    """Bytes of the files that are read for this part."""
    tensors = stored.tensors if isinstance(stored, CodedMatrix) else (stored,)
    rows = stored.shape[0] if len(part.shape) > 1 else math.prod(stored.shape)
    return sum(tensor.end - tensor.begin for tensor in tensors) * part.stored_shape[0] // rows
