"""config.json of Qwen4-Exp becomes the right layers; hashes are those of transformers; wrong values are named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.test_families import folder_of

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.families import read_config
from forearm.model.families.indexed.indexers import BlockIndexer
from forearm.model.families.indexed.qwen4_exp import shards
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import GatedDelta, HyperConnections

# What transformers 5.23 writes of Qwen4ExpTextConfig with these layers, indexer and embeddings of several tokens.
_TEXT: dict[str, Any] = {
    "architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp_text", "dtype": "bfloat16",
    "eos_token_id": [248046, 248044], "hc_count": 4, "hc_lowrank": 320, "head_dim": 256, "heads_per_ngram": 8,
    "hidden_act": "silu", "hidden_size": 2048, "indexer_budget": 2048, "indexer_compress_ratio": 16,
    "indexer_head_dim": 128, "indexer_kv_heads": 1, "indexer_n_heads": 16, "layer_types": [
        "linear_attention", "linear_attention", "linear_attention", "indexed_attention"
    ] * 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "make_ngram_vocab_size_divisible_by": 128,
    "max_position_embeddings": 32768, "moe_intermediate_size": 512, "ngram_size": 3,
    "ngram_vocab_size_base": 20000000, "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 8, "num_key_value_heads": 2, "number_of_conv_states": 3,
    "output_gate_type": None, "ple_conv_kernel_size": 4, "ple_embed_dim": 2560, "ple_layer_ids": [2, 5],
    "rms_norm_eps": 1e-06, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
    }, "seed": 1234, "shared_expert_intermediate_size": 512, "split_ngram_parts": 512, "tie_word_embeddings": False,
    "vocab_size": 248320,
}  # fmt: skip


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_config(folder_of(folder, _TEXT | changes))


def test_layers_read_gated_streams_and_choose_blocks_of_keys(tmp_path: Path) -> None:
    config = read(tmp_path)

    delta, chosen = GatedDelta(16, 32, 128, 128, 4), Attention(0, blocks=BlockIndexer(128, 16, 128, heads=16))
    assert [layer.mixer for layer in config.layers] == [delta, delta, delta, chosen] * 2
    assert [i for i, layer in enumerate(config.layers) if layer.ngrams] == [1, 4]
    shared = FeedForward(512)
    experts = Experts(512, 512, 10, renormalized=True, shared=shared, shared_gate=True)
    assert {layer.feed_forward for layer in config.layers} == {experts}
    assert config.hyper_connections == HyperConnections(4, 0, 0.0, rank=320)
    assert (config.norm_placement, config.final_norm, 2 * len(config.ropes[0].inv_freq)) == ("none", False, 64)


def test_hashes_and_parameters_are_those_of_the_classes_of_transformers(tmp_path: Path) -> None:
    """Compare with what Qwen4ExpForCausalLM has on the device meta."""
    config = read(tmp_path)

    first, second = (layer.ngrams for layer in config.layers if layer.ngrams)
    assert (first.multipliers, second.multipliers) == (
        (23703573157769, 20109073645365, 8052911324071), (3352040966061, 19752442147475, 10742103100073)
    )  # fmt: skip
    assert (first.sizes[0], first.sizes[-1], second.sizes[0], second.sizes[-1]) == (
        20000003, 20000171, 20000213, 20000429
    )  # fmt: skip
    assert (sum(first.sizes), first.rows, second.rows) == (320001446, 320001536, 320005120)
    assert (first.end, first.head_width) == (248046, 160)
    count = sum(math.prod(part.shape) for part in parts(config, {"model.embed_tokens.weight"}))
    assert count == 116_744_743_552


def test_a_table_is_read_whole_or_in_its_shards() -> None:
    assert shards("table", 10, {"table.weight"}) == [("table.weight", 0, 10)]
    stored = {f"table.shard_{i}.weight" for i in range(4)}
    assert shards("table", 10, stored) == [
        ("table.shard_0.weight", 0, 3), ("table.shard_1.weight", 3, 3), ("table.shard_2.weight", 6, 3),
        ("table.shard_3.weight", 9, 1),
    ]  # fmt: skip


def test_without_an_indexer_attention_sees_all_keys(tmp_path: Path) -> None:
    absent = {key: None for key in _TEXT if key.startswith("indexer_")}
    full = ["linear_attention", "full_attention"] * 4
    config = read(tmp_path, **absent, layer_types=full, output_gate_type="sigmoid", ple_layer_ids=None)

    delta = replace(GatedDelta(16, 32, 128, 128, 4), sigmoid_gate=True)
    assert [layer.mixer for layer in config.layers] == [delta, Attention(0)] * 4
    assert not any(spec.name.endswith(("index_in", "ngrams")) for spec in matrices(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hc_count": 1}, "hc_count = 1; it should be 2 to 8"),
        ({"indexer_n_heads": None}, "indexer_n_heads = null; it should be a number, as others of the indexer have one"),
        ({"indexer_budget": 100}, "indexer_budget = 100; it should be 16 to 16777216, a multiple of 16"),
        ({"indexer_head_dim": 32}, "indexer_head_dim = 32; it should be 64 to 4096, a multiple of 16"),
        ({"output_gate_type": "relu"}, 'output_gate_type = "relu"; it should be silu or sigmoid'),
        (
            {"ple_layer_ids": [4]},
            r"ple_layer_ids = \[4\]; it should be a list of numbers from 1 to 8 of layers of linear",
        ),
        ({"ple_embed_dim": 100}, "ple_embed_dim = 100; it should be a multiple of the 16 heads"),
        ({"eos_token_id": None}, "eos_token_id = null; it should be the token that ends a text"),
        ({"ngram_vocab_size_base": 1 << 28}, "ngram_vocab_size_base = 268435456; it should be less: 4294"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, **changes)
