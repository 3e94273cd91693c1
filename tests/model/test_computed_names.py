"""Checkpoints that transformers 5 writes with the names and shapes it computes with, of every family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import CASES, Case
from tests.model.made_cases import make
from tests.model.reference import load_weights


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_of_transformers_modules_give_the_weights_of_the_published_names(case: Case, tmp_path: Path) -> None:
    published, computed = tmp_path / "published", tmp_path / "computed"
    make(case, published).save_pretrained(computed, save_original_format=False)

    config, wanted = load_weights(published, max_model_len=case.max_model_len)
    same_config, got = load_weights(computed, max_model_len=case.max_model_len)

    assert len(config.layers) == len(same_config.layers)
    assert got.keys() == wanted.keys()
    assert [name for name, values in wanted.items() if not np.array_equal(values, got[name])] == []
