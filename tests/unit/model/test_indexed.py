"""config.json of models whose tokens attend to chosen keys, beside those of test_mixtures.py; what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.model.test_families import folder_of

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention
from forearm.model.families.families import read_config
from forearm.model.families.indexed.indexers import BlockIndexer, Indexer
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import HyperConnections


def test_minimax_m3_chooses_blocks_of_keys_where_either_key_says(tmp_path: Path) -> None:
    published: dict[str, Any] = {  # as transformers reads published files; sizes are its class's
        "architectures": ["MiniMaxM3SparseForCausalLM"], "hidden_act": "swigluoai", "hidden_size": 6144,
        "model_type": "minimax_m3_vl_text", "max_position_embeddings": 524288, "moe_layer_freq": [0, 0, 0] + [1] * 57,
        "num_attention_heads": 64, "num_hidden_layers": 60, "partial_rotary_factor": 0.5, "rotary_dim": 64,
        "sparse_attention_config": {
            "sparse_attention_freq": [0, 0, 0] + [1] * 57, "sparse_num_index_heads": 4, "sparse_index_dim": 128,
            "sparse_block_size": 128, "sparse_topk_blocks": 16, "sparse_local_block": 1,
        },
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 200064,
    }  # fmt: skip
    config = read_config(folder_of(tmp_path, published))

    assert [layer.mixer for layer in config.layers] == [Attention(0)] * 3 + [
        Attention(0, blocks=BlockIndexer(128, 128, 16, 1))
    ] * 57
    assert config.layers[2].feed_forward == FeedForward(12288, "swiglu_oai")
    assert config.layers[3].feed_forward == Experts(
        3072, count=128, active=4, activation="swiglu_oai", score="sigmoid", correction=True, renormalized=True,
        scale=2.0, shared=FeedForward(3072, "swiglu_oai"),
    )  # fmt: skip
    assert (len(config.ropes[0].inv_freq), config.norm_plus_one, config.qk_norm) == (32, True, "head")
    kinds = {"layer_types": ["full_attention"] * 59 + ["minimax_m3_sparse"], "mlp_layer_types": ["sparse"] * 60}
    config = read_config(folder_of(tmp_path, published | kinds))
    assert {layer.mixer for layer in config.layers[:59]} == {Attention(0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_n_heads": 8}, "index_n_heads = 8; it should be num_key_value_heads"),
        ({"index_block_size": 48}, "index_block_size = 48; it should be 32 to 1048576, a multiple of 32"),
        ({"index_topk_blocks": 0}, "index_topk_blocks = 0; it should be 1 to 4096"),
        ({"index_local_blocks": 0}, "index_local_blocks = 0; it should be 1 to 16"),
        ({"index_head_dim": 24}, "index_head_dim = 24; it should be 16 to 4096, a multiple of 16"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types = .* a list of 2 times full_attention or minimax_m3"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types = .*a list of 2 times dense or sparse"),
        ({"moe_layer_freq": 1}, "moe_layer_freq = 1; it should be a list of 2 times 0 or 1"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha = 1.0; it should be 1.702"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_blocks_that_cannot_be_chosen_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    small = {
        "architectures": ["MiniMaxM3VLForCausalLM"], "hidden_size": 64, "max_position_embeddings": 512,
        "model_type": "minimax_m3_vl_text", "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64,
        "layer_types": ["minimax_m3_sparse"] * 2, "torch_dtype": "float32",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        read_config(folder_of(tmp_path, small | changes))


_HY4: dict[str, Any] = {  # the values of transformers' class, which are those of Hy4-preview
    "architectures": ["HYV4ForCausalLM"], "attention_bias": False, "hc_eps": 1e-06, "hc_magnitude": 2.0, "hc_mult": 4,
    "hidden_act": "silu", "hidden_size": 2816, "index_head_dim": 128, "index_n_heads": 16, "index_topk": 2048,
    "intermediate_size": 6912, "kv_lora_rank": 512, "max_position_embeddings": 262144, "model_type": "hy_v4",
    "moe_intermediate_size": 768, "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts_per_tok": 8, "num_hidden_layers": 34, "q_lora_rank": 1536,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "routed_scaling_factor": 2.827, "swiglu_limit": 10.0, "topk_group": 1, "torch_dtype": "bfloat16", "v_head_dim": 256,
    "vocab_size": 120832,
}  # fmt: skip


def test_hy4_shares_choices_and_has_gates_sinks_and_streams(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _HY4))

    mixers = [cast("LatentAttention", layer.mixer) for layer in config.layers]
    indexer = Indexer(16, 128, 2048, last=True, key_eps=1e-5)
    assert [mixer.indexer for mixer in mixers[:6]] == [
        replace(indexer, shared=i in (2, 3, 4)) for i in range(6)
    ]  # fmt: skip
    assert {(mixer.sinks, mixer.rank, mixer.value) for mixer in mixers} == {(True, 512, 256)}
    assert config.hyper_connections == HyperConnections(4, 0, 1e-6, 2.0)
    assert (config.attention_gate, config.head_gates, config.ropes[0].interleaved) == ("sigmoid", False, False)
    halves = [layer.feed_forward for layer in config.layers]
    assert halves[0] == FeedForward(6912)
    assert isinstance(halves[1], Experts)
    assert (halves[1].limit, halves[1].shared, set(halves[2:])) == (10.0, FeedForward(768), {halves[1]})
    unbounded = read_config(folder_of(tmp_path, _HY4 | {"swiglu_limit": 0.0})).layers[1].feed_forward
    assert cast("Experts", unbounded).limit == math.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hc_mult": 9}, "hc_mult = 9; it should be 1 to 8"),
        ({"hc_eps": -1.0}, "hc_eps = -1.0; it should be 0 to 1"),
        ({"hc_magnitude": 0}, "hc_magnitude = 0"),
        ({"attention_bias": True}, "attention_bias = true; it should be false"),
        ({"indexer_types": ["shared"] * 34}, "indexer_types = .*the first one full"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_hy4_cannot_have_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(folder_of(tmp_path, _HY4 | changes))


_DOTS3: dict[str, Any] = {  # with the names that published files have, and the values of transformers' class
    "architectures": ["Dots3NoteForConditionalGeneration"], "first_k_dense_replace": 1, "head_dim": 256,
    "hidden_size": 5120, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "intermediate_size": 13824,
    "kv_lora_rank": 512, "max_position_embeddings": 524288, "model_type": "dots3_note", "moe_intermediate_size": 1536,
    "moe_layer_freq": 1, "moe_shared_expert_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "q_lora_rank": 1024, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 80000000.0, "sliding_window_size": 512, "swa_head_dim": 256, "swa_kv_lora_rank": 1024,
    "swa_num_attention_heads": 64, "swa_num_key_value_heads": 64, "swa_q_lora_rank": 1024, "swa_qk_nope_head_dim": 192,
    "swa_rope_theta": 50000.0, "swa_v_head_dim": 128, "topk_group": 1, "torch_dtype": "bfloat16", "use_dsa": True,
    "use_sliding_window": True, "v_head_dim": 128, "vocab_size": 152064,
    "audio_config": {"whisper_config": {"d_model": 1280}}, "vision_config": {"embed_dim": 1536},
}  # fmt: skip


def test_dots3_note_has_indexers_and_windows_of_their_own_sizes(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _DOTS3))

    mixers = [cast("LatentAttention", layer.mixer) for layer in config.layers]
    full = LatentAttention(
        0, 512, 128, 64, 128, 1024, indexer=Indexer(64, 128, 2048, interleaved=True), norm_eps=1e-5, key_norm=True,
        scales=(5**0.5, 10**0.5),
    )  # fmt: skip
    own = replace(
        full, rope=1, rank=1024, plain=192, indexer=None, heads=64, window=512, scales=((5 * 0.75) ** 0.5, 5**0.5)
    )
    assert [mixers[i] for i in (0, 1, 5, 45)] == [full] * 4
    for i in (2, 3, 4, 44):
        assert replace(mixers[i], scales=own.scales) == own
        assert mixers[i].scales == pytest.approx(own.scales)
    assert (config.attention_gate, config.head_gates, config.attention_scale) == ("sigmoid", True, 192**-0.5)
    assert config.layers[0].feed_forward == FeedForward(13824)
    assert config.layers[1].feed_forward == Experts(
        1536, 256, 8, score="sigmoid", correction=True, renormalized=True, sum_epsilon=1e-20, shared=FeedForward(1536)
    )
    assert [rope.inv_freq[1] for rope in config.ropes] == pytest.approx([8e7 ** (-2 / 64), 5e4 ** (-2 / 64)])


def test_dots3_note_opens_as_transformers_writes_it(tmp_path: Path) -> None:
    gone = ("swa_", "use_", "sliding_window_size", "rope_theta", "first_k", "moe_layer", "moe_shared")
    written = {key: value for key, value in _DOTS3.items() if not key.startswith(gone)}
    kinds = ["indexed_attention" if i < 2 or i % 4 == 1 else "sliding_attention" for i in range(46)]
    sizes = {key.removeprefix("swa_"): value for key, value in _DOTS3.items() if key.startswith("swa_")}
    sizes = {key: value for key, value in sizes.items() if key != "rope_theta"} | {"qk_rope_head_dim": 64}
    written |= {
        "layer_types": kinds, "mlp_layer_types": ["dense"] + ["sparse"] * 45, "sliding_window": 512,
        "per_layer_config": {str(i): sizes for i, kind in enumerate(kinds) if kind == "sliding_attention"},
        "shared_experts_intermediate_size": 1536,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.25}
            for kind, theta in (("indexed_attention", 8e7), ("sliding_attention", 5e4))
        },
    }  # fmt: skip

    (tmp_path / "written").mkdir()
    found, wanted = (
        read_config(folder_of(folder, values))
        for folder, values in ((tmp_path / "written", written), (tmp_path, _DOTS3))
    )

    assert found.layers == wanted.layers
    for mine, other in zip(found.ropes, wanted.ropes, strict=True):
        assert mine.inv_freq.tolist() == other.inv_freq.tolist()


_AXK2: dict[str, Any] = {  # the values of transformers' class, which are those of A.X-K2-Light
    "architectures": ["AXK2ForCausalLM"], "attention_bias": False, "first_k_dense_replace": 1, "gated_norm_rank": 16,
    "hidden_act": "silu", "hidden_size": 2048, "index_head_dim": 128, "index_n_heads": 16, "index_topk": 2048,
    "intermediate_size": 5120, "kv_lora_rank": 128, "max_position_embeddings": 131072, "model_type": "axk2",
    "moe_intermediate_size": 512, "moe_layer_freq": 1, "n_group": None, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 32, "q_lora_rank": 384, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "routed_scaling_factor": 2.5, "topk_group": None, "torch_dtype": "bfloat16",
    "v_head_dim": 64, "vocab_size": 163840,
}  # fmt: skip


def test_axk2_has_gates_beside_queries_and_behind_norms(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _AXK2))

    assert {layer.mixer for layer in config.layers} == {
        LatentAttention(0, 128, 64, 32, 64, 384, indexer=Indexer(16, 128, 2048), joint_gates=True)
    }
    assert (config.attention_gate, config.head_gates, config.norm_gates) == ("sigmoid", False, 16)
    assert config.layers[0].feed_forward == FeedForward(5120)
    assert config.layers[47].feed_forward == Experts(
        512, 128, 8, score="sigmoid", correction=True, renormalized=True, sum_epsilon=1e-20, scale=2.5,
        shared=FeedForward(512),
    )  # fmt: skip
    found = {spec.name: spec for spec in matrices(config) if spec.name.startswith(("layers.0.", "layers.1."))}
    assert [(part.name, part.rows) for part in found["layers.1.q_up"].parts] == [
        ("layers.1.q_up", 32 * 96), ("layers.1.q_gate", 32 * 64),
    ]  # fmt: skip
    assert found["layers.1.q_up"].k == 768
    gates = {name.removeprefix("layers."): (spec.rows, spec.k) for name, spec in found.items() if "_gate_" in name}
    few, many = (16, 2048), (2048, 16)
    assert gates == {
        "0.input_gate_down": few, "0.input_gate_up": many, "1.input_gate_down": few, "1.input_gate_up": many,
        "1.pre_mlp_gate_down": few, "1.pre_mlp_gate_up": many,
    }  # fmt: skip
