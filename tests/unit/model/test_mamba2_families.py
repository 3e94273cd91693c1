"""Published config.json files with Mamba2 become the right layers; what can't be computed is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.test_families import read

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.families.config import Attention, Experts, FeedForward, Layer
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import Mamba2
from forearm.model.pooling.adapters import with_calls


def test_granite_h_has_mamba2_in_all_layers_but_four_which_have_no_positions(tmp_path: Path) -> None:
    layers = read(tmp_path, "granite-4.0-h-tiny").layers

    assert [i for i, layer in enumerate(layers) if layer.mixer == Attention(None)] == [5, 15, 25, 35]
    assert layers[0].mixer == Mamba2(heads=48, groups=1, head_dim=64, state_dim=128, taps=4)
    shared = FeedForward(1024)
    assert {layer.feed_forward for layer in layers} == {Experts(512, 64, 6, score="softmax_chosen", shared=shared)}
    assert read(tmp_path, "granite-4.0-h-micro").layers[0].feed_forward == FeedForward(8192)


def test_zamba_calls_two_blocks_in_turn_beside_the_residual(tmp_path: Path) -> None:
    config = read(tmp_path, "Zamba2-7B")

    calls = [i for i, layer in enumerate(config.layers) if layer.aside]
    assert (len(config.layers), len(calls), calls[:3]) == (94, 13, [6, 12, 19])
    assert config.layers[6] == Layer(Attention(0), FeedForward(14336, "gelu_erf"), aside=True)
    assert {layer.mixer for i, layer in enumerate(config.layers) if i not in calls} == {Mamba2(112, 2, 64, 64, 4)}
    assert (config.head_dim, config.attention_scale, config.tied_head) == (224, 112**-0.5, True)
    specs = {spec.name: spec for spec in matrices(config)}
    assert (specs["layers.6.qkv"].k, specs["layers.12.o"].k, specs[f"layers.{calls[-1]}.side"].k) == (7168, 7168, 3584)
    assert "layers.19.qkv" not in specs
    assert (config.shared["layers.19.qkv"], config.shared["layers.26.down"]) == ("layers.6.qkv", "layers.12.down")
    with pytest.raises(ConfigError, match="use_shared_attention_adapter = true; it should be false where num_key"):
        read(tmp_path, "Zamba2-7B", use_shared_attention_adapter=True, num_key_value_heads=8)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"0": [2, 6], "1": [8, 2]}, r"1\.weight needs .*0\.weight and .*gate_up_proj\.weight"),
        ({"": [8, 6], "1": [8, 2]}, r"1\.weight needs .*0\.weight and .*gate_up_proj\.weight"),
        ({"": [8, 6], "0": [2, 6], "1": [7, 2]}, r"are \[7, 2\] and \[2, 6\]; .*gate_up_proj\.weight is \[8, 6\]"),
        ({"": [8, 6], "0": [2, 5], "1": [8, 2]}, r"are \[8, 2\] and \[2, 5\]; .*gate_up_proj\.weight is \[8, 6\]"),
        ({"": [8, 6], "0": [3, 6], "1": [8, 2]}, r"are \[8, 2\] and \[3, 6\]; .*gate_up_proj\.weight is \[8, 6\]"),
    ],
    ids=str,
)
def test_an_adapter_that_does_not_fit_its_block_is_refused(shapes: dict[str, list[int]], said: str) -> None:
    module = "layers.3.shared_transformer.feed_forward.gate_up_proj"
    names = {part: f"{module}_adapter_list.4.{part}.weight" if part else f"{module}.weight" for part in shapes}
    tensors = {
        names[part]: StoredTensor(names[part], Path("a.safetensors"), "F32", tuple(shape), 0, 0)
        for part, shape in shapes.items()
    }

    with pytest.raises(ConfigError, match=said):
        with_calls(tensors)


def test_bamba_attends_in_the_layers_that_it_lists(tmp_path: Path) -> None:
    layers = read(tmp_path, "Bamba-9B-v2").layers

    assert [i for i, layer in enumerate(layers) if layer.mixer == Attention(0)] == [9, 18, 27]
    with pytest.raises(ConfigError, match="attn_layer_indices = 9; it should be a list of numbers"):
        read(tmp_path, "Bamba-9B-v2", attn_layer_indices=9)


def test_falcon_h1_has_mamba2_beside_attention_in_every_layer(tmp_path: Path) -> None:
    config = read(tmp_path, "Falcon-H1-0.5B-Instruct", key_multiplier=0.5, attention_in_multiplier=3.0)

    assert config.attention_scale == 64**-0.5 * 9 * 0.5
    assert {layer.mixer for layer in config.layers} == {Attention(0, out_scale=3 * 0.9375)}
    (own,) = {layer.beside for layer in config.layers}
    scales = [1.25 * one for one in (0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738)]
    assert own == Mamba2(24, 1, 64, 128, 4, True, False, 0.0, math.inf, False, True, *scales, 0.23570226039551587)
    assert config.layers[0].feed_forward == FeedForward(2048, gate_scale=0.8838834764831844, out_scale=0.5859375)
    for key in ("projectors_bias", "mamba_proj_bias"):
        with pytest.raises(ConfigError, match=f"{key} = true; it should be false"):
            read(tmp_path, "Falcon-H1-0.5B-Instruct", **{key: True})


def test_mamba2_alone_has_no_other_half(tmp_path: Path) -> None:
    config = read(tmp_path, "Mamba-Codestral-7B-v0.1")

    assert config.layers == (Layer(Mamba2(heads=128, groups=8, head_dim=64, state_dim=128, taps=4), None),) * 64
    assert config.max_positions == 131072


def test_a_layer_of_nemotron_h_has_one_half(tmp_path: Path) -> None:
    layers = read(tmp_path, "Nemotron-H-8B-Base-8K").layers

    own = Mamba2(heads=128, groups=8, head_dim=64, state_dim=128, taps=4)
    kinds = {own: "M", Attention(None): "*", None: "-"}
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    assert "".join(kinds[layer.mixer] for layer in layers) == pattern
    plain = FeedForward(21504, "relu_squared", gated=False)
    assert [layer.feed_forward for layer in layers] == [plain if kind == "-" else None for kind in pattern]


def test_nemotron_h_may_have_experts(tmp_path: Path) -> None:
    sizes = {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856}
    more = {"moe_shared_expert_intermediate_size": 3712, "routed_scaling_factor": 2.5, "head_dim": 128}
    layers = read(
        tmp_path, "Nemotron-H-8B-Base-8K", hybrid_override_pattern="ME*E", num_hidden_layers=4, **sizes, **more
    ).layers

    experts = Experts(
        1856, 128, 6, "relu_squared", gated=False, score="sigmoid", correction=True, groups=1, groups_kept=1,
        renormalized=True, sum_epsilon=1e-20, scale=2.5, shared=FeedForward(3712, "relu_squared", gated=False),
    )  # fmt: skip
    assert [layer.feed_forward for layer in layers] == [None, experts, None, experts]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_override_pattern": "M-M"}, "hybrid_override_pattern = .*the kind of each of num_hidden_layers"),
        ({"hybrid_override_pattern": "M" * 51 + "X"}, "hybrid_override_pattern = .*the kind of each"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern = null.*the kind of each"),
        ({"n_groups": 3}, "n_groups = 3; it should be a divisor of mamba_num_heads"),
        ({"ssm_state_size": 5000}, "ssm_state_size = 5000; it should be 1 to 4096"),
        ({"attention_bias": True}, "attention_bias = true"),
        ({"hybrid_override_pattern": "E" * 52, "moe_latent_size": 64}, "moe_latent_size = 64; it should be null"),
        ({"hybrid_override_pattern": "E" * 52, "n_shared_experts": 2}, "n_shared_experts = 2; it should be 1"),
        ({"hybrid_override_pattern": "E" * 52, "n_routed_experts": 1}, "n_routed_experts = 1; it should be 2 to 4096"),
    ],
)
def test_what_nemotron_h_does_not_compute_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "Nemotron-H-8B-Base-8K", **changes)


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
        ({"mamba_n_heads": 47}, "mamba_n_heads = 47; it should be a divisor of the width of all heads"),
        ({"mamba_d_head": 32}, "mamba_d_head = 32; it should be the width of all heads"),
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
