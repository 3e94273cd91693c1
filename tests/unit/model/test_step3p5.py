"""config.json of Step 3.5 Flash: as published, as transformers writes it, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.model.test_families import folder_of
from transformers import Step3p7TextConfig

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, Experts, FeedForward
from forearm.model.families.families import read_config
from forearm.model.families.matrices import matrices

# Put together of what transformers, vLLM and llama.cpp say of stepfun-ai/Step-3.5-Flash in their code, not copied from
# its file. Lists go on with three layers that predict further tokens.
_PUBLISHED: dict[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"], "att_impl_type": "GQA", "attention_other_setting": {
        "attention_type": "sliding_attention", "head_dim": 128, "num_attention_groups": 8, "num_attention_heads": 96,
        "true_head_dim": 128,
    }, "bos_token_id": 0, "eos_token_id": [1, 2, 128007], "head_dim": 128, "hidden_size": 4096,
    "intermediate_size": 11264, "layer_types": ["full_attention", *["sliding_attention"] * 3] * 12,
    "max_position_embeddings": 262144, "max_seq_len": 262144, "model_type": "step3p5", "moe_every_n_layer": 1,
    "moe_intermediate_size": 1280, "moe_layer_offset": 0, "moe_layers_enum": ",".join(map(str, range(3, 45))),
    "moe_num_experts": 288, "moe_router_activation": "sigmoid", "moe_router_scaling_factor": 3.0, "moe_top_k": 8,
    "need_fp32_gate": True, "norm_expert_weight": True, "num_attention_groups": 8, "num_attention_heads": 64,
    "num_hidden_layers": 45, "num_nextn_predict_layers": 3, "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12,
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 2.0, "high_freq_factor": 32.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 131072,
        "rope_type": "llama3",
    }, "rope_theta": [5000000.0, 10000.0, 10000.0, 10000.0] * 12, "share_expert_dim": 1280, "share_expert_dims": 1280,
    "sink": False, "sliding_window": 512, "swiglu_limits": [0.0] * 43 + [7, 7] + [0.0] * 3,
    "swiglu_limits_shared": [0.0] * 43 + [16, 16] + [0.0] * 3, "torch_dtype": "bfloat16",
    "use_head_wise_attn_gate": True, "use_moe": True, "use_moe_router_bias": True, "use_qk_norm": True,
    "use_rope_layers": [], "vocab_size": 128896, "yarn_only_types": ["full_attention"], "zero_centered": True,
}  # fmt: skip


def test_step_3_5_has_heads_angles_experts_and_limits_by_layer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read_config(folder_of(tmp_path, _PUBLISHED))

    assert not caplog.records
    assert (config.attention_gate, config.head_gates, config.qk_norm, config.norm_plus_one) == (
        "sigmoid", True, "head", True,
    )  # fmt: skip
    assert [layer.mixer for layer in config.layers[:5]] == [
        Attention(0), *[Attention(1, window=512, heads=96)] * 3, Attention(0)
    ]  # fmt: skip
    assert [len(one.inv_freq) for one in config.ropes] == [32, 64]
    assert config.max_positions == 262144
    experts = Experts(
        1280, count=288, active=8, score="sigmoid", correction=True, renormalized=True, scale=3.0,
        shared=FeedForward(1280),
    )  # fmt: skip
    halves = [layer.feed_forward for layer in config.layers]
    assert halves[:43] == [FeedForward(11264)] * 3 + [experts] * 40
    beside = FeedForward(1280, limit=16.0, gate_limit=pytest.approx(16.0000018, abs=1e-7))
    limited = replace(experts, limit=7.0, gate_limit=pytest.approx(7.00634, abs=1e-5), shared=beside)
    assert halves[43:] == [limited] * 2
    by_name = {spec.name: spec for spec in matrices(config)}
    assert [part.rows for part in by_name["layers.1.qkv"].parts] == [96 * 128, 1024, 1024, 96]


@pytest.mark.parametrize("inside", [False, True])
def test_what_transformers_writes_of_a_published_file_is_the_same_model(inside: bool, tmp_path: Path) -> None:
    written = json.loads(Step3p7TextConfig(**_PUBLISHED).to_json_string())
    assert "moe_layers_enum" not in written
    whole = {"model_type": "step3p7", "architectures": ["Step3p7ForConditionalGeneration"], "text_config": written}

    config = read_config(folder_of(tmp_path, _PUBLISHED))
    again = read_config(folder_of(tmp_path, whole if inside else written))

    for field in fields(config):
        if field.name not in ("ropes", "model_type"):
            assert getattr(again, field.name) == getattr(config, field.name), field.name
    for ours, theirs in zip(again.ropes, config.ropes, strict=True):
        assert np.array_equal(ours.inv_freq, theirs.inv_freq)


@pytest.mark.parametrize("limit", [1e-3, 0.4, 7.0, 1e9])
def test_a_limit_is_the_silu_of_the_limit_of_gates(limit: float, tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _PUBLISHED | {"swiglu_limits_shared": [limit] * 48}))

    half = config.layers[0].feed_forward
    assert isinstance(half, FeedForward)
    assert half.limit == limit
    assert half.gate_limit is not None
    assert half.gate_limit / (1 + math.exp(-half.gate_limit)) == pytest.approx(limit, rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({"moe_layers_enum": " 1 ,2,3,4,", "mlp_layer_types": None}, [1, 2, 3, 4]),
        ({"moe_layers_enum": [1, 4]}, [1, 4]),
        ({"moe_layers_enum": "2,99"}, [2]),
        ({"moe_layers_enum": ""}, []),
        ({"moe_layers_enum": None}, [3, 4]),
        ({"mlp_layer_types": ["sparse"] * 4 + ["dense"] * 4}, [0, 1, 2, 3]),
    ],
)
def test_layers_with_experts_are_listed_or_begin_with_the_fourth(
    changes: dict[str, Any], sparse: list[int], tmp_path: Path
) -> None:
    small = {"num_hidden_layers": 5, "swiglu_limits": None, "swiglu_limits_shared": None}
    lists = {key: _PUBLISHED[key][:8] for key in ("layer_types", "rope_theta", "partial_rotary_factors")}

    config = read_config(folder_of(tmp_path, _PUBLISHED | small | lists | changes))

    assert [i for i, layer in enumerate(config.layers) if isinstance(layer.feed_forward, Experts)] == sparse


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention"] * 46}, "a list of 45 times full_attention or sliding_attention"),
        ({"swiglu_limits": [7.0] * 44}, "swiglu_limits = .*; it should be a list of 45 numbers"),
        ({"swiglu_limits": 7.0}, "swiglu_limits = 7.0; it should be a list of 45 numbers"),
        ({"swiglu_limits_shared": [-1.0] * 45}, "swiglu_limits_shared = .*; it should be of numbers that are at least"),
        ({"rope_theta": [5e6] * 44}, "rope_theta = .*; it should be a list of 45 numbers"),
        ({"rope_theta": [*[5e6] * 4, *[1e4] * 41]}, "rope_theta = .*; it should be of equal numbers for layers of"),
        ({"partial_rotary_factors": [1.5] * 45}, "partial_rotary_factor = 1.5; it should be more than 0 and at most 1"),
        ({"yarn_only_types": ["sliding_attention"]}, "yarn_only_types = .*full_attention"),
        ({"moe_layers_enum": "3-44"}, "moe_layers_enum = .*; it should be numbers of layers, with commas"),
        ({"moe_layers_enum": [True]}, "moe_layers_enum = .*; it should be numbers of layers, with commas"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate = false; it should be true"),
        ({"gating": "per-element"}, "gating = .*; it should be true or per-head"),
        ({"moe_router_activation": "softmax"}, 'moe_router_activation = "softmax"; it should be sigmoid'),
        ({"norm_expert_weight": False}, "norm_expert_weight = false; it should be true"),
        ({"use_rope_layers": [False] * 45}, "use_rope_layers = .*; it should be "),
        ({"attention_bias": True}, "attention_bias = true; it should be null or false"),
        ({"mlp_bias": True}, "mlp_bias = true; it should be null or false"),
        ({"num_key_value_heads": 4}, "num_attention_groups = 8; it should be 4, as num_key_value_heads"),
        ({"num_local_experts": 128}, "num_local_experts = 128; it should be 288, as n_routed_experts"),
        ({"num_sliding_attention_heads": 12}, "num_sliding_attention_heads = 12; it should be a multiple of num_key_"),
        (
            {"attention_other_setting": {"num_attention_heads": 12}},
            "num_sliding_attention_heads = 12; it should be a multiple of num_key_value_heads .8., at most 4096",
        ),
        (
            {"attention_other_setting": {"num_attention_groups": 4}},
            "attention_other_setting: num_attention_groups = 4; it should be 8",
        ),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config = .* layers with a window have 96 heads"),
        ({"sliding_window": 0}, "sliding_window = 0; it should be at least 1: some layers have a window"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, _PUBLISHED | changes))


@pytest.mark.parametrize("changes", [{"rope_theta": 1e6}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}])
def test_angles_of_layers_of_two_kinds_are_not_changed_from_outside(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its layers have different angles, which --rope-scaling can't change"):
        read_config(folder_of(tmp_path, _PUBLISHED), rope=changes)
