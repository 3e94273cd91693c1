"""Takes the means of activations away before they are rounded to 8 bits, while a float model is loaded.

Integer weights are rounded with feedback of their errors meanwhile (feedback.py).

What a norm hands on to matrices has a mean over tokens, a vector m with much of its energy. The norm gets the bias -m,
and each matrix behind it the bias W m: x W^T = (x - m) W^T + W m. Rounding then errs by the rest alone, in activations
and in weights. m is that of the calibration text; the result is the same with any m, but for rounding.
Source: Wei et al. 2023, Outlier Suppression+, arXiv:2304.09145, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from forearm.array_types import Float32Array, UInt16Array
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.rounding_errors import TensorReceiver
from forearm.model.checkpoint.shards import Files, StoredTensor, widened
from forearm.model.families.matrices import matrices
from forearm.model.quantization import rotation
from forearm.model.quantization.feedback import feedback_of
from forearm.model.quantization.rounding import PLAIN, Rounding


class CentredWeights:
    """Passes a model's tensors on to an executor, and adds the biases that its centred norms and matrices need.

    Each matrix and bias is taken once, after the mean of the norm before it was set; without a mean, m is 0.
    """

    def __init__(self, checkpoint: Checkpoint, target: TensorReceiver, files: Files) -> None:
        self._config, self._rotated, self._formats = checkpoint.config, checkpoint.rotated, checkpoint.formats
        self._target, self._files = target, files
        specs = matrices(checkpoint.config)
        self._roles = {spec.name: spec.role for spec in specs}
        self._norm_of = {spec.name: norm for spec in specs if (norm := rotation.norm_before(spec.name, spec.role))}
        self._matrix_of = {part.name: spec.name for spec in specs for part in spec.parts}
        # The rows of each part that has a bias.
        self._rows = {part.name: part.rows for spec in specs if spec.name in self._norm_of for part in spec.parts}
        norms = set(self._norm_of.values())
        self._norms = {part.name: (part, stored) for part, stored in checkpoint.sources if part.name in norms}
        self._means: dict[str, Float32Array] = {}  # by norm, as the matrices that are served read its output
        self._feedback: dict[str, Float32Array] = {}  # by matrix
        self._biases: dict[str, Float32Array] = {}  # by part of a matrix, those that were begun

    def see(self, rows: Mapping[str, Float32Array]) -> None:
        """Take means and main directions of rows, float32 [tokens, k], before matrices of the float model, by name."""
        self._feedback.clear()  # of the layer before
        for name, of_floats in rows.items():
            served, norm = self._served(name, of_floats), self._norm_of.get(name)
            if norm is not None:
                self._means[norm] = served.mean(axis=0)
                served = served - self._means[norm]
            if self._formats[name].is_integer:
                self._feedback[name] = feedback_of(served)

    def _served(self, name: str, rows: Float32Array) -> Float32Array:
        """Return the rows before a matrix of the float model as those of the model that is served."""
        role, norm = self._roles[name], self._norm_of.get(name)
        if self._formats[name].turned:
            return rotation.turn_groups(rows, self._formats[name].group)
        if not self._rotated or role == "feed_forward_out":
            return rows
        if norm is not None:  # its weights went into the matrices
            weights = self._weights_of(norm)
            rows = np.divide(rows, weights, out=np.zeros_like(rows), where=weights != 0)
        return rotation.rotate_columns(rows, role, None, self._config.head_dim)

    def see_stream(self, residual: Float32Array) -> None:
        """Take mean and directions before the output head of the stream behind the layers, float32 [tokens, hidden]."""
        if "head" in self._norm_of and np.isfinite(residual).all():
            squares = np.square(residual).mean(axis=1, keepdims=True) + np.float32(self._config.norm_eps)
            self.see({"head": residual / np.sqrt(squares) * self._weights_of("final_norm")})

    def _weights_of(self, norm: str) -> Float32Array:
        part, stored = self._norms[norm]
        assert isinstance(stored, StoredTensor), "floats are centred, not codes"
        return part.vector(self._files.mapping(stored.path), stored) + np.float32(self._config.norm_plus_one)

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Pass rows of a matrix on, and add their products with the mean to its bias."""
        matrix = self._matrix_of[name]
        mean = self._means.get(self._norm_of.get(matrix, ""))
        if mean is not None:
            self._bias(name)[row : row + len(data)] += widened(data, dtype) @ mean
        self._target.load_matrix(name, data, dtype, row, replace(rounding, feedback=self._feedback.get(matrix)))

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Pass a norm or a bias on; that of a centred matrix waits for its products with the mean."""
        owner = name.removesuffix(".bias")
        if owner in self._rows:
            self._bias(owner)[row : row + len(values)] += values
        else:
            self._target.load_vector(name, values, row)

    def finish_loading(self) -> None:
        """Load the biases of all matrices and norms."""
        for name, rows in self._rows.items():
            self._target.load_vector(f"{name}.bias", self._biases.get(name, np.zeros(rows, np.float32)))
        zeros = np.zeros(self._config.hidden, np.float32)
        for norm in self._norms:
            self._target.load_vector(f"{norm}.bias", -self._means.get(norm, zeros))
        self._target.finish_loading()

    def _bias(self, part: str) -> Float32Array:
        return self._biases.setdefault(part, np.zeros(self._rows[part], np.float32))
