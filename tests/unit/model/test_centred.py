"""Means of activations become biases while a model is loaded: x W^T = (x - m) W^T + W m."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forearm.array_types import Float32Array, UInt16Array
from forearm.model.checkpoint.calibration import Team
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.checkpoint.shards import widened
from forearm.model.checkpoint.weights import load_weights
from forearm.model.families.matrices import matrices
from forearm.model.quantization import rotation
from forearm.model.quantization.feedback import RANK
from forearm.model.quantization.quantization import Asked
from forearm.model.quantization.rounding import PLAIN, Rounding

DEMO = open_checkpoint(DEMO_MODEL).config


class Kept:
    """Keeps what an executor would be given."""

    def __init__(self) -> None:
        self.matrices: dict[str, Float32Array] = {}
        self.vectors: dict[str, Float32Array] = {}
        self.feedback: dict[str, Float32Array] = {}

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Keep rows and feedback."""
        before = self.matrices.get(name, np.empty((0, data.shape[1]), np.float32))
        assert len(before) == row
        self.matrices[name] = np.concatenate([before, widened(data, dtype)])
        if rounding.feedback is not None:
            self.feedback[name] = rounding.feedback

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Keep a vector."""
        self.vectors[name] = values

    def finish_loading(self) -> None:
        """Note nothing."""


def loaded(checkpoint: Checkpoint, tokenizer: Path) -> Kept:
    kept = Kept()
    load_weights(checkpoint, kept, tokenizer, Team((), 2), progress=False)
    return kept


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_each_matrix_has_the_product_with_the_mean_that_its_norm_takes_away(quantization: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(DEMO_MODEL, quantization=Asked(quantization))
    kept = loaded(checkpoint, DEMO_MODEL)
    stored = loaded(checkpoint, tmp_path).vectors  # without a tokenizer

    specs = matrices(checkpoint.config)
    behind = [one for one in specs if one.role in ("mixer_in", "feed_forward_in", "head")]
    assert len(behind) == 2 * len(checkpoint.config.layers) + (not checkpoint.config.tied_head)
    for spec in behind:
        norm = {"mixer_in": "input_norm", "feed_forward_in": "pre_mlp_norm", "head": "final_norm"}[spec.role]
        at = spec.name.rpartition(".")[0]
        mean = -kept.vectors[f"{at}.{norm}.bias".lstrip(".")].astype(np.float64)
        assert np.abs(mean).max() > 0
        if checkpoint.formats[spec.name].turned:  # as the kernel turns it: its matrix is not scaled
            mean = spec.k * rotation.turn(mean[None].astype(np.float32), 0)[0].astype(np.float64)
        for part in spec.parts:
            rows = kept.matrices[part.name].astype(np.float64)
            bound = spec.k * 2.0**-22 * np.linalg.norm(rows, axis=1) * np.linalg.norm(mean)
            added = kept.vectors[f"{part.name}.bias"] - stored[f"{part.name}.bias"]
            assert np.all(np.abs(added - rows @ mean) <= bound)
    integers = {part.name for spec in specs if checkpoint.formats[spec.name].is_integer for part in spec.parts}
    assert kept.feedback.keys() == integers - {"embed"}
    assert all(len(kept.feedback[name]) == 2 * RANK * kept.matrices[name].shape[1] for name in kept.feedback)


def test_without_a_tokenizer_nothing_is_taken_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = loaded(open_checkpoint(DEMO_MODEL, quantization=Asked("int8")), tmp_path)

    assert "rounded without calibration" in caplog.text
    assert not kept.feedback
    biases = {name for name, values in kept.vectors.items() if name.endswith(".bias") and values.any()}
    layers = range(len(DEMO.layers))
    assert biases == {f"layers.{i}.{part}.bias" for i in layers for part in "qkv"}, "those of the checkpoint"
    assert "layers.0.input_norm.bias" in kept.vectors


@pytest.mark.parametrize("asked", [Asked("int8", portable=True), Asked("int4"), Asked("int4", activations="float")])
def test_what_other_engines_read_and_int4_keep_their_means(asked: Asked) -> None:
    checkpoint = open_checkpoint(DEMO_MODEL, quantization=asked)

    assert not checkpoint.config.centred
    assert not any(one.turned for one in checkpoint.formats.values())
