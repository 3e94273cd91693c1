"""Calibration computes a model layer by layer; a column is as important as its mean square on the text is large."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.model.shapes import SHAPES
from tests.model.test_same_tokens import BLOCK, Weights, prompt, same

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.calibration import (
    DAMPING,
    FEW_TOKENS,
    WINDOW,
    CalibratedWeights,
    Team,
    calibrated_layers,
    calibration_tokens,
    importance,
    importance_of_experts,
)
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.families.config import Experts, ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.quantization.rounding import PLAIN, Rounding

Floats = npt.NDArray[np.float32]
TOKENS = 600  # one whole window and part of a second


@dataclass
class Tensors:
    """The tensors of a model, by the executor's names, in the order in which they are loaded."""

    matrices: dict[str, Floats] = field(default_factory=dict)
    vectors: dict[str, Floats] = field(default_factory=dict)

    def load_matrix(self, name: str, values: Floats, dtype: str) -> None:
        self.matrices[name] = values

    def load_vector(self, name: str, values: Floats) -> None:
        self.vectors[name] = values

    def finish_loading(self) -> None:
        """Do nothing: all tensors are here."""

    def load_layer(self, executor: _native.Executor, layer: int) -> None:
        own = f"layers.{layer}."
        for name, values in self.matrices.items():
            if name.startswith(own) or (name == "positions" and layer == 0):
                executor.load_matrix(name.replace(own, "layers.0."), values, "float32")
        for name, values in self.vectors.items():
            if name.startswith(own) or (name.startswith("embed_norm") and layer == 0):
                executor.load_vector(name.replace(own, "layers.0."), values)


def tensors_of(config: ModelConfig) -> Tensors:
    found = Tensors()
    Weights(found, config).load()  # type: ignore[arg-type]
    return found


