"""The text part of a multimodal model is found in its config.json, and read as the model that it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.published import PUBLISHED
from tests.unit.model.test_families import folder_of, read

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.families import FAMILIES, read_config


@pytest.mark.parametrize(
    ("text", "text_type", "outer"),
    [
        ("DeepSeek-V3", "kimi_k2", {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}),
        ("Qwen2.5-0.5B-Instruct", "qwen2_5_omni_text", {"model_type": "qwen2_5_omni"}),
        ("Qwen3-30B-A3B", "qwen3_omni_moe_text", {"model_type": "qwen3_omni_moe"}),
        ("Qwen3-0.6B", "qwen3_asr_text", {"model_type": "qwen3_asr"}),
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
    if any(talks in text_type for talks in ("omni_text", "omni_moe_text", "asr_text")):
        nested = {"thinker_config": nested, "talker_config": {"text_config": {"model_type": "llama"}}}
    elif text_type == "nemotron_h":
        nested = {"llm_config": inner}  # as the published files say

    inside = read_config(folder_of(tmp_path, outer | nested))

    assert replace(inside, ropes=()) == replace(alone, ropes=(), model_type=str(outer["model_type"]))
    assert [len(one.inv_freq) for one in inside.ropes] == [len(one.inv_freq) for one in alone.ropes]
    assert outer["model_type"] in FAMILIES


def test_gemma_3n_is_read_inside_a_multimodal_model(tmp_path: Path) -> None:
    alone = "gemma-3n-E2B-it, its text part alone"
    text = read(tmp_path, alone)
    outer = {"model_type": "gemma3n", "text_config": PUBLISHED[alone], "tie_word_embeddings": True, "dtype": "bfloat16"}

    config = read_config(folder_of(tmp_path, outer | {"architectures": ["Gemma3nForConditionalGeneration"]}))

    assert (config.layers, config.alt_up, config.per_layer_vocab) == (text.layers, text.alt_up, 262144)
    assert [layer.mixer.shared_from for layer in config.layers if isinstance(layer.mixer, Attention)][19:22] == [
        None, 18, 18,
    ]  # fmt: skip


_LLAMA_VISION: dict[str, Any] = {
    "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "dropout": 0, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "model_type": "mllama_text_model",
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip


def _llama_vision(folder: Path, **changes: Any) -> ModelConfig:
    outer = {"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama"}
    return read_config(folder_of(folder, outer | {"text_config": _LLAMA_VISION | changes}))


def test_llama_vision_leaves_out_the_layers_that_attend_to_pictures(tmp_path: Path) -> None:
    config = _llama_vision(tmp_path)

    found = {part.name: part for part in parts(config, {"language_model.model.embed_tokens.weight"})}

    assert len(config.layers) == 32
    assert found["layers.3.q"].stored == "language_model.model.layers.4.self_attn.q_proj.weight"
    assert found["layers.31.input_norm"].stored == "language_model.model.layers.39.input_layernorm.weight"
    assert (found["embed"].shape, found["embed"].of_rows) == ((128256, 4096), 128264)


@pytest.mark.parametrize("layers", [[3, 40], [-1], "3", list(range(40))])
def test_wrong_layers_of_llama_vision_are_refused(layers: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cross_attention_layers = .*it should be a list of layers, 0 to 39"):
        _llama_vision(tmp_path, cross_attention_layers=layers)


def test_sizes_beside_a_model_that_sees_are_read_where_there_is_no_text_config(tmp_path: Path) -> None:
    ernie = read(tmp_path, "ERNIE-4.5-0.3B-PT")
    rope = {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"}
    flat = PUBLISHED["ERNIE-4.5-0.3B-PT"] | {"model_type": "paddleocr_vl", "rope_scaling": rope, "use_3d_rope": True}
    reads = read_config(folder_of(tmp_path, flat | {"architectures": ["PaddleOCRVLForConditionalGeneration"]}))

    assert replace(reads, ropes=()) == replace(ernie, ropes=(), model_type="paddleocr_vl")
    assert not reads.ropes[0].interleaved

    hunyuan = read(tmp_path, "Hunyuan-1.8B-Instruct")
    published = PUBLISHED["Hunyuan-1.8B-Instruct"]
    rope = published["rope_scaling"] | {"type": "xdrope", "xdrope_section": [16, 16, 16, 16]}
    flat = published | {"model_type": "hunyuan_vl", "rope_scaling": rope, "attention_head_dim": 128}
    reads = read_config(folder_of(tmp_path, flat | {"architectures": ["HunYuanVLForConditionalGeneration"]}))

    assert replace(reads, ropes=()) == replace(hunyuan, ropes=(), model_type="hunyuan_vl")
    assert (reads.ropes[0].inv_freq == hunyuan.ropes[0].inv_freq).all()
