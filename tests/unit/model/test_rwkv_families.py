"""Published config.json files of RWKV-7 become the right layers; wrong values are named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.test_families import folder_of

from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import FeedForward, ModelConfig
from forearm.model.families.families import read_config
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.families.recurrent.time_mixing import Rwkv7

# fla-hub/rwkv7-1.5B-world
_WORLD: dict[str, Any] = {
    "a_low_rank_dim": 96, "architectures": ["RWKV7ForCausalLM"], "attn": None, "attn_mode": "chunk", "bos_token_id": 0,
    "decay_low_rank_dim": 96, "eos_token_id": 0, "fuse_cross_entropy": True, "fuse_norm": False,
    "gate_low_rank_dim": 256, "head_dim": 64, "hidden_act": "sqrelu", "hidden_ratio": 4.0, "hidden_size": 2048,
    "initializer_range": 0.006, "intermediate_size": 8192, "max_position_embeddings": 2048, "model_type": "rwkv7",
    "norm_bias": True, "norm_eps": 1e-05, "norm_first": True, "num_heads": 32, "num_hidden_layers": 24,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "v_low_rank_dim": 64,
    "vocab_size": 65536,
}  # fmt: skip


def read(tmp_path: Path, **changes: Any) -> ModelConfig:
    return read_config(folder_of(tmp_path, _WORLD | changes))


def test_every_layer_mixes_with_the_token_before_in_both_halves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read(tmp_path)

    first, others = (Rwkv7(32, 64, 96, 96, few, 256, 64e-5) for few in (0, 64))
    assert [layer.mixer for layer in config.layers] == [first] + [others] * 23
    assert {layer.feed_forward for layer in config.layers} == {
        FeedForward(8192, "relu_squared", gated=False, shifted=True)
    }
    assert (config.layer_norm, config.norm_bias, config.embed_norm, config.norm_eps) == (True, True, True, 1e-5)
    assert (config.has_states, config.layers_stand_alone, config.ropes) == (True, False, ())
    assert config.max_positions == 1 << 20
    assert not caplog.records


def test_the_parameters_are_those_of_the_paper(tmp_path: Path) -> None:
    """Peng et al. 2025, arXiv:2503.14456: without the first layer's pair of values, which nothing uses."""
    found = {}
    for name, layers, hidden, ranks in (
        ("0.1B", 12, 768, (64, 64, 32, 128)), ("0.4B", 24, 1024, (64, 64, 32, 128)),
        ("1.5B", 24, 2048, (96, 96, 64, 256)), ("2.9B", 32, 2560, (96, 96, 64, 320)),
    ):  # fmt: skip
        few = dict(zip(("decay", "a", "v", "gate"), ranks, strict=True))
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": None, "num_heads": None}
        config = read(tmp_path, **sizes, **{f"{part}_low_rank_dim": rank for part, rank in few.items()})
        found[name] = sum(math.prod(part.shape) for part in parts(config, {"model.embeddings.weight"}))

    assert found == {"0.1B": 191_034_624, "0.4B": 450_767_872, "1.5B": 1_527_404_544, "2.9B": 2_947_735_040}


def test_pairs_of_few_numbers_are_never_quantized(tmp_path: Path) -> None:
    config = read(tmp_path)

    specs = {spec.name: spec for spec in matrices(config)}
    formats = uniform_formats(config, WeightFormat("int4", 32))
    floats = [name for name in specs if name.startswith("layers.1.") and not formats[name].is_quantized]
    assert floats == [f"layers.1.rwkv_{name}_{end}" for name in "wavg" for end in ("down", "up")]
    assert [name for name in floats if specs[name].bias] == [f"layers.1.rwkv_{name}_up" for name in "wav"]
    assert not any(name.startswith("layers.0.rwkv_v_") for name in specs)


def test_a_head_has_the_numbers_that_num_heads_gives_if_head_dim_is_null(tmp_path: Path) -> None:
    first = read(tmp_path, head_dim=None, num_heads=16).layers[0].mixer

    assert first == Rwkv7(16, 128, 96, 96, 0, 256, 128e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 60}, r"head_dim = 60; it should be 1 to 4096, and a divisor of hidden_size \(2048\)"),
        ({"hidden_act": "relu"}, 'hidden_act = "relu"; it should be sqrelu, the activation of RWKV'),
        ({"value_dim": [4096] * 24}, "value_dim = .*it should be 2048, as hidden_size, in all 24 layers"),
        ({"attn": {"layers": [3]}}, "attn = .*it should be null: layers of attention"),
        ({"v_low_rank_dim": 0}, "v_low_rank_dim = 0; it should be 1 to 1048576"),
        (
            {"intermediate_size": None, "hidden_ratio": 1e9},
            "hidden_ratio = 1000000000.0; it should be so that a feed-forward has",
        ),
        ({"norm_eps": -1.0}, "norm_eps = -1.0; it should be more than 0"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, **changes)
