"""Linear layers whose weights are packed in the native executor, and feed-forwards and norms that it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from forearm import _native
from forearm.array_types import Float32Array
from forearm.model.families.config import Activation

Product = Callable[[torch.Tensor], torch.Tensor]


class PackedProduct:
    """Multiplies rows with a packed matrix, in pieces of at most `most_rows`.

    gate: of a matrix of gates and ups: the activation of the gates, which are then multiplied with the ups. The result
    is float32, whatever the dtype of the input; products are summed as for native models, so a row's result does not
    depend on the other rows.
    """

    def __init__(
        self, executor: _native.Executor, name: str, k: int, most_rows: int, gate: Activation | None = None
    ) -> None:
        self._executor, self.name, self._k, self._most_rows = executor, name, k, most_rows
        self.gate = gate or "none"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias: float32 [..., columns]."""
        rows = rows_of(x, self._k)
        if len(rows) <= self._most_rows:
            out = self._executor.multiply(self.name, rows, self.gate)
        else:
            pieces = [rows[at : at + self._most_rows] for at in range(0, len(rows), self._most_rows)]
            out = np.concatenate([self._executor.multiply(self.name, piece, self.gate) for piece in pieces])
        return torch.from_numpy(out.reshape(*x.shape[:-1], out.shape[1]))


class JointProduct:
    """Multiplies one input with the matrices of several layers at once, when the first of them is called."""

    def __init__(self, product: Product, layers: int) -> None:
        self.product, self.layers = product, layers
        self._x: torch.Tensor | None = None
        self._out: torch.Tensor | None = None
        self._left = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the columns of all layers: float32 [..., columns]."""
        if x is not self._x or self._out is None:
            self._x, self._out, self._left = x, self.product(x), self.layers
        out = self._out
        self._left -= 1
        if not self._left:
            self._x = self._out = None  # else each layer would keep its rows until the next step
        return out


class PackedLinear(torch.nn.Module):
    """A linear layer of `shape` [rows, k], whose output is all of a product or the columns from `column` on."""

    def __init__(self, product: Product, shape: tuple[int, int], column: int | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.product, self.column = product, column

    @property
    def weight(self) -> torch.Tensor:
        """A stand-in without values: some modules ask a layer's weight for dtype and shape."""
        return torch.empty(self.out_features, self.in_features, dtype=torch.float32, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias: float32 [..., out_features]."""
        out = self.product(x)
        return out if self.column is None else out.narrow(-1, self.column, self.out_features)

    __call__ = forward  # without torch's hooks, of which it has none


class GatedFeedForward:
    """The forward of Llama's feed-forward. product: its gate, activated, times its up."""

    def __init__(self, product: Product, module: Any) -> None:
        self.product, self._module = product, module

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of its down: float32 [..., hidden]."""
        out: torch.Tensor = self._module.down_proj(self.product(x))
        return out


class PackedNorm:
    """The forward of Llama's RMSNorm, by the native kernel."""

    def __init__(self, executor: _native.Executor, norm: Any) -> None:
        self._executor, self.eps = executor, float(norm.variance_epsilon)
        self.weight: Float32Array = norm.weight.detach().float().contiguous().numpy()

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return normalized rows: float32, of the shape of `hidden_states`."""
        rows = rows_of(hidden_states, len(self.weight))
        return torch.from_numpy(self._executor.norm(rows, self.weight, self.eps).reshape(hidden_states.shape))


def rows_of(x: torch.Tensor, k: int) -> Float32Array:
    """Return [..., k] as float32 [rows, k]."""
    values: Float32Array = (x if x.dtype is torch.float32 else x.float()).numpy()
    return np.ascontiguousarray(values.reshape(-1, k))  # numpy's views take a third of the time of torch's
