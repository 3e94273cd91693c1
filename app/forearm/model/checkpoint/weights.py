"""Loads a checkpoint into the native executor as packed weights, piece by piece in the order of the files' bytes.

The files are memory-mapped; the executor packs at most 64 MiB at a time, and the pages are released at once. Loading
therefore needs little more memory than the packed weights, whatever the size of the files, and reads the disk
sequentially. Quantized matrices are first decoded to one byte a value by several threads, in slices that fit a core's
cache.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forearm import _native
from forearm.array_types import Int32Array
from forearm.config.number_formats import INTEGERS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.calibration import (
    CENTRED_TOKENS,
    CalibratedWeights,
    Team,
    calibrated_layers,
    calibration_tokens,
)
from forearm.model.checkpoint.checkpoint import Checkpoint, Stored, stored_bytes
from forearm.model.checkpoint.formats import Source, spec_bytes, summary
from forearm.model.checkpoint.rotated import RotatedWeights
from forearm.model.checkpoint.rounding_errors import RoundingErrors, RoundingSample, TensorReceiver
from forearm.model.checkpoint.shards import Files, widened
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.checkpoint.weight_cache import (
    cache_file,
    check_source,
    map_weights,
    read_errors,
    save_weights,
)
from forearm.model.families.matrices import matrices
from forearm.model.pooling.adapters import SummedTensor
from forearm.model.quantization.centred import CentredWeights
from forearm.model.quantization.codes import CodedMatrix, Codes, column_order, dequantized, expressed
from forearm.model.quantization.quality import log_loss
from forearm.model.quantization.smoothing import ColumnSquares

if TYPE_CHECKING:
    from tqdm import tqdm
    from typing_extensions import Never  # typing has it from 3.11 on

log = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20
SLICE_BYTES = 2 << 20  # of decoded values; they fit a core's second-level cache
MOST_DECODERS = 8  # threads; numpy releases the GIL while it computes


def load_native(
    checkpoint: Checkpoint,
    *,
    step_tokens: int,
    step_sequences: int,
    step_logit_rows: int,
    cores: Sequence[int],
    threads: int,
    ranks: Sequence[int] = (),
    kv_groups: bool = False,
    beside: _native.Executor | None = None,
    progress: bool = True,
    weight_cache: str = "",
    weight_cache_bytes: int | None = None,
    tokenizer: Path | None = None,
    outdated: Callable[[], object] = lambda: None,
    rounded: Callable[[RoundingErrors], object] = lambda _: None,
) -> _native.Executor:
    """Return a native executor with all weights packed; the caller allocates its KV cache.

    kv_groups: layers with a window have KV blocks of their own.
    beside: the executor of the model that this one drafts for; see _native.pyi.
    progress: show a bar on stderr with bytes and bytes per second.
    weight_cache: the folder that keeps packed weights between starts, which are written in the background; empty: none;
    auto: environment.cache_folder, for weights that are worth it. weight_cache_bytes: most bytes of its files.
    tokenizer: the model folder or .gguf file whose tokenizer reads the calibration text; None: the checkpoint's.
    outdated: called from a thread if the kept weights turn out to belong to other files.
    rounded: called with the errors of the quantized matrices.
    Raises: ConfigError for weights that are not numbers; ValueError or MemoryError from the executor.
    """
    executor = _native.Executor(
        checkpoint.config, checkpoint.multiplied, checkpoint.formats, checkpoint.kv_dtype, step_tokens, step_sequences,
        step_logit_rows, checkpoint.max_model_len, cores, threads, ranks, kv_groups, beside,
    )  # fmt: skip
    _log_arithmetic(checkpoint)
    if checkpoint.config.modules:
        return executor  # the modules are loaded with their matrices (model/modules/loading.py)
    tokenizer = tokenizer or checkpoint.folder
    team = Team(cores, threads, ranks)
    kept = cache_file(weight_cache, checkpoint, executor.packed_bytes, tokenizer, _native.tier())
    if kept is None:
        errors = load_weights(checkpoint, executor, tokenizer, team, progress)
    else:
        path, key = kept
        if map_weights(executor, path, key):
            executor.finish_loading()
            errors = read_errors(path)
        else:
            errors = load_weights(checkpoint, executor, tokenizer, team, progress)
            save_weights(executor, path, key, weight_cache_bytes, errors)
        check_source(path, checkpoint, outdated)
    errors.log()
    rounded(errors)
    return executor


def load_weights(
    checkpoint: Checkpoint, target: TensorReceiver, tokenizer: Path, team: Team, progress: bool
) -> RoundingErrors:
    """Read all tensors of a checkpoint into an executor or a writer, calibrated if the checkpoint asks for it.

    Returns: the errors of its quantized matrices. Raises: ConfigError for weights that are not numbers.
    """
    size, tokens = checkpoint.stored_bytes, None
    sample: TensorReceiver = (rounding := RoundingSample(checkpoint, target))
    files = Files()
    if checkpoint.calibrated:
        try:
            tokens = calibration_tokens(tokenizer, checkpoint.config.vocab_size)
            tokens = tokens[:CENTRED_TOKENS] if checkpoint.config.centred else tokens
        except ConfigError as problem:
            log.warning("weights: rounded without calibration, which loses more: %s", problem)
    from tqdm import tqdm  # not above: mapped weights need no bar

    if tokens is not None:  # the tensors of layers are read twice
        size += sum(stored_bytes(part, stored) for part, stored in checkpoint.sources if part.layer is not None)
        size += sum(stored_bytes(*source) for source in _behind(checkpoint))
    with (
        tqdm(total=size, unit="B", unit_scale=True, desc="Loading weights", disable=not progress) as bar,
        ThreadPoolExecutor(min(team.threads, MOST_DECODERS), "decode") as decoders,
    ):
        loader = Loader(checkpoint, files, decoders, bar)
        if checkpoint.config.centred or any(format.turned for format in checkpoint.formats.values()):
            sample = CentredWeights(checkpoint, sample, files, decoders)
        try:
            if tokens is None:
                for part, stored in checkpoint.sources:
                    loader.load(sample, part, stored)
            else:
                plain = Loader(replace(checkpoint, rotated=False), files, decoders, bar)
                _load_calibrated(checkpoint, sample, tokens, team, loader, plain)
        except ValueError as problem:  # such as a scale that is not a number: sizes were checked before
            raise ConfigError(f"{checkpoint.folder} can't be loaded: {problem}; download it again") from None
    sample.finish_loading()
    return rounding.errors


def _load_calibrated(
    checkpoint: Checkpoint, target: TensorReceiver, tokens: Int32Array, team: Team, loader: Loader, plain: Loader
) -> None:
    """Load layer by layer, each after the float model has computed the calibration text up to it.

    plain: loads the float model.
    """
    centred = target if isinstance(target, CentredWeights) and checkpoint.config.centred else None
    seeing = centred or CalibratedWeights(checkpoint.config, target)
    began = time.monotonic()
    layers: dict[int | None, list[Source]] = defaultdict(list)
    for part, stored in checkpoint.sources:
        layers[part.layer].append((part, stored))
    behind = _behind(checkpoint)
    for source in layers[None]:
        if source not in behind:
            loader.load(target, *source)

    def load(one: _native.Executor, layer: int) -> None:
        seen: TensorReceiver = one
        if centred:
            centred.squares.clear()
            seen = ColumnSquares(centred.squares, centred.expert_rows, one, layer)
        beside = ("attention_bias", *(("positions", "types", "embed_norm", "embed_norm.bias") if layer == 0 else ()))
        for part, stored in (*layers[layer], *(source for source in layers[None] if source[0].name in beside)):
            name = part.name.replace(f"layers.{layer}.", "layers.0.", 1)
            plain.load(seen, replace(part, name=name), stored)

    embed, table = next(source for source in layers[None] if source[0].name == "embed")
    if isinstance(table, CodedMatrix):
        residual = dequantized(table, table.read(Files(), 0, embed.shape[0]))[tokens]
    else:
        residual = widened(
            Files().mapping(table.path).rows(table, embed.rows(0, embed.shape[0]))[tokens], table.float_dtype
        )
    for layer, rows in enumerate(calibrated_layers(checkpoint.config, residual, load, team, not centred)):
        seeing.see(rows)
        for part, stored in layers[layer]:
            loader.load(seeing, part, stored)
    if centred:
        for source in behind:
            plain.load(ColumnSquares(centred.squares, centred.expert_rows), *source)
        centred.see_stream(residual)
    for part, stored in behind:
        loader.load(target, part, stored)
    log.info("weights: calibrated on %d tokens in %.1f s", len(tokens), time.monotonic() - began)


def _behind(checkpoint: Checkpoint) -> list[Source]:
    """Return the tensors of the head that is centred, which are loaded behind all layers."""
    own = ("head", "head.bias") if checkpoint.config.centred else ()
    return [source for source in checkpoint.sources if source[0].name in own]


class Loader:
    """Reads tensors from their files into an executor, and shows how far it is."""

    def __init__(self, checkpoint: Checkpoint, files: Files, decoders: ThreadPoolExecutor, bar: tqdm[Never]) -> None:
        self._formats, self._decoders, self._bar = checkpoint.formats, decoders, bar
        self._files = files
        streamed = checkpoint.rotated and not checkpoint.config.centred  # others are rotated by CentredWeights
        self._rotated = RotatedWeights(checkpoint, self._files) if streamed else None

    def load(self, target: TensorReceiver, part: TensorPart, stored: Stored) -> None:
        """Load one part of the checkpoint."""
        exact = bool(part.matrix) and not self._formats[part.matrix].is_quantized
        if exact and part.turned:
            own = part.rows(0, part.stored_shape[0])
            if isinstance(stored, CodedMatrix):
                floats = dequantized(stored, stored.read(self._files, own.start, own.stop))
            else:
                floats = widened(self._files.mapping(stored.path).rows(stored, own), stored.float_dtype)
            target.load_matrix(part.name, np.ascontiguousarray(floats.T), "float32", part.at)
            self._bar.update(stored_bytes(part, stored))
        elif exact and isinstance(stored, CodedMatrix):
            for row, codes in _decoded(part, stored, stored.format, self._files, self._decoders):
                target.load_matrix(part.name, dequantized(stored, codes), "float32", part.at + row)
            self._bar.update(stored_bytes(part, stored))
        elif isinstance(stored, CodedMatrix):
            assert isinstance(target, RoundingSample | _native.Executor), "a quantized checkpoint is not written again"
            format = self._formats[part.matrix]
            order = column_order(stored) if format.ordered else None  # some experts' may be sorted, others' not
            for row, rows in _decoded(part, stored, format, self._files, self._decoders):
                target.load_codes(part.name, rows.codes, rows.scales, rows.zeros, rows.offsets, order, part.at + row)
            self._bar.update(stored_bytes(part, stored))
        elif self._rotated is not None:
            if len(part.shape) == 1:
                target.load_vector(part.name, self._rotated.vector(part, stored), part.at)
            else:
                for row, floats in self._rotated.pieces(part, stored, self._decoders):
                    target.load_matrix(part.name, floats, "float32", part.at + row)
            self._bar.update(stored_bytes(part, stored))
        elif len(part.shape) == 1:
            target.load_vector(part.name, part.vector(self._files.mapping(stored.path), stored), part.at)
            self._bar.update(stored_bytes(part, stored))
        else:
            files, mapping = self._files, self._files.mapping(stored.path)
            row_bytes = (stored.end - stored.begin) // stored.shape[0]
            step = max(1, PIECE_BYTES // row_bytes)
            for row in range(0, part.shape[0], step):
                piece = part.rows(row, min(row + step, part.shape[0]))
                values = stored.rows(files, piece) if isinstance(stored, SummedTensor) else mapping.rows(stored, piece)
                target.load_matrix(part.name, values, stored.float_dtype, part.at + row)
                mapping.release(stored.begin + piece.start * row_bytes, stored.begin + (piece[-1] + 1) * row_bytes)
                self._bar.update(len(piece) * row_bytes)


def _decoded(
    part: TensorPart, matrix: CodedMatrix, format: WeightFormat, files: Files, decoders: ThreadPoolExecutor
) -> Iterator[tuple[int, Codes]]:
    """Yield the rows of a part in its format in memory, slice by slice, each with the number of its first row."""
    rows, k = part.shape
    step = max(1, SLICE_BYTES // k)
    starts = range(0, rows, step)
    for tensor in matrix.tensors:
        files.mapping(tensor.path)  # mapped here, because the decoders would all map it at once

    def read(row: int) -> Codes:
        stored = part.rows(row, min(row + step, rows))
        own = matrix.read(files, stored.start, stored[-1] + 1)
        return expressed(own if part.step == 1 else own.every(part.step), matrix.format, format)

    at_once = max(1, PIECE_BYTES // SLICE_BYTES)
    for first in range(0, len(starts), at_once):
        piece = starts[first : first + at_once]
        yield from zip(piece, decoders.map(read, piece), strict=True)
        for tensor in matrix.tensors:
            files.release(tensor)


def _log_arithmetic(checkpoint: Checkpoint) -> None:
    """Log the dtypes of weights and products: a CPU without bfloat16 products multiplies in another dtype."""
    form, tier = _native.operand_form(checkpoint.weight_dtype), _native.tier()
    why = ""
    if checkpoint.weight_dtype == "bfloat16" and form == "float32":
        why = " (no bfloat16 products on this CPU: weights stay bfloat16 in memory and are widened exactly)"
    if form == "float16":
        why = " (weights are kept as float16, each row by a power of two; FOREARM_TIER=neon_dot multiplies in float32)"
    log.info(
        "dtype: checkpoint %s, weights %s, products in %s%s, KV cache %s; tier %s",
        checkpoint.config.dtype, checkpoint.weight_dtype, form, why, checkpoint.kv_dtype, tier,
    )  # fmt: skip
    if any(format.is_quantized for format in checkpoint.formats.values()):
        kept = [(checkpoint.formats[spec.name], spec) for spec in matrices(checkpoint.config)]
        sizes = [(format, spec_bytes(spec, format)) for format, spec in kept]
        how = checkpoint.method or f"{'rotated and ' if checkpoint.rotated else ''}rounded while loading"
        log.info("weights, %s: %s", how, summary(sizes))
        if checkpoint.method:
            log_loss(checkpoint.folder, any(format.wide for format in checkpoint.formats.values()))
        if checkpoint.rounds_4_bits_unseen:
            log.warning(
                "weights: rounded to 4 bits without calibration: their errors do not count what outlier activations "
                "make of them (SmolLM2-135M: perplexity +44 %%, calibrated +15 %%); measure with forearm quantize, or "
                "serve with --quantization %s", INTEGERS[4 if checkpoint.config.layers_stand_alone else 8],
            )  # fmt: skip
