"""Reference of pooling models in numpy float64: the vector of a text, and its tolerance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.model.reference import EXACT, Array, Rounding, activated, hidden, linear, norm, weights_of

from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.families.config import ModelConfig
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan


def load_pooled(folder: Path, pooler_config: dict[str, Any] | None) -> tuple[ModelConfig, dict[str, Array]]:
    """The model's config and its tensors by the executor's names, float64; of a model that pools."""
    plan = pooling_plan(folder, PoolingAsked(runner="pooling", pooler_config=pooler_config))
    return weights_of(open_checkpoint(folder, pooling=plan))


def pooled(
    config: ModelConfig,
    weights: dict[str, Array],
    tokens: list[int],
    second: int,
    pool: str,
    rounding: Rounding = EXACT,
) -> Array:
    """Return a text's vector, float64 [columns]: its rows pooled, then the layers behind the pooling.

    pool all: [tokens, columns], each row by itself.
    """
    rows = hidden(config, weights, tokens, second, rounding)
    x = {"cls": rows[:1], "last": rows[-1:], "mean": rows.mean(axis=0, keepdims=True), "late": rows, "all": rows}[pool]
    exact = replace(rounding, operands=0.0, int8="")  # these layers are float32
    for i, dense in enumerate(config.dense):
        x = linear(x, weights[f"dense.{i}"], weights.get(f"dense.{i}.bias"), exact)
        if dense.activation != "none":
            x = np.tanh(x) if dense.activation == "tanh" else activated(dense.activation, x)
        if dense.norm:
            x = norm(replace(config, layer_norm=True), weights, f"dense.{i}.norm", x, exact)
    found: Array = x if pool == "all" else x.mean(axis=0)
    return found


def pooled_tolerance(
    config: ModelConfig,
    weights: dict[str, Array],
    prompt: tuple[list[int], int],
    pool: str,
    rounding: Rounding,
    exact: Array | None = None,
) -> float:
    """Return the largest error of a value of a text's vector in this arithmetic, derived as `tolerance` is."""
    exact = pooled(config, weights, *prompt, pool) if exact is None else exact
    noisy = (replace(rounding, seed=rounding.seed + i) for i in range(3))
    return 2 * max(float(np.abs(pooled(config, weights, *prompt, pool, e) - exact).max()) for e in noisy)
