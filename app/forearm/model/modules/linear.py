"""A linear layer whose weights are packed in the native executor."""

from __future__ import annotations

import numpy as np
import torch

from forearm import _native


class PackedLinear(torch.nn.Module):
    """Multiplies rows with a packed matrix, in pieces of at most `rows`.

    The result is float32, whatever the dtype of the input; products are summed as for native models, so a row's result
    does not depend on the other rows.
    """

    def __init__(self, executor: _native.Executor, name: str, shape: tuple[int, int], rows: int) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self._executor, self._name, self._rows = executor, name, rows

    @property
    def weight(self) -> torch.Tensor:
        """A stand-in without values: some modules ask a layer's weight for dtype and shape."""
        return torch.empty(self.out_features, self.in_features, dtype=torch.float32, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias: float32 [..., out_features]."""
        rows = x.reshape(-1, self.in_features).float().contiguous().numpy()
        found = [
            self._executor.multiply(self._name, rows[at : at + self._rows]) for at in range(0, len(rows), self._rows)
        ]
        out = (
            found[0]
            if len(found) == 1
            else np.concatenate(found)
            if found
            else np.empty((0, self.out_features), np.float32)
        )
        return torch.from_numpy(out).view(*x.shape[:-1], self.out_features)
