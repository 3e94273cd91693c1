"""The pooling plan of a .gguf file, which its keys and tensors tell.

Source: the converter (convert_hf_to_gguf.py) and src/llama-graph.cpp (build_pooling) of ggml-org/llama.cpp.
"""

from __future__ import annotations

from pathlib import Path

from forearm.errors import ConfigError
from forearm.model.families.config import Dense
from forearm.model.families.keys import Keys
from forearm.model.gguf.gguf import Gguf, read_gguf_file
from forearm.model.pooling.plan import Finish, Pool, PoolingAsked, PoolingPlan

# Architectures whose tokens see those on both sides; their family's model type.
ENCODERS = {"bert": "bert", "nomic-bert": "nomic_bert", "gemma-embedding": "gemma3_text"}
_POOLS: dict[int, Pool] = {1: "mean", 2: "cls", 3: "last"}
_NONE, _RANK = 0, 4  # vectors of tokens alone; scores of pairs


def gguf_plan(path: Path, asked: PoolingAsked) -> PoolingPlan | None:
    """Return the plan for a file; None if its model generates text.

    A model without a kind of pooling has vLLM's: the first token for encoders, the last for others. Vectors have unit
    length, as llama.cpp gives them.

    Raises: ConfigError naming the key or flag that asks for a function that the model does not have.
    """
    gguf = read_gguf_file(path, texts=False)
    keys = Keys(gguf.metadata, str(path))
    architecture = keys.text("general.architecture", "")
    encoder, key = architecture in ENCODERS, f"{architecture}.pooling_type"
    kind = keys.optional_integer(key)
    if asked.runner == "generate" and encoder:
        raise ConfigError(
            f"--runner generate: {path} is an encoder ({architecture}) and generates no text; leave the flag out"
        )
    wanted = asked.runner == "pooling" or asked.convert in ("embed", "classify")
    if asked.runner == "generate" or not (encoder or kind or wanted):
        return None
    if kind not in (None, _NONE, _RANK, *_POOLS):
        raise keys.wrong(key, "0 (none), 1 (mean), 2 (first token), 3 (last token) or 4 (scores of pairs)")
    usual: Pool = "cls" if encoder else "last"
    model_type = ENCODERS.get(architecture, architecture)
    if asked.convert == "classify" or (kind == _RANK and asked.convert != "embed"):
        return _classifier(gguf, usual, model_type)
    dense = tuple(
        Dense(gguf.tensors[f"{name}.weight"].shape[0], name, bias=f"{name}.bias" in gguf.tensors)
        for name in ("dense_2", "dense_3")  # EmbeddingGemma's
        if f"{name}.weight" in gguf.tensors
    )
    return PoolingPlan("embed", _POOLS.get(kind or _NONE, usual), "normalize", dense, model_type=model_type)


def _classifier(gguf: Gguf, pool: Pool, model_type: str) -> PoolingPlan:
    """Return the plan of a model with a head for scores. Raises: ConfigError if the file has none."""
    if "cls.output.weight" not in gguf.tensors:
        raise ConfigError(
            f"{gguf.path} has no tensor cls.output.weight, so no classifier; leave out --convert classify, or convert "
            "the model with its head"
        )
    before = ("cls",) if "cls.weight" in gguf.tensors else ()
    dense = tuple(Dense(gguf.tensors[f"{name}.weight"].shape[0], name, activation="tanh") for name in before)
    count = gguf.tensors["cls.output.weight"].shape[0]
    dense += (Dense(count, "cls.output", bias="cls.output.bias" in gguf.tensors),)
    labels = tuple(f"LABEL_{i}" for i in range(count))
    finish: Finish = "softmax" if count > 1 else "sigmoid"
    return PoolingPlan("classify", pool, finish, dense, labels=labels, model_type=model_type)
