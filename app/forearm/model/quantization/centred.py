"""Prepares activations and weights for 8 bits while a float model is loaded: less their means, smoothed and turned.

What a norm hands on to matrices has a mean over tokens, a vector m with much of its energy. The norm gets the bias -m,
and each matrix behind it the bias W m: x W^T = (x - m) W^T + W m. Rounding then errs by the rest alone, in activations
and in weights. m is that of the calibration text; the result is the same with any m, but for rounding.
Source: Wei et al. 2023, Outlier Suppression+, arXiv:2304.09145, section 4.1.

Columns are then weighed by d (smoothing.py): norms are multiplied with it, and before a down projection the rows of up
are. Columns of matrices are divided by d, and turned as their activations are (rotation.py). Integer weights are
rounded with feedback of their errors (feedback.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from forearm.array_types import Float32Array, UInt16Array
from forearm.model.checkpoint.calibration import is_of_experts, squares_of_experts
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.rounding_errors import TensorReceiver
from forearm.model.checkpoint.shards import Files, StoredTensor, widened
from forearm.model.families.config import Experts, FeedForward, Layer
from forearm.model.families.matrices import matrices
from forearm.model.quantization import rotation
from forearm.model.quantization.feedback import feedback_of
from forearm.model.quantization.rounding import PLAIN, Rounding, expert_slices
from forearm.model.quantization.smoothing import ExpertSquares, column_weights

# Values of a piece, 2 MiB of float32, which fit a core's second-level cache, and pieces that are in memory at once.
_PIECE_VALUES, _AT_ONCE = 1 << 19, 16


class CentredWeights:
    """Passes a model's tensors on to an executor, changed for 8 bits, with the biases that centring takes.

    Each matrix and bias is taken once, after the mean of the norm before it was set; without a mean, m is 0 and d is 1.
    A model that is not centred has no such norms: its matrices are turned alone.
    """

    def __init__(
        self, checkpoint: Checkpoint, target: TensorReceiver, files: Files, threads: ThreadPoolExecutor
    ) -> None:
        self._config, self._formats = checkpoint.config, checkpoint.formats
        self._target, self._files, self._threads = target, files, threads
        specs = matrices(checkpoint.config)
        # Norms whose mean all matrices behind them can make up for, and these matrices.
        stored = {part.name: (part, stored) for part, stored in checkpoint.sources if checkpoint.config.centred}
        others = {f"layers.{i}.pre_mlp_norm" for i, layer in enumerate(checkpoint.config.layers) if _reads_more(layer)}
        norms_before = {spec.name: rotation.norm_before(spec.name, spec.role) for spec in specs}
        self._norm_of = {name: norm for name, norm in norms_before.items() if norm in stored and norm not in others}
        self._norms = {norm: stored[norm] for norm in norms_before.values() if norm in stored}
        self._spec_of = {part.name: spec for spec in specs for part in spec.parts}
        self._parts = {spec.name: [part.name for part in spec.parts] for spec in specs}
        self.expert_rows = {part.name: part.rows for spec in specs for part in spec.parts}  # of an expert, by part
        self.squares: ExpertSquares = {}  # of the columns of the parts that are seen next, which the loader adds up
        # By the part whose rows are multiplied with d, the matrix behind it.
        self._down_of = {
            f"layers.{i}.{at}up": f"layers.{i}.{at}down"
            for i, layer in enumerate(checkpoint.config.layers)
            for at, own in _feed_forwards(layer).items()
            if own.gated and math.isinf(own.limit) and own.activation != "swiglu_oai"  # which clips up
        }
        # The rows of each part that has a bias, where matrices behind norms have one.
        biased = [spec for spec in specs if spec.bias and checkpoint.config.centred]
        self._rows = {part.name: part.rows * spec.experts for spec in biased for part in spec.parts}
        self._means: dict[str, Float32Array] = {}  # by norm
        self._norm_columns: dict[str, Float32Array] = {}  # d, by norm
        self._columns: dict[str, Float32Array] = {}  # d, by matrix, float32 [1 or experts, k]
        self._feedback: dict[str, Float32Array] = {}  # by matrix
        self._biases: dict[str, Float32Array] = {}  # by part of a matrix, those that were begun
        self._norm_biases: dict[str, Float32Array] = {}  # those of the checkpoint, by norm

    def see(self, rows: Mapping[str, Float32Array]) -> None:
        """Take what matrices of the float model are multiplied with (calibrated_layers), by their names."""
        self._feedback.clear()  # of the layer before
        readers: dict[str, list[str]] = defaultdict(list)  # by norm
        for name in rows:
            if norm := self._norm_of.get(name):
                readers[norm].append(name)
        for norm, names in readers.items():
            own = next((rows[name] for name in names if not is_of_experts(name)), None)
            if own is None:
                continue
            self._means[norm] = own.mean(axis=0)
            served = own - self._means[norm]
            rounded = [part for name in names if self._formats[name].is_quantized for part in self._parts[name]]
            of_weights = [of_part for (part, _), of_part in self.squares.items() if part in rounded]
            if of_weights:
                self._norm_columns[norm] = column_weights(np.square(served).mean(axis=0), np.sum(of_weights, axis=0))
                behind = [name for name, before in self._norm_of.items() if before == norm]
                self._columns |= dict.fromkeys(behind, self._norm_columns[norm][None])
                served = served * self._norm_columns[norm]
            self._see_rows(served, names)
        for name in {name for name in self._down_of.values() if name in rows}:
            of_weights = [
                self.squares[part, i] for part in self._parts[name] for i in range(self._spec_of[part].experts)
            ]
            of_rows = squares_of_experts(rows[name]) if is_of_experts(name) else np.square(rows[name]).mean(axis=0)
            self._columns[name] = column_weights(np.atleast_2d(of_rows), np.stack(of_weights))
        for name, own in rows.items():
            if name not in self._norm_of and not is_of_experts(name):
                columns = self._columns.get(name)
                self._see_rows(own if columns is None else own * columns, [name])

    def _see_rows(self, rows: Float32Array, names: Sequence[str]) -> None:
        """Find the feedback of matrices that are multiplied with these rows, turned as their formats say."""
        found: dict[int | None, Float32Array] = {}  # by the columns of a group; None: not turned
        for name in names:
            if (format := self._formats[name]).is_integer:
                group = format.group if format.turned else None
                if group not in found:
                    found[group] = feedback_of(rows if group is None else rotation.turn(rows, group))
                self._feedback[name] = found[group]

    def see_stream(self, residual: Float32Array) -> None:
        """Take the stream behind the layers, float32 [tokens, hidden]."""
        if "head" in self._norm_of and np.isfinite(residual).all():
            rows = residual - residual.mean(axis=1, keepdims=True) if self._config.layer_norm else residual
            means = np.square(rows).mean(axis=1, keepdims=True) + np.float32(self._config.norm_eps)
            normed = rows / np.sqrt(means) * self._weights_of("final_norm")
            self.see({"head": normed + self._norm_biases.get("final_norm", np.float32(0))})

    def _weights_of(self, norm: str) -> Float32Array:
        part, stored = self._norms[norm]
        assert isinstance(stored, StoredTensor), "floats are centred, not codes"
        return part.vector(self._files.mapping(stored.path), stored) + np.float32(self._config.norm_plus_one)

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Pass rows of a matrix on, and add their products with the mean to its bias."""
        rounding = replace(rounding, feedback=self._feedback.get(self._spec_of[name].name))
        step = max(1, _PIECE_VALUES // data.shape[1])
        pieces = [
            (name, data[at : min(at + step, own.stop)], dtype, row + at, expert)
            for expert, own in expert_slices(self.expert_rows[name], row, len(data))
            for at in range(own.start, own.stop, step)
        ]
        for first in range(0, len(pieces), _AT_ONCE):
            some = pieces[first : first + _AT_ONCE]
            served = self._threads.map(self._served, *zip(*some, strict=True))
            for (_, _, _, at, _), rows in zip(some, served, strict=True):
                self._target.load_matrix(name, rows, "float32", at, rounding)

    def _served(self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int, expert: int) -> Float32Array:
        """Return rows of a part as they are rounded, float32 [rows, k]; their products with the mean become biases."""
        matrix, end, rows = self._spec_of[name].name, row + len(data), widened(data, dtype)
        if (weights := self._row_weights(name)) is not None:
            rows *= weights[row:end, None]
        if (mean := self._means.get(self._norm_of.get(matrix, ""))) is not None:
            self._bias(name)[row:end] += rows @ mean
        if (columns := self._columns.get(matrix)) is not None:
            rows /= columns[expert % len(columns)]
        return rotation.turn(rows, self._formats[matrix].group) if self._formats[matrix].turned else rows

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Pass a bias on; those of centred matrices wait for products with the mean, and norms for their matrices."""
        owner, end = name.removesuffix(".bias"), row + len(values)
        if owner in self._rows:
            weights = self._row_weights(owner)
            self._bias(owner)[row:end] += values if weights is None else values * weights[row:end]
        elif owner in self._norms and owner != name:
            self._norm_biases[owner] = values
        elif name not in self._norms:
            self._target.load_vector(name, values, row)

    def finish_loading(self) -> None:
        """Load the norms and the biases of all matrices and norms."""
        for name, rows in self._rows.items():
            self._target.load_vector(f"{name}.bias", self._biases.get(name, np.zeros(rows, np.float32)))
        one = np.float32(self._config.norm_plus_one)
        for norm in self._norms:
            own = self._norm_columns.get(norm, np.ones(self._config.hidden, np.float32))
            self._target.load_vector(norm, self._weights_of(norm) * own - one)
            bias = self._norm_biases.get(norm, np.zeros(self._config.hidden, np.float32))
            self._target.load_vector(f"{norm}.bias", (bias - self._means.get(norm, np.float32(0))) * own)
            if norm == "final_norm" and self._config.keeps_hidden:
                self._target.load_vector("head_columns", own)
        self._target.finish_loading()

    def _row_weights(self, part: str) -> Float32Array | None:
        """Return what the rows of a part are multiplied with, float32 [rows]; None: with nothing."""
        columns = self._columns.get(self._down_of.get(part, ""))
        return None if columns is None else columns.ravel()

    def _bias(self, part: str) -> Float32Array:
        return self._biases.setdefault(part, np.zeros(self._rows[part], np.float32))


def _reads_more(layer: Layer) -> bool:
    """Return whether experts read something else than the norm before them, or pass it on."""
    own = layer.feed_forward
    return isinstance(own, Experts) and (own.apart or own.ahead or own.scales_input or own.zeros > 0)


def _feed_forwards(layer: Layer) -> dict[str, FeedForward | Experts]:
    """Return the feed-forwards of a layer, by what the names of their matrices begin with in it."""
    own = layer.feed_forward
    if isinstance(own, Experts):
        return {"experts.": own} | ({"shared.": own.shared} if own.shared else {})
    return {} if own is None else {"": own}
