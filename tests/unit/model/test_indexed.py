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
from forearm.model.families.recurrences import BlockIndexer, HyperConnections, Indexer


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
