"""The table of memory and machines in docs/models.md is what `forearm plan` computes of published models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.model.published import PUBLISHED
from tools.model_sizes import TEXT_PART, sizes_of
from tools.models_page import MEASURED, PARSERS, SIZES

from forearm.model.families.families import FAMILIES
from forearm.text import tool_parsers
from forearm.text.tool_parsers import reasoning

TABLE: dict[str, Any] = json.loads(SIZES.read_text())


def test_every_published_model_has_a_row() -> None:
    assert TABLE.keys() == {name.removesuffix(TEXT_PART) for name in PUBLISHED}, "run: python tools/model_sizes.py"
    assert TABLE.keys() >= MEASURED


# Fused matrices, latent attention, transposed tensors, experts in one tensor whose columns are stored, states.
@pytest.mark.parametrize(
    "model", ["Phi-4-mini-instruct", "MiniCPM3-4B", "gpt2", "granite-3.1-1b-a400m-instruct", "LFM2-1.2B"]
)
def test_sizes_are_those_of_the_plan(model: str) -> None:
    assert sizes_of(PUBLISHED[model]) == TABLE[model], "run: python tools/model_sizes.py"


@pytest.mark.parametrize(
    ("model", "billions"),  # as the models' authors say
    [("Llama-2-7b-chat-hf", 6.74), ("Qwen3-30B-A3B", 30.5), ("DeepSeek-V3", 671), ("gpt-oss-20b", 20.9)],
)
def test_parameters_are_as_published(model: str, billions: float) -> None:
    assert TABLE[model]["parameters"] / 1e9 == pytest.approx(billions, rel=0.002)


def test_formats_of_calls_and_reasoning_exist() -> None:
    assert PARSERS.keys() <= FAMILIES.keys()
    calls, thoughts = ({names[i] for names in PARSERS.values()} - {""} for i in (0, 1))
    assert calls <= tool_parsers.FORMATS.keys()
    assert thoughts <= reasoning.FORMATS.keys()
