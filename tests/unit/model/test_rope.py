"""Inverse frequencies and factors are transformers' own, for every kind of scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from forearm.model.families.keys import Keys
from forearm.model.families.rope import Lengths, position_limit, rope

FACTORS = [1.0 + i / 7 for i in range(32)]
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn, all keys": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 24.0,
        "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.4, "truncate": False,
    },
    "yarn, factor given": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.3,
    },
    "longrope": {
        "rope_type": "longrope", "short_factor": FACTORS[::-1], "long_factor": FACTORS,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip


def ours(settings: dict[str, Any], theta: float, lengths: Lengths) -> tuple[np.ndarray, float]:
    turned = rope(Keys(settings, "config.json"), theta, 64, lengths)
    return turned.inv_freq, turned.scale


@pytest.mark.parametrize("length", [100, 16384, 40000])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_factor_are_those_of_transformers(kind: str, theta: float, length: int) -> None:
    settings = KINDS[kind]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=16384,
        rope_parameters={**settings, "rope_theta": theta},
    )
    if settings["rope_type"] == "default":
        theirs, scale = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        theirs, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, "cpu", seq_len=length)

    original = settings.get("original_max_position_embeddings", 16384)
    inv_freq, factor = ours(settings, theta, Lengths(16384, original, length))

    # Both round to float32 at the same places; their powers may differ in the last bit, and what follows rounds again
    # (the ramps most: a difference of numbers of its own size): at most 8 units in the last place.
    np.testing.assert_allclose(inv_freq, theirs.numpy(), rtol=8 * 2.0**-24, atol=0)
    assert factor == pytest.approx(scale, rel=1e-12)


def test_dynamic_keeps_the_trained_angles_up_to_the_trained_length() -> None:
    trained, _ = ours({"rope_type": "default"}, 1e4, Lengths(2048, 2048, 2048))
    settings = {"type": "dynamic", "factor": 2.0}

    assert (ours(settings, 1e4, Lengths(2048, 2048, 2048))[0] == trained).all()
    assert (ours(settings, 1e4, Lengths(2048, 2048, 2049))[0] < trained)[1:].all()


def test_longrope_chooses_its_list_once_by_the_length_served() -> None:
    short, _ = ours(KINDS["longrope"], 1e4, Lengths(16384, 4096, 4096))
    long, _ = ours(KINDS["longrope"], 1e4, Lengths(16384, 4096, 4097))

    assert short[0] == pytest.approx(1 / FACTORS[-1])
    assert long[0] == 1.0


def test_early_phi_3_files_call_longrope_su_or_yarn() -> None:
    lengths = Lengths(16384, 4096, 16384)
    settings = {k: v for k, v in KINDS["longrope"].items() if k != "rope_type"}

    for name in ("su", "yarn"):
        assert (ours(settings | {"type": name}, 1e4, lengths)[0] == ours(KINDS["longrope"], 1e4, lengths)[0]).all()


def test_scaling_decides_how_long_a_context_may_be() -> None:
    lengths = Lengths(max_positions=4096, original=4096, max_model_len=4096)

    def limit(**settings: Any) -> tuple[int, int]:
        return position_limit(Keys(settings, "config.json"), lengths)

    assert limit() == (4096, 4096)
    assert limit(type="linear", factor=2.0) == (4096, 8192)
    assert limit(type="dynamic", factor=2.0) == (4096, 8192)
    assert limit(rope_type="yarn", factor=4.0) == (16384, 16384)
