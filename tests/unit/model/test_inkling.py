"""config.json of Inkling: as published, as transformers writes it, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.model.test_families import folder_of
from transformers import AutoModelForCausalLM, InklingConfig, InklingTextConfig

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, Experts, FeedForward
from forearm.model.families.families import read_config
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import RelativeBias

# Put together of what transformers says of thinkingmachines/Inkling in its code, not copied from its file.
_PUBLISHED: dict[str, Any] = {
    "architectures": ["InklingForConditionalGeneration"], "model_type": "inkling_mm_model", "torch_dtype": "bfloat16",
    "image_token_id": 200054, "audio_token_id": 200053, "vision_config": {}, "audio_config": {},
    "mtp_config": {"num_nextn_predict_layers": 3, "local_layer_ids": [0]}, "text_config": {
        "model_type": "inkling_text", "vocab_size": 201024, "unpadded_vocab_size": 200058, "hidden_size": 6144,
        "num_hidden_layers": 66, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "swa_num_attention_heads": 64, "swa_num_key_value_heads": 16, "swa_head_dim": 128, "sliding_window_size": 512,
        "d_rel": 16, "rel_extent": 1024, "log_scaling_n_floor": 131072, "log_scaling_alpha": 0.1,
        "model_max_length": 131072, "rms_norm_eps": 1e-06, "sconv_kernel_size": 4, "intermediate_size": 3072,
        "dense_intermediate_size": 24576, "dense_mlp_idx": 2, "hidden_act": "silu", "n_routed_experts": 256,
        "num_experts_per_tok": 6, "n_shared_experts": 2, "shared_expert_sink": True, "route_scale": 8.0,
        "logits_mup_width_multiplier": 24.0, "local_layer_ids": [i for i in range(66) if i % 6 != 5],
    },
}  # fmt: skip


def changed(**text: Any) -> dict[str, Any]:
    """Return the published config.json with other keys in its text part."""
    return _PUBLISHED | {"text_config": _PUBLISHED["text_config"] | text}


def test_inkling_has_heads_by_layer_convolutions_and_experts_that_all_tokens_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read_config(folder_of(tmp_path, changed()))

    assert not caplog.records
    sees_all = Attention(
        None, heads=64, kv_heads=8, head_dim=128, scale=1 / 128, bias=RelativeBias(16, 1024), query_growth=0.1,
        query_positions=131072, query_first=1, query_smooth=True,
    )  # fmt: skip
    slides = Attention(None, window=512, heads=64, kv_heads=16, head_dim=128, scale=1 / 128, bias=RelativeBias(16, 512))
    assert [layer.mixer for layer in config.layers] == [*[slides] * 5, sees_all] * 11
    experts = Experts(
        3072, count=258, active=8, score="sigmoid", correction=True, renormalized=True, scale=8.0, always=2
    )
    assert [layer.feed_forward for layer in config.layers] == [FeedForward(24576)] * 2 + [experts] * 64
    assert (config.conv_taps, config.embed_norm, config.qk_norm, config.tied_head) == (4, True, "head", False)
    assert (config.vocab_size, config.stored_vocab, config.max_positions) == (200058, 201024, 131072)
    assert config.logits_scale == 1 / 24
    by_name = {spec.name: spec for spec in matrices(config)}
    assert [part.rows for part in by_name["layers.0.qkv"].parts] == [8192, 2048, 2048, 1024]
    assert [part.rows for part in by_name["layers.5.qkv"].parts] == [8192, 1024, 1024, 1024]


def test_what_transformers_writes_of_a_published_file_is_the_same_model(tmp_path: Path) -> None:
    written = json.loads(InklingConfig(**changed()).to_json_string())
    assert "dense_mlp_idx" not in json.dumps(written)

    config = read_config(folder_of(tmp_path, changed()))
    again = read_config(folder_of(tmp_path, written | {"torch_dtype": "bfloat16"}))
    text = read_config(folder_of(tmp_path, written["text_config"] | {"torch_dtype": "bfloat16"}))

    for field in fields(config):
        if field.name not in ("model_type", "eos_token_ids", "bos_token_id"):  # which the class has defaults of
            assert getattr(again, field.name) == getattr(config, field.name), field.name
            assert getattr(text, field.name) == getattr(config, field.name), field.name


def test_the_tensors_of_the_defaults_are_those_that_transformers_has(tmp_path: Path) -> None:
    settings = InklingTextConfig()
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(settings).state_dict()

    config = read_config(folder_of(tmp_path, json.loads(settings.to_json_string()) | {"torch_dtype": "bfloat16"}))
    ours = parts(config, theirs)

    assert {part.stored for part in ours} == theirs.keys()
    assert sum(math.prod(part.shape) for part in ours) == sum(tensor.numel() for tensor in theirs.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"layer_types": ["hybrid"] * 65},
            "layer_types = .*; it should be a list of 66 times hybrid or hybrid_sliding",
        ),
        ({"layer_types": ["full_attention"] * 66}, "layer_types = .*; it should be a list of 66 times hybrid or"),
        ({"local_layer_ids": 3}, "local_layer_ids = 3; it should be a list of numbers of layers"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types = .*; it should be a list of 66 times dense or sparse"),
        ({"dense_mlp_idx": 67}, "dense_mlp_idx = 67; it should be 0 to 66"),
        ({"dense_intermediate_size": 0}, "dense_intermediate_size = 0; it should be 1 to 1048576"),
        ({"sconv_kernel_size": 1}, "conv_kernel_size = 1; it should be 2 to 64"),
        ({"d_rel": 10}, "d_rel = 10; it should be a multiple of 4"),
        ({"d_rel": 0}, "d_rel = 0; it should be 4 to 4096"),
        ({"rel_extent": 0}, "rel_extent = 0; it should be 1 to 1048576"),
        ({"sliding_window_size": 1 << 21}, "sliding_window_size = 2097152; it should be 1 to 1048576"),
        ({"swa_num_key_value_heads": 3}, r"swa_num_key_value_heads = 3; it should be a divisor of .* \(64\)"),
        ({"swa_head_dim": 0}, "swa_head_dim = 0; it should be 1 to 4096"),
        ({"n_shared_experts": 0}, "n_shared_experts = 0; it should be 1 to 64"),
        ({"n_routed_experts": 4095}, "n_routed_experts = 4095; it should be at most 4096 with those of n_shared"),
        ({"num_experts_per_tok": 257}, r"num_experts_per_tok = 257; it should be 1 to n_routed_experts \(256\)"),
        ({"shared_expert_sink": False}, "shared_expert_sink = false; it should be true: transformers computes no"),
        ({"route_scale": 0}, "route_scale = 0; it should be more than 0"),
        ({"log_scaling_n_floor": 0}, "log_scaling_n_floor = 0; it should be 1 to"),
        ({"logits_mup_width_multiplier": -24.0}, "logits_mup_width_multiplier = -24.0; it should be more than 0"),
        ({"unpadded_vocab_size": 0}, "unpadded_vocab_size = 0; it should be 1 to"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = true; it should be false"),
        ({"hidden_act": "tanh"}, 'hidden_act = "tanh"; it should be one of'),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, changed(**changes)))
