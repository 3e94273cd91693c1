"""Checkpoints of the cases of cases.py, made by transformers' own classes with random weights."""

from __future__ import annotations

import atexit
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree

import torch
import transformers
from tests.model.cases import Case
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedModel

# When transformers 5.23 writes these in their original format, it renames the text's layers like those of images, and
# the norm of DeepSeek V4's keys like that of entries, and gates of Hy4's feed-forwards like those of its attention.
_WRITTEN_AS_COMPUTED = ("Kimi_K25Config", "QianfanOCRConfig", "DeepseekV4Config", "HYV4Config")
# A case is made once in a process, however many tests take it.
_MADE: dict[str, tuple[Path, PreTrainedModel]] = {}


def make(case: Case, folder: Path) -> PreTrainedModel:
    """Write the case's model into `folder`; return what transformers reads from there, in float32.

    The model is a copy: some tests give it other weights.
    """
    key = repr(replace(case, name="", prompt=0, greedy=0, max_model_len=None))
    if key not in _MADE:
        kept = _kept() / str(len(_MADE))
        _MADE[key] = kept, _made(case, kept)
    kept, model = _MADE[key]
    copytree(kept, folder, dirs_exist_ok=True)
    return deepcopy(model)


@cache
def _kept() -> Path:
    """Return a folder that lives as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="forearm-cases-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _made(case: Case, folder: Path) -> PreTrainedModel:
    """Make a model, save it in `folder` and read it from there.

    Norms are moved from one and biases from zero, where transformers' own initialization leaves them: a norm or bias
    left out would not show.
    """
    torch.manual_seed(case.seed)
    config = case.make_config()
    outer = transformers.AutoModelForSeq2SeqLM if "Flamingo" in case.config else AutoModelForMultimodalLM
    auto = outer if "text_config" in case.settings else AutoModelForCausalLM
    # transformers 5.23 adds Falcon's ALiBi twice in its eager attention, and once by default.
    attends = "sdpa" if case.settings.get("alibi") else "eager"
    model = auto.from_config(config, attn_implementation=attends, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomize(name, parameter)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar", "balancing_biases")):
                randomize(name, buffer)
            if name.endswith("balancing_biases"):
                buffer[-1] = -1.0  # what transformers 5.23 makes of it whenever it reads a checkpoint
            if name.endswith("tid2eid"):
                count = config.n_routed_experts
                buffer.copy_(torch.stack([torch.randperm(count)[: buffer.shape[1]] for _ in buffer]))
    model.to(getattr(torch, case.dtype)).save_pretrained(
        folder, max_shard_size=case.shard, save_original_format=case.config not in _WRITTEN_AS_COMPUTED
    )
    read: PreTrainedModel = auto.from_pretrained(folder, attn_implementation=attends, dtype=torch.float32).eval()
    return read


def randomize(name: str, parameter: torch.Tensor) -> None:
    """Fill a parameter with random numbers of a size that keeps rows near one."""
    if name.endswith("bias"):
        parameter.normal_(0, 0.3)
    elif parameter.dim() == 1:
        parameter.add_(torch.randn_like(parameter) * 0.3)
    elif "_adapter_list" in name:  # products of two matrices, which add to a third
        parameter.normal_(0, 0.7 / parameter.shape[1] ** 0.5)
    elif "embed" in name:
        parameter.normal_(0, 1.0)
    else:
        parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
