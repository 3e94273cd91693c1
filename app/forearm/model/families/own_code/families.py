"""The table of families whose checkpoints have code of their own, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable

from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.own_code import dense, mixtures
from forearm.model.families.recurrent import rwkv

OWN_CODE: dict[str, Callable[[FamilyInputs], ModelConfig]] = {
    "exaone": dense.exaone,
    "internlm2": dense.internlm2,
    "minicpm": dense.minicpm,
    "baichuan": dense.baichuan,
    "qwen": dense.qwen,
    "nemotron-nas": dense.nemotron_nas,
    "deci": dense.nemotron_nas,
    "deepseek": mixtures.deepseek,
    "bailing_moe": mixtures.bailing_moe,
    "bailing_moe_v2": mixtures.bailing_moe,
    "smallthinker": mixtures.smallthinker,
    "rwkv7": rwkv.rwkv7,
}
