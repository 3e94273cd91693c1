"""Published config.json files with Mamba2 become the right layers; what can't be computed is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.test_families import read

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, Experts, FeedForward, Mamba2


def test_granite_h_has_mamba2_in_all_layers_but_four_which_have_no_positions(tmp_path: Path) -> None:
    layers = read(tmp_path, "granite-4.0-h-tiny").layers

    assert [i for i, layer in enumerate(layers) if layer.mixer == Attention(None)] == [5, 15, 25, 35]
    assert layers[0].mixer == Mamba2(heads=48, groups=1, head_dim=64, state_dim=128, taps=4)
    shared = FeedForward(1024)
    assert {layer.feed_forward for layer in layers} == {Experts(512, 64, 6, score="softmax_chosen", shared=shared)}
    assert read(tmp_path, "granite-4.0-h-micro").layers[0].feed_forward == FeedForward(8192)


def test_bamba_attends_in_the_layers_that_it_lists(tmp_path: Path) -> None:
    layers = read(tmp_path, "Bamba-9B-v2").layers

    assert [i for i, layer in enumerate(layers) if layer.mixer == Attention(0)] == [9, 18, 27]
    with pytest.raises(ConfigError, match="attn_layer_indices = 9; it should be a list of numbers"):
        read(tmp_path, "Bamba-9B-v2", attn_layer_indices=9)


@pytest.mark.parametrize(
    ("limit", "bounds"),
    [(None, (0, math.inf)), ([0.01, {"__float__": "Infinity"}], (0.01, math.inf)), ([0, 2], (0, 2))],
)
def test_steps_of_mamba2_have_the_bounds_of_the_file(limit: Any, bounds: tuple[float, float], tmp_path: Path) -> None:
    mixer = read(tmp_path, "granite-4.0-h-micro", time_step_limit=limit).layers[0].mixer

    assert isinstance(mixer, Mamba2)
    assert (mixer.dt_least, mixer.dt_most) == bounds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_n_heads": 47}, "mamba_n_heads = 47; it should be a divisor of mamba_expand"),
        ({"mamba_d_head": 32}, "mamba_d_head = 32; it should be mamba_expand"),
        ({"mamba_n_groups": 5}, "mamba_n_groups = 5; it should be a divisor of mamba_n_heads"),
        ({"mamba_d_conv": 1}, "mamba_d_conv = 1; it should be 2 to 64"),
        ({"mamba_d_state": 0}, "mamba_d_state = 0; it should be 1 to 4096"),
        ({"hidden_act": "gelu"}, "it should be silu, the activation of Mamba2's convolution"),
        ({"time_step_limit": [2, 1]}, "it should be two numbers"),
        ({"time_step_limit": "no"}, "it should be two numbers"),
        ({"layer_types": ["mamba"] * 39 + ["conv"]}, "it should be a list of 40 times mamba or attention"),
        ({"num_local_experts": 1}, "num_local_experts = 1; it should be 0, or 2 to 4096"),
        ({"num_experts_per_tok": 65}, "num_experts_per_tok = 65; it should be 1 to num_local_experts"),
        ({"normalization_function": "layernorm"}, "normalization_function = .*rmsnorm"),
    ],
)
def test_what_granite_h_does_not_compute_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "granite-4.0-h-tiny", **changes)
