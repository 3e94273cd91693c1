"""The parts of a float model whose residual stream is rotated (model/quantization/rotation.py), as float32."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from forearm.array_types import Float32Array, UInt16Array
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.shards import Files, StoredTensor, widened
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.matrices import matrices
from forearm.model.quantization import rotation

PIECE_VALUES = 1 << 19  # 2 MiB of float32, which fit a core's second-level cache
AT_ONCE = 16  # pieces between two releases of the file's pages


class RotatedWeights:
    """Reads parts of a checkpoint and rotates them.

    Norms of the residual stream become ones, because the matrices behind them take their weights in.
    """

    def __init__(self, checkpoint: Checkpoint, files: Files) -> None:
        self._files = files
        self._config = checkpoint.config
        self._roles = {part.name: spec.role for spec in matrices(checkpoint.config) for part in spec.parts}
        self._vectors = {
            part.name: (part, stored)
            for part, stored in checkpoint.sources
            if len(part.shape) == 1 and isinstance(stored, StoredTensor)
        }
        self._folded = {rotation.norm_before(name, role) for name, role in self._roles.items()}

    def vector(self, part: TensorPart, tensor: StoredTensor) -> Float32Array:
        """Return a norm, a bias or constants of an activation, float32 [rows]."""
        values = part.vector(self._files.mapping(tensor.path), tensor)
        owner = part.name.removesuffix(".bias")
        role = self._roles.get(owner)
        if part.name in self._folded:
            return np.full_like(values, 0.0 if self._config.norm_plus_one else 1.0)
        if role in rotation.WRITERS:
            return rotation.rotate_stream(values[:, None])[:, 0]
        if role is not None and rotation.turns_heads(owner, role):
            return rotation.rotate_heads(values[:, None], self._config.head_dim)[:, 0]
        return values

    def pieces(
        self, part: TensorPart, tensor: StoredTensor, threads: ThreadPoolExecutor
    ) -> Iterator[tuple[int, Float32Array]]:
        """Yield the rows of a matrix in order, float32 [rows, k], each piece with the number of its first row.

        A matrix that writes the residual stream comes whole, because its rows are mixed: by far the largest piece.
        """
        self._files.mapping(tensor.path)  # mapped here, because the threads would all map it at once
        rows, k = part.shape
        role, head_dim = self._roles[part.name], self._config.head_dim
        if role in rotation.WRITERS:
            whole = np.empty((rows, k), np.float32)
            step = -(-PIECE_VALUES // (rows * head_dim)) * head_dim
            list(threads.map(partial(self._write_columns, part, tensor, whole, step), range(0, k, step)))
            self._files.release(tensor)
            yield 0, whole
            return
        step = -(-PIECE_VALUES // (k * head_dim)) * head_dim
        norm = None
        if before := rotation.norm_before(part.name, role):  # its weights are folded into the matrix
            vector, stored = self._vectors[before]
            norm = vector.vector(self._files.mapping(stored.path), stored) + np.float32(self._config.norm_plus_one)
        starts = range(0, rows, step)
        for first in range(0, len(starts), AT_ONCE):
            some = starts[first : first + AT_ONCE]
            yield from zip(some, threads.map(partial(self._rows, part, tensor, norm, step), some), strict=True)
            self._files.release(tensor)

    def _rows(
        self, part: TensorPart, tensor: StoredTensor, norm: Float32Array | None, step: int, row: int
    ) -> Float32Array:
        role, head_dim = self._roles[part.name], self._config.head_dim
        own = widened(self._stored_rows(part, tensor, row, min(row + step, part.shape[0])), tensor.float_dtype)
        own = rotation.rotate_columns(own, role, norm, head_dim)
        return rotation.rotate_heads(own, head_dim) if rotation.turns_heads(part.name, role) else own

    def _write_columns(
        self, part: TensorPart, tensor: StoredTensor, whole: Float32Array, step: int, column: int
    ) -> None:
        """Write columns column .. column + step - 1 of a matrix that writes the residual stream to `whole`."""
        stored = self._stored_rows(part, tensor, 0, part.shape[0])[:, column : column + step]
        own = widened(stored, tensor.float_dtype)
        own = rotation.rotate_columns(own, self._roles[part.name], None, self._config.head_dim)
        whole[:, column : column + step] = rotation.rotate_stream(own)

    def _stored_rows(self, part: TensorPart, tensor: StoredTensor, begin: int, end: int) -> Float32Array | UInt16Array:
        return self._files.mapping(tensor.path).rows(tensor, part.rows(begin, end))
