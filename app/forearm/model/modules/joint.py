"""Linear layers that are packed as one matrix, because they multiply the same input: q, k and v; gate and up.

Which they are follows from a run of the model. Feed-forwards and norms whose code is that of Llama, which transformers
copies from model to model, are computed by the native executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.pytorch_utils import Conv1D

from forearm.model.families.config import Activation
from forearm.model.families.decoder import ACTIVATIONS
from forearm.model.modules.linear_module import LinearModule

PANEL = 16  # kernels.h, kPanel: parts of a packed matrix begin at a panel
_ACTIVATIONS: dict[type, Activation] = {type(ACT2FN[name]): own for name, own in ACTIVATIONS.items()}


@dataclass(frozen=True)
class LinearCall:
    """A call of a linear layer. version: of its input, which each change in place increments."""

    name: str
    module: torch.nn.Module
    x: torch.Tensor
    version: int

    @property
    def parent(self) -> str:
        """Return the name of the module that the layer belongs to."""
        return self.name.rpartition(".")[0]


def linear_weight(module: torch.nn.Module) -> torch.Tensor:
    """Return the weight of a linear layer, [rows, k]; GPT-2's Conv1D stores it transposed."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.T if isinstance(module, Conv1D) else weight


def linears(model: torch.nn.Module, calls: Sequence[LinearCall]) -> Iterator[LinearModule]:
    """Yield the linear layers that a run of the model called, with their packed matrices."""
    seen: set[str] = set()
    repeated = {name for name, times in Counter(call.name for call in calls).items() if times > 1}

    def together(call: LinearCall) -> tuple[object, ...]:
        own = call.name if call.name in repeated else ""
        return call.parent, own, id(call.x), call.version, call.module.bias is None

    for _, group in groupby(calls, key=together):
        members = [call for call in group if call.name not in seen]
        if not members:
            continue
        seen.update(call.name for call in members)
        parent, names = model.get_submodule(members[0].parent), [call.name.rpartition(".")[2] for call in members]
        widths = {linear_weight(call.module).shape[0] for call in members}
        whole = len(widths) == 1 and not widths.pop() % PANEL
        gated = names == ["gate_proj", "up_proj"] and whole and has_code_of(parent, LlamaMLP)
        gate = _ACTIVATIONS.get(type(parent.act_fn)) if gated else None
        for call in members:
            rows, k = linear_weight(call.module).shape
            yield LinearModule(call.name, rows, k, call.module.bias is not None, members[0].name, gate)


def has_code_of(module: torch.nn.Module, known: type[torch.nn.Module]) -> bool:
    """Return whether the forward of a module does what that of `known` does, instruction by instruction."""
    return same_code(type(module).forward, known.forward)


def same_code(one: object, known: object) -> bool:
    """Return whether two functions do the same, instruction by instruction, and so do those that they wrap."""
    own, other = (getattr(function, "__code__", None) for function in (one, known))
    parts = ("co_code", "co_names", "co_consts", "co_varnames", "co_freevars")
    if own is None or any(getattr(own, part) != getattr(other, part, None) for part in parts):
        return False
    inner, wanted = (getattr(function, "__wrapped__", None) for function in (one, known))
    return inner is wanted is None or same_code(inner, wanted)