def whole_model(config: ModelConfig, tokens: list[int]) -> Floats:
    """The residual stream after all layers, window by window."""
    config = replace(config, final_norm=False, tied_head=config.pooled, logits_softcap=0.0, logits_scale=1.0)
    formats = uniform_formats(config, WeightFormat("float32"))
    executor = _native.Executor(config, matrices(config), formats, "float32", WINDOW, 1, WINDOW, WINDOW, [], 3)
    found = tensors_of(replace(config, tied_head=True))
    if not config.pooled:  # products with ones are exact
        found.matrices["head"] = np.eye(config.vocab_size, config.hidden, dtype=np.float32)
    for name, values in found.matrices.items():
        executor.load_matrix(name, values, "float32")
    for name, values in found.vectors.items():
        if not name.startswith("final_norm"):
            executor.load_vector(name, values)
    executor.finish_loading()
    executor.allocate_kv(WINDOW // BLOCK)
    if config.has_states:
        executor.allocate_states(1)
    rows = []
    for first in range(0, len(tokens), WINDOW):
        ids = np.array(tokens[first : first + WINDOW], np.int32)
        places = np.arange(len(ids), dtype=np.int32)
        blocks = np.arange(-(-len(ids) // BLOCK), dtype=np.int32)
        ends = [np.array([0, n], np.int32) for n in (len(ids), len(blocks))]
        executor.forward(ids, places, *ends, blocks, places, states=np.zeros(1, np.int32))
        rows.append(executor.logits()[:, : config.hidden])
    return np.concatenate(rows)


def calibrate(config: ModelConfig, tokens: list[int]) -> tuple[Floats, dict[str, Floats]]:
    """The residual stream after all layers, and the calibration of all their matrices."""
    found = tensors_of(replace(config, tied_head=True))
    residual = found.matrices["embed"][tokens]
    calibrations: dict[str, Floats] = {}
    for one in calibrated_layers(config, residual, found.load_layer, Team((), 2)):
        calibrations |= {
            name: importance_of_experts(rows) if ".experts." in name else importance(rows) for name, rows in one.items()
        }
    return residual, calibrations


def test_layers_that_need_others_are_not_calibrated() -> None:
    apart = [name for name, config in SHAPES.items() if not config.layers_stand_alone]
    assert apart == [
        "gemma4", "per layer", "streams", "time mixing", "convolved heads", "beside the residual", "lightning",
        "shortcut", "chosen keys", "gated norms", "streams that keep their rows", "gated streams", "compressed",
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [name for name, config in SHAPES.items() if config.layers_stand_alone])
def test_layers_one_by_one_give_what_the_whole_model_gives(shape: str) -> None:
    without_head = {"head_bias": False, "head_dense": None}  # layers alone are calibrated
    config, tokens = replace(SHAPES[shape], embedding_scale=2.5, **without_head), prompt(1, TOKENS)

    residual, calibrations = calibrate(config, tokens)

    assert same(residual, whole_model(config, tokens))
    packed = [spec for spec in matrices(config) if spec.name.startswith("layers.")]
    packed = [spec for spec in packed if spec.role not in ("router", "mixer_heads")]
    assert {spec.name for spec in packed} <= set(calibrations)
    for spec in packed:
        weights = calibrations[spec.name]
        assert weights.shape == ((spec.experts, spec.k) if ".experts." in spec.name else (spec.k,))
        assert np.allclose(weights.mean(axis=-1), 1 + DAMPING, rtol=1e-4)


def test_layers_of_a_pooled_model_share_the_cache_of_their_own_heads() -> None:
    config, tokens = SHAPES["latents of several sizes"], prompt(1, 300)

    assert same(whole_model(replace(config, pooled=True), tokens), whole_model(config, tokens))


def test_the_importance_of_a_column_is_its_mean_square_on_the_text() -> None:
    config, tokens = replace(SHAPES["llama"], tied_head=True), prompt(1, TOKENS)
    found = tensors_of(config)
    x = found.matrices["embed"][tokens].astype(np.float64)
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.norm_eps) * found.vectors["layers.0.input_norm"]
    squares = (normed**2).mean(axis=0)

    _, calibrations = calibrate(config, tokens)

    weights = calibrations["layers.0.qkv"]
    assert np.allclose(weights, squares / squares.mean() + DAMPING, rtol=1e-4)


def test_the_rows_of_an_expert_are_those_of_the_tokens_that_chose_it() -> None:
    config = SHAPES["experts"]
    own = config.layers[0].feed_forward
    assert isinstance(own, Experts)
    found = tensors_of(replace(config, tied_head=True))
    residual = found.matrices["embed"][prompt(1, TOKENS)]

    rows = next(iter(calibrated_layers(config, residual, found.load_layer, Team((), 2))))

    x = rows["layers.0.router"].astype(np.float64)
    chosen = np.argsort(x @ found.matrices["layers.0.router"].T, axis=1)[:, -own.active :]
    gates, ups = (
        found.matrices[f"layers.0.experts.{name}"].reshape(own.count, own.width, -1) for name in ("gate", "up")
    )
    for expert in range(own.count):
        mine = x[(chosen == expert).any(axis=1)]
        gate = mine @ gates[expert].T
        activated = gate / (1 + np.exp(-gate)) * (mine @ ups[expert].T)
        for name, before in (("up", mine), ("down", activated)):
            roots = np.sqrt(np.square(before).sum(axis=0))
            assert np.allclose(rows[f"layers.0.experts.{name}"][expert], roots, rtol=1e-4), (expert, name)


def test_columns_of_an_expert_that_no_token_chose_count_alike() -> None:
    squares = np.array([[1.0, 3.0], [0.0, 0.0]], np.float32)

    weights = importance_of_experts(np.sqrt(squares))

    prior = FEW_TOKENS * squares.mean()
    assert np.allclose(weights[0], (squares[0] + prior) / (2 + prior) + DAMPING, rtol=1e-6)
    assert np.allclose(weights[1], 1 + DAMPING, rtol=1e-6)


def test_each_expert_is_loaded_with_its_own_importance() -> None:
    config = SHAPES["experts"]
    own = config.layers[0].feed_forward
    assert isinstance(own, Experts)
    seen: list[tuple[int, int, float]] = []

    class Loaded(Tensors):
        def load_matrix(self, name: str, values: Floats, dtype: str, row: int = 0, rounding: Rounding = PLAIN) -> None:
            assert rounding.importance is not None
            seen.append((row, len(values), float(rounding.importance[0])))

    target = CalibratedWeights(config, Loaded())
    weights = np.ones((own.count, config.hidden), np.float32)
    weights[:, 0] += np.arange(own.count)
    target.see({"layers.0.experts.up": weights})
    first = np.zeros((own.width + 1, config.hidden), np.float32)

    target.load_matrix("layers.0.experts.gate", first, "float32")  # an expert's rows, and one of the next
    target.load_matrix("layers.0.experts.gate", first[:-2], "float32", own.width + 1)

    columns = importance_of_experts(weights)[:, 0]
    expected = [(0, own.width, columns[0]), (own.width, 1, columns[1]), (own.width + 1, own.width - 1, columns[1])]
    assert seen == expected


def test_an_input_of_nothing_but_zeros_calibrates_nothing() -> None:
    config = SHAPES["llama"]
    found = tensors_of(config)
    found.vectors["layers.0.input_norm"][:] = 0

    first = next(iter(calibrated_layers(config, found.matrices["embed"][:40], found.load_layer, Team((), 1))))

    assert "layers.0.qkv" not in first
    assert "layers.0.up" in first


def test_the_text_is_read_by_the_models_own_tokenizer(tmp_path: Path) -> None:
    tokens = calibration_tokens(DEMO_MODEL, 1 << 20)

    assert len(tokens) > 2000
    assert calibration_tokens(DEMO_MODEL, 100).max() < 100, "tokens that the embedding does not have are left out"
    with pytest.raises(ConfigError, match=r"tokenizer"):
        calibration_tokens(tmp_path, 100)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    with pytest.raises(ConfigError, match=r"cannot load the tokenizer of"):
        calibration_tokens(tmp_path, 100)
