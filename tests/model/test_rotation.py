"""A rotated model computes the same function: in float32 its logits are those of the model as it is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.quality.quality import Model
from tests.model.cases import CASES, Case, make

from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.families.config import WeightFormat
from forearm.model.families.matrices import uniform_formats
from forearm.model.quantization.quantization import Asked

TOKENS = np.arange(1, 40, dtype=np.int32)
AS_STORED = ("Gemma2Config", "Gemma3TextConfig", "Olmo2Config", "OPTConfig")  # norms behind layers, or LayerNorms


def in_float32(checkpoint: Checkpoint) -> Model:
    exact = uniform_formats(checkpoint.config, WeightFormat("float32"))
    return Model(replace(checkpoint, formats=exact, kv_dtype="float32"), 2)


@pytest.mark.parametrize("case", [case for case in CASES if case.config not in AS_STORED], ids=lambda case: case.name)
def test_rotation_changes_no_logit(case: Case, tmp_path: Path) -> None:
    """Values go through two more orthogonal products a matrix, each exact to a few units of 2^-24 of their norm."""
    make(case, tmp_path)
    stored = open_checkpoint(tmp_path, dtype="float32", max_model_len=case.max_model_len)
    asked = Asked("int8")
    rotated = open_checkpoint(tmp_path, dtype="float32", max_model_len=case.max_model_len, quantization=asked)
    assert rotated.rotated
    assert not rotated.config.tied_head

    found, expected = in_float32(rotated).logits(TOKENS), in_float32(stored).logits(TOKENS)

    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("case", [case for case in CASES if case.config in AS_STORED], ids=lambda case: case.name)
def test_other_norms_leave_a_model_as_it_is_stored(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(case, tmp_path)

    with caplog.at_level("INFO"):
        opened = open_checkpoint(tmp_path, max_model_len=case.max_model_len, quantization=Asked("int8"))

    assert not opened.rotated
    assert "as they are stored" in caplog.text
