"""Every format stays within its bound of accuracy_rows.py: a small layer, and some answers of the demo model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from bench.quality.accuracy import layer_errors, perplexity
from bench.quality.accuracy_rows import ROWS, Row
from bench.shapes import Shape

SMALL = Shape("llama", 512, 512, 1024, 1, 8, 2, 1e4)
WORST = "large columns"
TURNS = 20
SERVED = ("int8, int8 activations", "int4, int8 activations", "fp8", "GGUF Q4_K", "KV int8", "KV fp8_e4m3")


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    return {name: by_kind[WORST] for name, by_kind in layer_errors(SMALL, ROWS, 64, 1, [WORST]).items()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_layer_is_no_farther_from_float32_than_its_format_s_bound(row: Row, errors: dict[str, float]) -> None:
    assert errors[row.name] <= row.layer
    assert errors[row.name] >= row.layer / 3, "the bound says nothing: lower it"


@cache
def of_float32() -> float:
    return perplexity(ROWS[0], TURNS, Path(), 1)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SERVED], ids=lambda row: row.name)
def test_the_demo_model_s_perplexity_rises_no_more_than_the_format_s_bound(row: Row, tmp_path: Path) -> None:
    rise = perplexity(row, TURNS, tmp_path, 1) / of_float32() - 1

    assert -0.05 < rise <= row.perplexity


def test_what_is_served_is_in_the_table() -> None:
    assert set(SERVED) <= {row.name for row in ROWS}
