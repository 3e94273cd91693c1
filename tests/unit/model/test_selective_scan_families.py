"""Published config.json files of Mamba, Falcon-Mamba and Jamba become the right layers; wrong values are named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.test_families import read

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, Experts, FeedForward, Layer, ModelConfig
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import SelectiveScan


def parameters(config: ModelConfig) -> int:
    return sum(math.prod(part.shape) for part in parts(config, {f"backbone.{config.names['embed']}.weight"}))


def test_a_layer_of_mamba_is_a_selective_scan_alone(tmp_path: Path) -> None:
    config = read(tmp_path, "mamba-2.8b-hf")

    assert config.layers == (Layer(SelectiveScan(inner=5120, state_dim=16, dt_rank=160, taps=4), None),) * 64
    assert (config.max_positions, config.tied_head, config.norm_eps) == (131072, True, 1e-5)
    assert parameters(config) == 2_768_345_600


def test_falcon_mamba_normalizes_without_weights_and_has_a_width_that_expand_does_not_say(tmp_path: Path) -> None:
    config = read(tmp_path, "falcon-mamba-7b")

    assert config.layers == (Layer(SelectiveScan(8192, 16, 256, 4, norm_eps=1e-6), None),) * 64
    assert not config.tied_head
    assert parameters(config) == 7_272_665_088
    rows = {spec.name: [part.rows for part in spec.parts] for spec in matrices(config) if "layers.0." in spec.name}
    assert rows == {
        "layers.0.scan_in": [8192, 8192], "layers.0.scan_select": [256, 16, 16], "layers.0.scan_dt": [8192],
        "layers.0.scan_out": [4096],
    }  # fmt: skip


def test_jamba_attends_in_one_of_eight_layers_and_has_experts_in_one_of_two(tmp_path: Path) -> None:
    config = read(tmp_path, "Jamba-v0.1")

    scan = SelectiveScan(8192, 16, 256, 4, norm_eps=1e-6, norm_weights=True)
    attends = [layer.mixer == Attention(None) for layer in config.layers]
    assert [i for i, one in enumerate(attends) if one] == [4, 12, 20, 28]
    assert {layer.mixer for layer, one in zip(config.layers, attends, strict=True) if not one} == {scan}
    assert [layer.feed_forward for layer in config.layers] == [FeedForward(14336), Experts(14336, 16, 2)] * 16
    assert (config.ropes, config.has_states, config.max_positions) == ((), True, 262144)


def test_a_jamba_with_one_expert_has_plain_feed_forwards(tmp_path: Path) -> None:
    config = read(tmp_path, "Jamba-v0.1", num_experts=1)

    assert {layer.feed_forward for layer in config.layers} == {FeedForward(14336)}


def test_a_rank_is_a_sixteenth_of_the_width_unless_it_is_given(tmp_path: Path) -> None:
    for rank, wanted in (("auto", 161), (None, 161), (7, 7)):
        mixer = read(tmp_path, "mamba-2.8b-hf", hidden_size=2561, time_step_rank=rank).layers[0].mixer

        assert isinstance(mixer, SelectiveScan)
        assert mixer.dt_rank == wanted


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("mamba-2.8b-hf", {"hidden_act": "gelu"}, "hidden_act = .*silu, the activation of Mamba's convolution"),
        ("mamba-2.8b-hf", {"intermediate_size": 0}, "intermediate_size = 0; it should be 1 to 1048576"),
        ("mamba-2.8b-hf", {"time_step_rank": "some"}, 'time_step_rank = "some"; it should be a whole number'),
        ("falcon-mamba-7b", {"state_size": 0}, "state_size = 0; it should be 1 to 4096"),
        ("falcon-mamba-7b", {"mixer_rms_eps": 0.0}, "mixer_rms_eps = 0.0; it should be more than 0"),
        ("Jamba-v0.1", {"attn_layer_offset": 8}, r"attn_layer_offset = 8; it should be 0 to less than .*period \(8\)"),
        ("Jamba-v0.1", {"expert_layer_period": 0}, "expert_layer_offset = 1; it should be 0 to less than"),
        ("Jamba-v0.1", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms = false; it should be true"),
        ("Jamba-v0.1", {"num_experts_per_tok": 17}, r"num_experts_per_tok = 17; it should be 1 to num_experts \(16\)"),
        ("Jamba-v0.1", {"sliding_window": 512}, "sliding_window = 512"),
    ],
)
def test_what_is_not_computed_is_refused(model: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, model, **changes)
