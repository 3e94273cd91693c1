"""ERNIE's types of task: the row of the first, which every text has, is added to those of types of tokens.

Source: Sun et al. 2019, arXiv:1907.12412; without ids of tasks transformers takes 0, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.pooling.adapters import SummedTensor

if TYPE_CHECKING:
    from forearm.array_types import Float32Array


@dataclass(frozen=True, kw_only=True)
class TypesWithTask(SummedTensor):
    """Embeddings of types of tokens, to each of which the first row of `tasks` is added."""

    tasks: StoredTensor

    def rows(self, files: Files, rows: range) -> Float32Array:
        """Return rows of the sum, float32 [rows, columns]."""
        found: Float32Array = super().rows(files, rows) + files.floats(self.tasks)[:1]
        return found


def with_task(tensors: Mapping[str, StoredTensor], types: str, tasks: str) -> dict[str, StoredTensor]:
    """Return the tensors with the first type of task in those of types of tokens. types, tasks: both modules.

    Raises: ConfigError if the checkpoint lacks one of both, or they have rows of other widths.
    """
    name = next((one for one in tensors if one.endswith(f"{tasks}.weight")), "")
    other = f"{name.removesuffix(f'{tasks}.weight')}{types}.weight"
    if not name or other not in tensors or tensors[name].shape[1:] != tensors[other].shape[1:]:
        raise ConfigError(f"use_task_id in config.json needs {types}.weight and {tasks}.weight, of one width")
    plain = {one.name: getattr(tensors[other], one.name) for one in fields(StoredTensor)}
    summed = TypesWithTask(**plain, tasks=tensors[name])
    return {key: one for key, one in tensors.items() if key != name} | {other: summed}
