"""Published config.json files of RecurrentGemma become the right layers; wrong values are named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.test_families import read

from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, FeedForward
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.families.recurrences import RgLru


@pytest.mark.parametrize(
    ("model", "width", "heads", "layers", "scale"),
    [("recurrentgemma-2b", 2560, 10, 26, 50.5), ("recurrentgemma-9b", 4096, 16, 38, 64.0)],
)
def test_every_third_layer_attends_to_a_window(
    model: str, width: int, heads: int, layers: int, scale: float, tmp_path: Path
) -> None:
    config = read(tmp_path, model)

    attention, recurrent = Attention(0, window=2048), RgLru(width, heads, 4)
    assert [layer.mixer for layer in config.layers] == ([recurrent, recurrent, attention] * layers)[:layers]
    assert {layer.feed_forward for layer in config.layers} == {FeedForward(3 * width, "gelu_tanh", bias=True)}
    assert (config.kv_heads, config.head_dim, 2 * len(config.ropes[0].inv_freq)) == (1, 256, 128)
    assert (config.norm_plus_one, config.tied_head, config.qkv_bias, config.o_bias) == (True, True, False, True)
    # sqrt(2560) is 50.596, which bfloat16 rounds to 50.5
    assert (config.embedding_scale, config.logits_softcap, config.max_positions) == (scale, 30.0, 131072)


def test_the_parameters_are_those_of_the_published_models(tmp_path: Path) -> None:
    counts = []
    for model in ("recurrentgemma-2b", "recurrentgemma-9b"):
        config = read(tmp_path, model)
        counts.append(sum(math.prod(part.shape) for part in parts(config, {"model.embed_tokens.weight"})))

    assert counts == [2_682_862_080, 8_579_977_216]


def test_each_head_has_a_matrix_for_either_gate_which_is_never_quantized(tmp_path: Path) -> None:
    config = read(tmp_path, "recurrentgemma-2b")

    specs = {spec.name: spec for spec in matrices(config)}
    gate = specs["layers.0.lru_input_gate"]
    assert (gate.experts, gate.active, gate.rows, gate.k, gate.bias) == (10, 10, 256, 256, True)
    formats = uniform_formats(config, WeightFormat("int4", 32))
    floats = [name for name in specs if name.startswith("layers.0.") and not formats[name].is_quantized]
    assert floats == ["layers.0.lru_input_gate", "layers.0.lru_recurrence_gate"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_types": ["recurrent", "mamba"]}, "block_types = .*it should be a list of recurrent and attention"),
        ({"block_types": "recurrent"}, "block_types = .*it should be a list of recurrent and attention"),
        ({"lru_width": 2561}, r"lru_width = 2561; it should be a multiple of num_attention_heads \(10\)"),
        ({"conv1d_width": 1}, "conv1d_width = 1; it should be 2 to 64"),
        ({"attention_window_size": 0}, "attention_window_size = 0; it should be 1 to 2147483647"),
        ({"hidden_activation": "silu"}, 'hidden_activation = "silu"; it should be gelu_pytorch_tanh, the activation'),
        ({"intermediate_size": 1}, "intermediate_size = 1; it should be 2 to 1048576"),
        ({"logits_soft_cap": -1.0}, "logits_soft_cap = -1.0; it should be more than 0"),
        ({"embeddings_scale_by_sqrt_dim": False}, "embeddings_scale_by_sqrt_dim = false; it should be true"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "recurrentgemma-2b", **changes)
