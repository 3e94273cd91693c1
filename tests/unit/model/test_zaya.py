"""config.json of ZAYA1: the sizes that transformers gives it, both forms of its angles, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.model.test_families import folder_of
from transformers import AutoModelForCausalLM, ZayaConfig

from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, Experts
from forearm.model.families.families import read_config
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.families.recurrences import ConvolvedHeads, RouterMlp

# The defaults of transformers' class are the sizes of Zyphra/ZAYA1-8B.
_ZAYA1: dict[str, Any] = {
    **json.loads(ZayaConfig().to_json_string()), "architectures": ["ZayaForCausalLM"], "dtype": "bfloat16",
}  # fmt: skip


def test_every_layer_has_convolved_heads_and_experts_that_an_mlp_chooses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read_config(folder_of(tmp_path, _ZAYA1))

    assert not caplog.records
    assert len(config.layers) == 40
    assert {layer.mixer for layer in config.layers} == {Attention(0, convolved=ConvolvedHeads(2, 2))}
    experts = [layer.feed_forward for layer in config.layers]
    assert experts == [
        Experts(2048, 16, 1, correction=True, zeros=1, skips=True, router=RouterMlp(256, follows=i > 0))
        for i in range(40)
    ]
    assert (config.merges, config.tied_head, config.has_states, config.layers_stand_alone) == (True, True, True, False)
    assert [len(one.inv_freq) for one in config.ropes] == [32]


def test_every_tensor_is_where_transformers_has_it(tmp_path: Path) -> None:
    small = _ZAYA1 | {"num_hidden_layers": 2, "layer_types": ["hybrid"] * 2}
    config = read_config(folder_of(tmp_path, small))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(ZayaConfig(**small)).state_dict()
    del theirs["lm_head.weight"]

    found: dict[str, int] = {}
    for part in parts(config, theirs):
        found[part.stored] = found.get(part.stored, 0) + math.prod(part.shape)

    assert found == {name: tensor.numel() for name, tensor in theirs.items()}


def test_the_parameters_are_those_of_a_model_of_8_billion(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _ZAYA1))

    names = {"model.embed_tokens.weight", "model.layers.0.mlp.experts.gate_up_proj"}
    assert sum(math.prod(part.shape) for part in parts(config, names)) == 8_840_489_464


def test_what_chooses_experts_and_convolves_heads_is_never_quantized(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _ZAYA1))

    specs = {spec.name: spec for spec in matrices(config)}
    heads = specs["layers.0.conv_heads"]
    assert (heads.experts, heads.rows, heads.k, heads.bias) == (10, 128, 256, True)
    formats = uniform_formats(config, WeightFormat("int4", 32))
    floats = [name for name in specs if name.startswith("layers.1.") and not formats[name].is_quantized]
    assert floats == [
        f"layers.1.{name}" for name in ("conv_heads", "router_down", "router_first", "router_second", "router")
    ]


def test_a_rope_type_beside_the_angles_of_layers_is_left_out(tmp_path: Path) -> None:
    published = _ZAYA1 | {"rope_parameters": {**_ZAYA1["rope_parameters"], "rope_type": "default"}}

    config = read_config(folder_of(tmp_path, published))

    assert config.ropes[0].inv_freq[1] == pytest.approx(5e6 ** (-2 / 64))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cca_time0": 1}, "cca_time0 = 1; it should be 2 to 64"),
        ({"cca_time1": 65}, "cca_time1 = 65; it should be 2 to 64"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok = 2; it should be 1: a token has one expert"),
        ({"num_experts": 1}, "num_experts = 1; it should be 2 to 4096"),
        ({"router_hidden_size": 0}, "router_hidden_size = 0; it should be 1 to 1048576"),
        ({"layer_types": ["hybrid"] * 39}, "a list of 40 times hybrid or hybrid_sliding"),
        ({"layer_types": ["hybrid_sliding"] * 40}, "sliding_window = null; it should be at least 1: some layers are"),
        ({"head_dim": 9, "num_key_value_heads": 1}, "head_dim = 9; it should be even"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, _ZAYA1 | changes))
