"""Checkpoints that transformers 5 writes with the names and shapes it computes with, of every family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import CASES, Case
from tests.model.made_cases import make
from tests.model.reference import load_weights

AGAIN = [case for case in CASES if case.name.startswith("deepseek_v4")]  # written again, norms have other names


@pytest.mark.parametrize(
    ("case", "original"), [*((case, False) for case in CASES), *((case, True) for case in AGAIN)],
    ids=lambda value: value.name if isinstance(value, Case) else "again" if value else "computed",
)  # fmt: skip
def test_names_that_transformers_writes_give_the_weights_of_the_published_names(
    case: Case, original: bool, tmp_path: Path
) -> None:
    published, computed = tmp_path / "published", tmp_path / "computed"
    make(case, published).save_pretrained(computed, save_original_format=original)

    config, wanted = load_weights(published, max_model_len=case.max_model_len)
    same_config, got = load_weights(computed, max_model_len=case.max_model_len)

    assert len(config.layers) == len(same_config.layers)
    assert got.keys() == wanted.keys()
    assert [name for name, values in wanted.items() if not np.array_equal(values, got[name])] == []
