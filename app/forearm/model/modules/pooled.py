"""Pooling models that transformers builds: its modules with our packed matrices, and what follows the last layer.

Each text is computed whole and alone, with transformers' own attention: its vector is the same in any company.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import gelu, linear, silu
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from forearm.array_types import Float32Array, Int32Array
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.shards import Files, read_tensors
from forearm.model.families.encoders.dense import DenseActivation
from forearm.model.modules.architecture import (
    TRIAL_TOKENS,
    Architecture,
    Trial,
    build,
    called,
    configuration,
    described,
    empty_on_cpu,
)
from forearm.model.pooling.plan import Kind, PoolingPlan
from forearm.model.pooling.pooled_checkpoint import with_pooling

_ACTIVATIONS: dict[DenseActivation, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x, "tanh": torch.tanh, "relu": torch.relu, "silu": silu, "gelu_erf": gelu,
}  # fmt: skip
_CLASSES: dict[Kind, Any] = {
    "embed": AutoModel, "classify": AutoModelForSequenceClassification,
    "token_classify": AutoModelForTokenClassification,
}  # fmt: skip
# Types whose texts become other vectors than in transformers.
_REFUSED = {
    "xlnet": "its tokenizer marks the last token as a third segment, and forearm's pairs have two",
    "reformer": "it finds keys by random hashes, so the same text gets other vectors each time",
}

log = logging.getLogger(__name__)


def auto_class(plan: PoolingPlan | None) -> Any:
    """Return transformers' class that builds a model. plan: of one that pools; None: it generates text."""
    if plan is None:
        return AutoModelForCausalLM
    return _CLASSES[plan.kind]


def without_pooler(model: PreTrainedModel, plan: PoolingPlan) -> PreTrainedModel:
    """Return the model without the layer that BERT and its like have behind the rows, unless it makes the scores."""
    if plan.kind == "embed" and isinstance(getattr(model, "pooler", None), torch.nn.Module):
        model.pooler = torch.nn.Identity()
    return model


def read_pooled(folder: Path, plan: PoolingPlan, trust_remote_code: bool = False) -> tuple[Architecture, int]:
    """Build a pooling model without weights and return what it needs, and the number of values of a text's output.

    Raises: ConfigError if transformers has no such model, or the model has no row for each token.
    """
    given = configuration(folder, trust_remote_code, pooled=True)
    _check(folder, given, plan)
    own_code = type(given).__module__.startswith("transformers_modules.")
    model = without_pooler(build(given, own_cache=True, own_code=own_code, make=auto_class(plan)), plan)
    longest = _longest(model)
    empty_on_cpu(model)
    outputs = TextOutputs(model, plan)
    try:
        with called(model) as linears, torch.no_grad():
            rows = outputs(np.array([*range(1, TRIAL_TOKENS), _end(given)], np.int32))
    except ConfigError:
        raise
    except Exception as problem:  # whatever a model's code raises
        said = f"{type(problem).__name__}: {' '.join(str(problem).split()):.200}"
        raise ConfigError(f"{type(model).__name__} of transformers computes no text alone ({said})") from None
    config, module_bytes = described(given, model, Trial([], linears, 0))
    types = int(getattr(given.get_text_config(), "type_vocab_size", 0) or 0) if outputs.takes_types else 0
    positions = min(config.max_positions, longest or config.max_positions)
    config = replace(config, pooled=True, token_types=types, max_positions=positions)
    found = Architecture(config, "each text is computed whole and alone", False, module_bytes, own_code)
    return found, plan.dense[-1].outputs if plan.dense else rows.shape[1]


def _check(folder: Path, given: PretrainedConfig, plan: PoolingPlan) -> None:
    """Raise ConfigError for a model whose vectors are not those of its rows or scores."""
    why = _REFUSED.get(given.model_type, "")
    if given.is_encoder_decoder and plan.kind == "embed":
        why = "is_encoder_decoder is true: the rows that it has are its decoder's; it can only classify"
    elif plan.from_tokens:
        why = "scores of a reranker's two tokens are made of forearm's own families alone"
    if why:
        raise ConfigError(f"{folder}: model_type {given.model_type} can't be served: {why}")


def _end(given: PretrainedConfig) -> int:
    """Return the token that ends a text: BART classifies by its row."""
    end = getattr(given.get_text_config(), "eos_token_id", None)
    return end if isinstance(end, int) else 0


def _longest(model: PreTrainedModel) -> int:
    """Return the most tokens that a model's table of positions has rows for; 0: it has none."""
    tables = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and name.endswith("position_embeddings")
    ]
    # RoBERTa's positions begin behind the padding token's
    return min(
        (one.num_embeddings - (-1 if (pad := one.padding_idx) is None else pad) - 1 for one in tables), default=0
    )


