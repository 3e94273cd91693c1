"""Encoders whose config.json leaves keys out have transformers' defaults, and wrong values are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.model.published_encoders_further import FURTHER
from transformers import CONFIG_MAPPING

from forearm.errors import ConfigError
from forearm.model.families.config import ModelConfig
from forearm.model.families.families import read_config
from forearm.model.pooling.encoder_types import OTHER_ENCODERS, is_encoder
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan

_SIZES = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_ASKED = {  # without which transformers' classes compute no model of this kind
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
}
_TYPES = sorted({one["model_type"] for one in FURTHER.values()})


def read(folder: Path, values: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "float32", **values}))
    return read_config(folder, pooled=True)


@pytest.mark.parametrize("model_type", _TYPES)
def test_absent_keys_have_the_defaults_of_transformers(model_type: str, tmp_path: Path) -> None:
    asked = _ASKED.get(model_type, {})
    whole = {**CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type, **asked}
    sizes = {key: whole[key] for key in _SIZES}

    found, wanted = (read(tmp_path, one) for one in (sizes | asked, {**whole, "torch_dtype": "float32"}))

    for own, theirs in zip(found.ropes, wanted.ropes, strict=True):
        np.testing.assert_array_equal(own.inv_freq, theirs.inv_freq)
    ids = {"eos_token_ids": (), "bos_token_id": None, "ropes": ()}
    assert replace(found, **ids) == replace(wanted, **ids)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("sentence-camembert-base", {"pad_token_id": -1}, "pad_token_id = -1"),
        ("sentence-camembert-base", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("electra-small-discriminator", {"embedding_size": 0}, "embedding_size = 0"),
        ("electra-small-discriminator", {"embedding_size": 1 << 40}, "embedding_size = 1099511627776"),
        ("rembert", {"input_embedding_size": -3}, "input_embedding_size = -3"),
        ("paraphrase-albert-small-v2", {"num_hidden_groups": 0}, "num_hidden_groups = 0"),
        ("paraphrase-albert-small-v2", {"num_hidden_groups": 7}, "num_hidden_groups = 7"),
        ("paraphrase-albert-small-v2", {"inner_group_num": 1 << 40}, "inner_group_num = 1099511627776"),
        ("paraphrase-albert-small-v2", {"inner_group_num": 0}, "inner_group_num = 0"),
        ("ernie-3.0-base-zh", {"type_vocab_size": 0}, "type_vocab_size = 0"),
        ("ernie-3.0-base-zh", {"use_task_id": 1}, "use_task_id = 1"),
        ("xlm-roberta-xl", {"pad_token_id": 5000}, "pad_token_id = 5000"),
        ("esm2_t6_8M_UR50D", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "relative_key"'),
        ("esm2_t6_8M_UR50D", {"mask_token_id": 33}, "mask_token_id = 33"),
        ("esm2_t6_8M_UR50D", {"mask_token_id": None}, "mask_token_id"),
        ("esm2_t6_8M_UR50D", {"is_folding_model": True}, "is_folding_model = true"),
        ("EuroBERT-210m", {"rope_scaling": {"rope_type": "yarn", "factor": -1.0}}, "factor"),
        ("EuroBERT-210m", {"hidden_act": "mish"}, 'hidden_act = "mish"'),
        ("megatron-bert-uncased-345m", {"is_decoder": True}, "is_decoder = true"),
        ("deberta-base-mnli", {"relative_attention": False}, "relative_attention = false"),
        ("deberta-base-mnli", {"pos_att_type": ["c2p"]}, "pos_att_type"),
        ("deberta-base-mnli", {"talking_head": True}, "talking_head = true"),
        ("deberta-base-mnli", {"embedding_size": 128}, "embedding_size = 128"),
        ("deberta-base-mnli", {"max_relative_positions": 1 << 20}, "max_relative_positions = 1048576"),
    ],
)
def test_a_value_that_is_not_computed_is_refused_with_its_key(
    name: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, FURTHER[name] | changes)

    assert named in str(caught.value)


@pytest.mark.parametrize("model_type", ["esm", "distilbert", "mpnet"])
def test_a_model_without_types_of_tokens_has_none_whatever_its_config_says(model_type: str, tmp_path: Path) -> None:
    whole = CONFIG_MAPPING[model_type](vocab_size=33, pad_token_id=1).to_dict()

    assert read(tmp_path, whole | {"model_type": model_type, "type_vocab_size": 2}).token_types == 0


@pytest.mark.parametrize("changes", [{"ngpt": True}, {"rope": False}, {"rms_norm": False}, {"hidden_act": "GELU"}])
def test_a_neobert_of_another_shape_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {"model_type": "neobert", "vocab_size": 48, **sizes}
    assert read(tmp_path, own).max_positions == 1024

    with pytest.raises(ConfigError, match=f"{next(iter(changes))} = "):
        read(tmp_path, own | changes)


def test_a_pooling_that_eurobert_does_not_have_is_refused(tmp_path: Path) -> None:
    own = FURTHER["EuroBERT-210m"] | {"architectures": ["EuroBertForSequenceClassification"], "clf_pooling": "max"}
    read(tmp_path, own)

    with pytest.raises(ConfigError, match='clf_pooling = "max"; it should be late or mean or bos'):
        pooling_plan(tmp_path, PoolingAsked())


def test_types_that_became_native_are_encoders_still() -> None:
    assert all(map(is_encoder, _TYPES))
    assert not OTHER_ENCODERS & set(_TYPES)
