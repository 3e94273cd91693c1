"""A matrix or vector of the executor, and the rows of a checkpoint's tensor that it is read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forearm.array_types import Float32Array
from forearm.model.checkpoint.shards import WHOLE, Mapping, StoredTensor, widened
from forearm.model.families.matrix_spec import MatrixPart, MatrixSpec


@dataclass(frozen=True)
class TensorPart:
    """One matrix or vector of the executor: shape[0] rows of the tensor `stored`, every `step`-th from `row` on.

    Where several parts name one tensor (Phi-3's qkv_proj), their rows follow each other and must fill it, unless
    `of_rows` gives the tensor's number of rows: then each part may take any of them. at: the executor's row of the
    first row. matrix: the packed matrix that the rows go into; empty for a vector. transposed: floats are stored as
    [k, rows], for each expert if there are experts. turned: the tensor's rows are columns of the executor's matrix,
    so there are shape[1] of them, from `row` on. negative_exp: the tensor holds -exp of the vector. factor: multiplies
    the tensor's values. whole: the vector's values are whole numbers, which the tensor may hold as such. joined: a row
    is a matrix in the tensor, as in the weight of a convolution.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    row: int = 0
    at: int = 0
    of_rows: int | None = None
    matrix: str = ""
    step: int = 1
    transposed: bool = False
    turned: bool = False
    negative_exp: bool = False
    factor: float = 1.0
    whole: bool = False
    joined: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor's rows."""
        return self.shape[::-1] if self.turned else self.shape

    @property
    def layer(self) -> int | None:
        """Return the number of the layer that the part belongs to; None: it is of the whole model."""
        return int(self.name.split(".")[1]) if self.name.startswith("layers.") else None

    def rows(self, begin: int, end: int) -> range:
        """Return the tensor's rows that hold rows begin .. end - 1 of the part."""
        return range(self.row + begin * self.step, self.row + end * self.step, self.step)

    def vector(self, mapping: Mapping, tensor: StoredTensor) -> Float32Array:
        """Return the values of a vector, float32 [rows]."""
        if self.whole and tensor.dtype in WHOLE:
            return mapping.array(tensor).reshape(-1).astype(np.float32)
        values = widened(mapping.values(tensor, self.rows(0, self.shape[0])), tensor.float_dtype)
        return np.log(-values) if self.negative_exp else np.float32(self.factor) * values


def stored_shape(sharing: Sequence[TensorPart]) -> tuple[int, ...]:
    """Return the shape that a tensor must have so that these parts fill it; its own if floats are not transposed."""
    known = [part.of_rows for part in sharing if part.of_rows is not None]
    rows = known[0] if known else sum(part.stored_shape[0] for part in sharing)
    return rows, *sharing[0].stored_shape[1:]


def pieces(part: MatrixPart, module: str, place: str, spec: MatrixSpec) -> Iterator[TensorPart]:
    """Yield a part whose rows lie in pieces, with its bias: `place` is "first:rows:step" (ModelConfig.names)."""
    first, rows, step = map(int, place.split(":"))
    of_rows = part.rows // rows * step
    for at in range(0, part.rows, rows):
        row = first + at // rows * step
        yield TensorPart(part.name, f"{module}.weight", (rows, spec.k), row, at, of_rows, spec.name)
        if spec.bias:
            yield TensorPart(f"{part.name}.bias", f"{module}.bias", (rows,), row, at, of_rows)


def halves(part: MatrixPart, module: str, head_dim: int, spec: MatrixSpec) -> Iterator[TensorPart]:
    """Yield both halves of each head's rows, with their biases: in the tensor, their rows alternate."""
    rows = head_dim // 2
    for at in range(0, part.rows, rows):
        row = at // head_dim * head_dim + at // rows % 2
        own = TensorPart(part.name, f"{module}.weight", (rows, spec.k), row, at, part.rows, spec.name, step=2)
        yield own
        if spec.bias:
            yield replace(own, name=f"{part.name}.bias", stored=f"{module}.bias", shape=(rows,), matrix="")


def tensors(part: MatrixPart, module: str, place: str, spec: MatrixSpec) -> Iterator[TensorPart]:
    """Yield a part made of equal tensors, with their biases: `place` has the ends of their names, with commas."""
    rows = part.rows // len(place.split(","))
    for i, end in enumerate(place.split(",")):
        yield TensorPart(part.name, f"{module}{end}.weight", (rows, spec.k), at=i * rows, matrix=spec.name)
        if spec.bias:
            yield TensorPart(f"{part.name}.bias", f"{module}{end}.bias", (rows,), at=i * rows)


def norm_vectors(name: str, at: str, width: int, bias: bool, heads: int = 1) -> Iterator[TensorPart]:
    """Yield a norm's vectors, which two norms may share. {head} in `at` stands for the number of one of `heads`.

    "[heads]" behind it: it is one norm, which all of them have.
    """
    module = at.removesuffix("[heads]")
    own = heads if module != at or "{head}" in at else 1
    for head in range(own):
        for end, there in ((".weight", True), (".bias", bias)):
            stored, target = f"{module.replace('{head}', str(head))}{end}", name + end.removeprefix(".weight")
            if there:
                yield TensorPart(target, stored, (width // own,), at=head * width // own, of_rows=width // own)
