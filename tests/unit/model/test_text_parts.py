"""The text part of a multimodal model is found in its config.json, and read as the model that it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.published import PUBLISHED
from tests.unit.model.test_families import folder_of, read

from forearm.model.families.families import FAMILIES, read_config


@pytest.mark.parametrize(
    ("text", "text_type", "outer"),
    [
        ("DeepSeek-V3", "kimi_k2", {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}),
        ("Qwen2.5-0.5B-Instruct", "qwen2_5_omni_text", {"model_type": "qwen2_5_omni"}),
        ("Qwen3-30B-A3B", "qwen3_omni_moe_text", {"model_type": "qwen3_omni_moe"}),
        ("Nemotron-H-8B-Base-8K", "nemotron_h", {
            "model_type": "nemotron_h_omni", "architectures": ["NemotronH_Omni_Reasoning_V3"],
        }),
    ],
)  # fmt: skip
def test_the_text_part_of_a_multimodal_model_is_found(
    text: str, text_type: str, outer: dict[str, Any], tmp_path: Path
) -> None:
    alone = read(tmp_path, text)
    inner = PUBLISHED[text] | {"model_type": text_type}
    nested: dict[str, Any] = {"text_config": inner}
    if "omni_text" in text_type or "omni_moe_text" in text_type:
        nested = {"thinker_config": nested, "talker_config": {"text_config": {"model_type": "llama"}}}
    elif text_type == "nemotron_h":
        nested = {"llm_config": inner}  # as the published files say

    inside = read_config(folder_of(tmp_path, outer | nested))

    assert replace(inside, ropes=()) == replace(alone, ropes=(), model_type=str(outer["model_type"]))
    assert [len(one.inv_freq) for one in inside.ropes] == [len(one.inv_freq) for one in alone.ropes]
    assert outer["model_type"] in FAMILIES