class TextOutputs:
    """Computes a text's rows of the last layer, its scores, or those of each of its tokens."""

    def __init__(self, model: PreTrainedModel, plan: PoolingPlan) -> None:
        self._model, self._plan = model, plan
        self._takes = frozenset(signature(model.forward).parameters)
        self.takes_types = "token_type_ids" in self._takes

    def __call__(self, tokens: Int32Array, types: Int32Array | None = None) -> Float32Array:
        """Return float32 [tokens, columns]; [1, labels] of a classifier of texts, [tokens, labels] of one of tokens.

        Raises: ConfigError if the model makes something else.
        """
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        if types is not None:
            given["token_type_ids"] = torch.from_numpy(types.astype(np.int64))[None]
        out = self._model(**{name: value for name, value in given.items() if name in self._takes})
        kind, labels = self._plan.kind, len(self._plan.labels)
        found = getattr(out, "last_hidden_state" if kind == "embed" else "logits", None)
        shape = () if found is None else tuple(found.shape)
        tokens_of = () if kind == "classify" else (len(tokens),)
        if found is None or shape != (1, *tokens_of, shape[-1] if kind == "embed" and shape else labels):
            what = "a row for each token" if kind == "embed" else f"scores of {labels} labels"
            what += " for each token" if kind == "token_classify" else ""
            raise ConfigError(
                f"{type(self._model).__name__} of transformers makes {shape or None} of {len(tokens)} tokens, and not "
                f"{what}"
            )
        rows: Float32Array = (found if kind == "classify" else found[0]).float().numpy()
        return rows


@dataclass(frozen=True)
class _Layer:
    """A layer behind pooling."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    activation: DenseActivation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activated outputs, [outputs]."""
        return _ACTIVATIONS[self.activation](linear(x, self.weight, self.bias))


class PooledForward:
    """A step of a pooling model; takes the place of the native executor's `forward` and `pool`."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint) -> None:
        assert checkpoint.pooling is not None
        self._outputs = TextOutputs(model, checkpoint.pooling)
        self._scores = checkpoint.pooling.kind == "classify"
        self._layers = _layers(checkpoint.folder, checkpoint)
        self._columns = self._layers[0].weight.shape[1] if self._layers else checkpoint.columns
        self._rows: Float32Array = np.zeros((0, self._columns), np.float32)

    def __call__(
        self, tokens: Int32Array, positions: Int32Array, starts: Int32Array, block_starts: Int32Array,
        blocks: Int32Array, wanted: Int32Array, types: Int32Array | None = None, states: Int32Array | None = None,
    ) -> None:  # fmt: skip
        """Compute one step; arguments as the native executor's forward. The rows stay for `pool`."""
        found, bounds = [], starts.tolist()
        for begin, end in pairwise(bounds):
            rows = self._text(tokens[begin:end], None if types is None else types[begin:end])
            own = wanted[(wanted >= begin) & (wanted < end)] - begin
            found.append(rows if self._scores else rows[own])
        self._rows = np.concatenate(found)

    def _text(self, tokens: Int32Array, types: Int32Array | None) -> Float32Array:
        """Return the outputs of a text; no numbers if the model's code refuses it, so that others do not fail."""
        try:
            with torch.inference_mode():
                return self._outputs(tokens, types)
        except Exception:  # whatever a model's code raises, such as BART for a text without an end
            log.exception("transformers' model has no outputs for a text of %d tokens", len(tokens))
            return np.full((1 if self._scores else len(tokens), self._columns), np.nan, np.float32)

    def pool(self, starts: Int32Array, head: int) -> Float32Array:
        """Return a vector for each text, the mean of the rows starts[i] .. starts[i + 1] - 1 through the layers."""
        assert head == 0, "only forearm's own families have several heads"
        bounds, found = starts.tolist(), []
        for begin, end in pairwise(bounds):
            x = torch.from_numpy(self._rows[begin:end].mean(axis=0, dtype=np.float64).astype(np.float32))
            for layer in self._layers:  # one vector at a time: products of many may be summed in another order
                x = layer(x)
            found.append(x.numpy())
        return np.stack(found)


def _layers(folder: Path, checkpoint: Checkpoint) -> list[_Layer]:
    """Read the layers behind pooling. Raises: ConfigError if a tensor is missing or has another shape."""
    assert checkpoint.pooling is not None
    if not checkpoint.pooling.dense:
        return []
    config, tensors = with_pooling(folder, checkpoint.config, read_tensors(folder), checkpoint.pooling)
    files, found = Files(), list[_Layer]()
    for one in config.dense:
        names = [f"{one.stored}.weight", *([f"{one.stored}.bias"] if one.bias else [])]
        if missing := [name for name in names if name not in tensors]:
            raise ConfigError(f"{folder}: {missing[0]} is missing, of a layer behind pooling")
        values = [torch.from_numpy(files.floats(tensors[name]).copy()) for name in names]
        if values[0].dim() != 2 or len(values[0]) != one.outputs or one.activation not in _ACTIVATIONS:
            raise ConfigError(f"{folder}: {names[0]} has shape {list(values[0].shape)}, and not {one.outputs} rows")
        found.append(_Layer(values[0], values[1] if one.bias else None, one.activation))
    return found
