"""The config of a pooling model with its layers after pooling, and their tensors with the checkpoint's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import StoredTensor, read_tensors, read_torch
from forearm.model.families.config import ModelConfig
from forearm.model.families.encoders.dense import Dense
from forearm.model.families.keys import read_json
from forearm.model.gguf.gguf import is_gguf, read_gguf
from forearm.model.pooling.adapters import with_adapter
from forearm.model.pooling.plan import PoolingPlan
from forearm.model.pooling.task_types import with_task


def with_pooling(
    folder: Path, config: ModelConfig, tensors: dict[str, StoredTensor], plan: PoolingPlan
) -> tuple[ModelConfig, dict[str, StoredTensor]]:
    """Return the config that computes the plan, and all tensors by the names that the config has for them.

    Raises: ConfigError naming what is missing.
    """
    dense = plan.dense
    if plan.from_tokens:
        words, vocabulary = plan.from_tokens, _vocabulary(folder)
        ids = [one for word in words if isinstance(one := vocabulary.get(word), int)]
        if len(words) != 2 or len(ids) != 2 or ids[0] >= ids[1]:
            raise ConfigError(
                f"{folder}: classifier_from_token is {list(words)}; it must name two tokens of the vocabulary, the one "
                "for no first and with the lower id"
            )
        dense = (Dense(2, "", bias=False, rows=tuple(ids)),)
    # The first BERT checkpoints call weight and bias of a LayerNorm gamma and beta.
    tensors = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in with_adapter(tensors, plan.adapter).items()
    }
    if tasks := config.names.get("task_types"):
        tensors = with_task(tensors, config.names["types"], tasks)
    for index, at in plan.dense_folders.items():
        for name, tensor in read_tensors(at).items():
            stored = f"{plan.dense[index].stored}.{name.rpartition('.')[2]}"
            tensors[stored] = replace(tensor, name=stored)
    for head in plan.token_heads.values():
        dense += (head.dense,)
        for name, tensor in read_torch(head.file).items():
            stored = f"{head.dense.stored}.{name}"
            tensors[stored] = replace(tensor, name=stored)
    return replace(config, pooled=True, tied_head=True, head_bias=False, head_dense=None, dense=dense), tensors


def _vocabulary(folder: Path) -> dict[str, Any]:
    """Return the id of each token of a model folder or .gguf file."""
    if is_gguf(folder):
        tokens = read_gguf(folder, merges=False).metadata.get("tokenizer.ggml.tokens")
        return {token: i for i, token in enumerate(tokens)} if isinstance(tokens, list) else {}
    keys = read_json(folder / "tokenizer.json")
    vocabulary = (keys.object("model") or keys).get("vocab")
    return vocabulary if isinstance(vocabulary, dict) else {}


def pooled_columns(config: ModelConfig) -> int:
    """Return the number of values of a text's vector or scores."""
    outputs = [dense.outputs for dense in config.dense if dense.head == 0]
    return outputs[-1] if outputs else config.hidden
