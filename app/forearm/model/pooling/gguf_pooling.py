"""The pooling plan of a .gguf file, which its keys and tensors tell.

Source: the converter (convert_hf_to_gguf.py) and build_pooling of ggml-org/llama.cpp.
"""

from __future__ import annotations

import logging
from pathlib import Path

from forearm.errors import ConfigError
from forearm.model.families.encoders.dense import Dense, DenseActivation
from forearm.model.families.keys import Keys
from forearm.model.gguf.gguf import Gguf, read_gguf_file
from forearm.model.gguf.gguf_pooling import ENCODERS, FIRST, LAST, MEAN, RANK, pooling_kind
from forearm.model.pooling.plan import Finish, Pool, PoolingAsked, PoolingPlan

log = logging.getLogger(__name__)

_POOLS: dict[int, Pool] = {MEAN: "mean", FIRST: "cls", LAST: "last"}


def gguf_plan(path: Path, asked: PoolingAsked) -> PoolingPlan | None:
    """Return the plan for a file; None if its model generates text.

    A model without a kind of pooling has vLLM's: the first token for encoders, the last for others. Vectors have unit
    length, as llama.cpp gives them.

    Raises: ConfigError naming the key or flag that asks for a function that the model does not have.
    """
    gguf = read_gguf_file(path, texts=False)
    keys = Keys(gguf.metadata, str(path))
    kind = pooling_kind(keys, asked.runner, asked.convert)
    if kind is None:
        return None
    architecture = keys.text("general.architecture", "")
    usual: Pool = "cls" if architecture in ENCODERS else "last"
    model_type = ENCODERS.get(architecture, architecture)
    if asked.convert == "classify" or (kind == RANK and asked.convert != "embed"):
        if architecture == "qwen3" and "cls.output.weight" not in gguf.tensors:  # the generating Qwen3-Reranker
            words, one = ("no", "yes"), ("LABEL_0",)
            return PoolingPlan(
                "classify", "last", "sigmoid", (), labels=one, model_type="qwen3", from_tokens=words, yes_no=(1, 0)
            )
        return _classifier(gguf, usual, model_type)
    dense = tuple(
        Dense(gguf.tensors[f"{name}.weight"].shape[0], name, bias=f"{name}.bias" in gguf.tensors)
        for name in ("dense_2", "dense_3")  # EmbeddingGemma's; a BERT has one if it is a ColBERT
        if f"{name}.weight" in gguf.tensors
    )
    late = bool(dense) and architecture == "bert"
    pool = _POOLS.get(kind, usual)
    return PoolingPlan("embed", pool, "normalize", dense, model_type=model_type, late_interaction=late)


def _classifier(gguf: Gguf, pool: Pool, model_type: str) -> PoolingPlan:
    """Return the plan of a model with a head for scores. Raises: ConfigError if the file has none."""
    if "cls.output.weight" not in gguf.tensors:
        raise ConfigError(
            f"{gguf.path} has no tensor cls.output.weight, so no classifier; leave out --convert classify, or convert "
            "the model with its head"
        )
    dense: tuple[Dense, ...] = ()
    if model_type == "modernbert" and "cls.weight" in gguf.tensors:
        hidden, bias = gguf.tensors["cls.weight"].shape[0], "cls.bias" in gguf.tensors
        # llama.cpp's kind of pooling for scores is the mean of this architecture's rows, and files name no other.
        pool, dense = "mean", (Dense(hidden, "cls", bias, "gelu_erf", "cls.norm"),)
    elif "cls.weight" in gguf.tensors:  # DistilBERT's has ReLU, and the model no types of tokens
        tanh = "token_types.weight" in gguf.tensors or model_type == "neobert"
        act: DenseActivation = "tanh" if tanh else "relu"
        dense = (Dense(gguf.tensors["cls.weight"].shape[0], "cls", activation=act),)
    elif model_type == "bert":
        log.warning(
            "%s: it has no BERT pooler before its classifier, since llama.cpp's converter leaves it out: its scores "
            "are not the model's; serve the model's own folder",
            gguf.path,
        )
    count = gguf.tensors["cls.output.weight"].shape[0]
    dense += (Dense(count, "cls.output", bias="cls.output.bias" in gguf.tensors),)
    keys = read_gguf_file(gguf.path, merges=False).metadata
    labels = tuple(f"LABEL_{i}" for i in range(count))
    named = keys.get(f"{keys['general.architecture']}.classifier.output_labels")  # newer files have the names
    if isinstance(named, list) and len(named) == count and all(isinstance(one, str) for one in named):
        labels = tuple(named)
    if model_type == "qwen3" and sorted(labels) == ["no", "yes"]:  # Qwen3-Reranker, whose score is the share of yes
        places = labels.index("yes"), labels.index("no")
        return PoolingPlan(
            "classify", pool, "sigmoid", dense, labels=("LABEL_0",), model_type=model_type, yes_no=places
        )
    finish: Finish = "softmax" if count > 1 else "sigmoid"
    return PoolingPlan("classify", pool, finish, dense, labels=labels, model_type=model_type)
