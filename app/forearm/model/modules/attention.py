"""The attention function that modules of transformers call, registered under the name "forearm".

A module finds its `Attend` as an attribute, which `bind` sets: on the meta device it records shapes, in a step it is
the executor's paged attention. Registration: https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "forearm"
_BOUND = "forearm_attend"


class AttentionCall(NamedTuple):
    """One call of a module within a step, batch 1.

    q: float [heads, tokens, dim]; k: [kv_heads, tokens, dim]; v: [kv_heads, tokens, value_dim].
    window: keys i - window + 1 .. i are visible to token i; 0: all before it. sinks: [heads], logits that only enter
    the denominator.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    window: int
    softcap: float
    sinks: torch.Tensor | None


class Attend(Protocol):
    """Computes a call; returns float [tokens, heads, value_dim]."""

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        """Compute the attention of all tokens of the step."""
        ...


class NotPlainAttentionError(Exception):
    """A module asks for more than causal attention with a window, a softcap and sinks."""


def bind(model: torch.nn.Module, attend: Attend) -> None:
    """Make `attend` the attention of all modules of a model."""
    for module in model.modules():
        object.__setattr__(module, _BOUND, attend)


def register() -> None:
    """Register attention and masks under NAME."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_: object, **__: object) -> None:
    """Leave masks to the attention, which knows each token's sequence."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the step. query: [1, heads, tokens, dim]; returns [1, tokens, heads, value_dim]."""
    beyond = [name for name in ("position_bias", "indices", "block_mask") if others.get(name) is not None]
    if attention_mask is not None:
        beyond.append("a mask of its own")
    if others.get("is_causal") is False or not getattr(module, "is_causal", True):
        beyond.append("attention in both directions")
    if beyond:
        raise NotPlainAttentionError(", ".join(beyond))
    call = AttentionCall(
        q=query[0],
        k=key[0],
        v=value[0],
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window or 0,
        softcap=softcap or 0.0,
        sinks=s_aux,
    )
    attend: Attend = getattr(module, _BOUND)
    return attend(call)[None], None
