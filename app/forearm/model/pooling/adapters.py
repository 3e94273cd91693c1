"""Adapters of jina-embeddings-v3 and Zamba2: low-rank products that are added to matrices as they are read.

The published checkpoint stores a matrix as `parametrizations.weight.original`, beside `0.lora_A` and `0.lora_B` with
those of all tasks. A server has the adapter of one task, as vLLM's has. Source: Sturua et al. 2024, arXiv:2409.10173.
Zamba2 has adapters of the calls of a shared block: each call's matrix is read with its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from forearm.config.number_formats import DTypeName
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import FLOATS, Files, StoredTensor, widened
from forearm.model.families.keys import Keys

if TYPE_CHECKING:
    from forearm.array_types import Float32Array

TASK_KEY = "default_task"  # the name that the model's own code has for the choice
_DEFAULT = "text-matching"  # what vLLM serves
_MARK = ".parametrizations.weight."


@dataclass(frozen=True)
class Adapter:
    """The adapter that is served. number: its place among those of the checkpoint; scale: of its products."""

    task: str
    number: int
    count: int
    scale: float

    @classmethod
    def of(cls, keys: Keys) -> Adapter | None:
        """Return the adapter that config.json, or --hf-overrides, chooses; None if the model has none.

        Raises: ConfigError naming the key.
        """
        tasks = keys.get("lora_adaptations")
        if not tasks:
            return None
        if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
            raise keys.wrong("lora_adaptations", "a list of names")
        task = keys.text(TASK_KEY, _DEFAULT)
        if task not in tasks:
            raise keys.wrong(TASK_KEY, f"one of {', '.join(tasks)}")
        scale = keys.number("lora_alpha", 1.0) / keys.integer("lora_rank")
        return cls(task, tasks.index(task), len(tasks), scale)


@dataclass(frozen=True, kw_only=True)
class SummedTensor(StoredTensor):
    """A float matrix to which something is added as it is read."""

    @property
    def float_dtype(self) -> DTypeName:
        """The dtype of the sum."""
        return "float32"

    def rows(self, files: Files, rows: range) -> Float32Array:
        """Return rows of the sum, float32 [rows, columns]."""
        return widened(files.mapping(self.path).rows(self, rows), FLOATS[self.dtype][0])


@dataclass(frozen=True, kw_only=True)
class AdaptedTensor(SummedTensor):
    """A float matrix and the adapter's product that is added to it.

    left: [tasks, rows, rank]; right: [tasks, rank, columns]. adapter: of a task; None: both have no tasks.
    """

    left: StoredTensor
    right: StoredTensor
    adapter: Adapter | None

    def rows(self, files: Files, rows: range) -> Float32Array:
        """Return rows of the sum, float32 [rows, columns]."""
        import numpy as np

        own = super().rows(files, rows)
        left, right = (files.floats(one) for one in (self.left, self.right))
        if self.adapter:
            left, right = left[self.adapter.number], np.float32(self.adapter.scale) * right[self.adapter.number]
        found: Float32Array = own + left[rows.start : rows.stop : rows.step] @ right
        return found


def with_adapter(tensors: Mapping[str, StoredTensor], adapter: Adapter | None) -> dict[str, StoredTensor]:
    """Return the tensors with matrices that an adapter changes under their plain names, and without its own.

    Raises: ConfigError naming a tensor that is missing or has another shape.
    """
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        module, parametrized, which = name.partition(_MARK)
        if not parametrized:
            found[name] = tensor
        elif which == "original":
            names = [f"{module}{_MARK}0.lora_{letter}" for letter in "BA"]
            pair = [tensors[one] for one in names if one in tensors]
            if adapter is None or len(tensor.shape) != 2 or len(pair) != 2:
                raise ConfigError(
                    f"{tensor.path}: {name} needs {' and '.join(names)}, and lora_adaptations in config.json"
                )
            rows, columns = tensor.shape
            for left, right in (pair, pair[::-1]):  # the other way round for embeddings
                rank = left.shape[-1]
                if (left.shape, right.shape) == ((adapter.count, rows, rank), (adapter.count, rank, columns)):
                    plain = {one.name: getattr(tensor, one.name) for one in fields(StoredTensor)}
                    plain["name"] = f"{module}.weight"
                    found[f"{module}.weight"] = AdaptedTensor(**plain, left=left, right=right, adapter=adapter)
                    break
            else:
                shapes = ", ".join(str(list(one.shape)) for one in pair)
                raise ConfigError(
                    f"{tensor.path}: {' and '.join(names)} are {shapes}; with {adapter.count} tasks they do not fit "
                    f"{name}, {[rows, columns]}"
                )
    return found


_OF_CALL = re.compile(r"(.*)\.(?:linear_([qkv])|(gate_up_proj))_adapter_list\.(\d+)\.1\.weight")


def with_calls(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors with a matrix for each call of a block of Zamba2, and without those of its adapters.

    Its name is the module's, with "call" and the call's number behind it.
    Raises: ConfigError naming a tensor that is missing or has another shape.
    """
    found, adapted = dict(tensors), set[str]()
    for name, left in tensors.items():
        if (call := _OF_CALL.fullmatch(name)) is None:
            continue
        module = f"{call[1]}.{call[3] or f'{call[2]}_proj'}"
        other, whole = f"{name.removesuffix('1.weight')}0.weight", f"{module}.weight"
        right, base = tensors.get(other), tensors.get(whole)
        if right is None or base is None:
            raise ConfigError(f"{left.path}: {name} needs {other} and {whole}; download it again")
        if (left.shape[:1], left.shape[1:], right.shape[1:]) != (base.shape[:1], right.shape[:1], base.shape[1:]):
            shapes = " and ".join(str(list(one.shape)) for one in (left, right))
            raise ConfigError(f"{left.path}: {name} and {other} are {shapes}; {whole} is {list(base.shape)}")
        plain = {one.name: getattr(base, one.name) for one in fields(StoredTensor)}
        plain["name"] = f"{module}.call.{call[4]}.weight"
        found[plain["name"]] = AdaptedTensor(**plain, left=left, right=right, adapter=None)
        adapted |= {name, other, whole}
    return {name: tensor for name, tensor in found.items() if name not in adapted}
