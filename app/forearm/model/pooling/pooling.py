"""The pooling plan of a model: how a text becomes a vector or scores.

It follows from the settings and from config.json and sentence-transformers' modules.json, or a .gguf file's keys. It is
None if the model generates text. Both the engine and the API make it, from the same files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forearm.config.common import Common
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import read_tensors
from forearm.model.families.decoder import ACTIVATIONS
from forearm.model.families.encoders.dense import Dense, DenseActivation
from forearm.model.families.encoders.encoders import ENCODERS
from forearm.model.families.keys import ROPE, Keys, read_json
from forearm.model.pooling.adapters import TASK_KEY, Adapter
from forearm.model.pooling.encoder_types import is_encoder
from forearm.model.pooling.gguf_pooling import gguf_plan
from forearm.model.pooling.plan import Finish, Kind, Pool, PoolingAsked, PoolingPlan
from forearm.model.pooling.sentence_transformers import SentenceModules, read_modules
from forearm.model.pooling.token_heads import BGE_M3, bge_m3_heads

CLASSIFIER, TOKEN_CLASSIFIER = "ForSequenceClassification", "ForTokenClassification"
_ENCODER_DECODERS = ("ForConditionalGeneration", "WithLMHeadModel")
COLBERT = "HF_ColBERT"
# Layers with tanh before a classifier, by model type, and the types whose classifier has two layers of its own.
_POOLERS = {
    "bert": "bert.pooler.dense", "nomic_bert": "nomic_bert.pooler.dense", "gte": "gte.pooler.dense",
    "new": "new.pooler.dense", "ernie": "ernie.pooler.dense", "rembert": "rembert.pooler.dense",
    "megatron-bert": "bert.pooler.dense", "albert": "albert.pooler",
}  # fmt: skip
_HEADS = (
    "roberta", "xlm-roberta", "jina_embeddings_v3", "mpnet", "camembert", "data2vec-text", "electra", "esm",
    "xlm-roberta-xl", "roberta-prelayernorm",
)  # fmt: skip
# Decoders whose classifier of tokens has BERT's name.
_TOKEN_CLASSIFIERS = ("biogpt", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "mpt")
_EUROBERT: dict[str, Pool] = {"late": "late", "mean": "mean", "bos": "cls"}
_POOLS: dict[str, Pool] = {"MEAN": "mean", "CLS": "cls", "LAST": "last"}
# Keys of config.json that --hf-overrides may change besides those of the rotary angles.
_OVERRIDES = (
    "architectures", "classifier_from_token", TASK_KEY, "is_matryoshka", "is_original_qwen3_reranker",
    "matryoshka_dimensions", "num_labels", "problem_type",
)  # fmt: skip


def pooling_plan(folder: Path, asked: PoolingAsked) -> PoolingPlan | None:
    """Return the plan for the model in `folder` (or .gguf file); None if it generates text.

    Raises: ConfigError naming the key or flag that asks for a function that the model does not have.
    """
    if not folder.is_dir():
        if others := [name for name in asked.hf_overrides or () if name not in ROPE]:
            raise ConfigError(f"--hf-overrides: {others[0]} can't be changed; of a .gguf file {', '.join(ROPE)} can")
        plan = gguf_plan(folder, asked)
        return plan and _configured(plan, asked.pooler_config or {})
    for name in asked.hf_overrides or ():
        if name not in (*_OVERRIDES, *ROPE):
            raise ConfigError(f"--hf-overrides: {name} can't be changed; only {', '.join((*ROPE, *_OVERRIDES))} can")
    keys = read_json(folder / "config.json")
    keys = Keys(keys.values | dict(asked.hf_overrides or {}), keys.source)
    modules = read_modules(folder)
    if not _is_pooling(keys, modules, asked):
        return None
    if _architecture(keys) == COLBERT:  # a checkpoint of its own code
        projection = read_tensors(folder).get("linear.weight")  # of each token's row
        if projection is None:
            raise ConfigError(
                f"{folder}: architectures names {COLBERT}, whose linear.weight the checkpoint does not have"
            )
        dense = Dense(projection.shape[0], "linear", bias=False)
        plan = PoolingPlan("embed", "mean", "normalize", (dense,), late_interaction=True)
    else:
        kind = _kind(keys, asked)
        plan = _embedder(keys, modules) if kind == "embed" else _classifier(keys, kind)
        if plan.kind == "embed" and keys.text("model_type") == "xlm-roberta":
            heads = bge_m3_heads(folder, keys, _architecture(keys) == BGE_M3)
            plan = replace(plan, token_heads=dict(zip(("token_embed", "token_classify"), heads, strict=False)))
    plan = replace(plan, model_type=keys.text("model_type"), adapter=Adapter.of(keys))
    return _configured(plan, asked.pooler_config or {})


def _architecture(keys: Keys) -> str:
    names = keys.get("architectures") or [""]
    if not isinstance(names, list):
        raise keys.wrong("architectures", "a list of one name")
    return str(names[0])


def _is_pooling(keys: Keys, modules: SentenceModules | None, asked: PoolingAsked) -> bool:
    """Return whether the model pools, by vLLM's rule: encoders, classifiers and sentence-transformers do."""
    name = _architecture(keys)
    # A checkpoint of the whole T5 generates text, unless sentence-transformers' files say that its encoder is meant. So
    # does a BERT whose tokens see those before them alone.
    generates = name.endswith(_ENCODER_DECODERS) or keys.flag("is_decoder")
    encoder = is_encoder(keys.text("model_type")) and not generates
    if asked.runner == "generate" and encoder:
        raise ConfigError(
            f"--runner generate: {keys.text('model_type')} is an encoder and generates no text; leave the flag out"
        )
    if asked.runner != "auto":
        return asked.runner == "pooling"
    wanted = asked.convert in ("embed", "classify")
    headless = name.endswith("Model") and not name.endswith(("LMHeadModel", "ChatModel"))
    return encoder or wanted or modules is not None or headless or name.endswith((CLASSIFIER, TOKEN_CLASSIFIER))


def _kind(keys: Keys, asked: PoolingAsked) -> Kind:
    name = _architecture(keys)
    own: Kind = "classify" if name.endswith(CLASSIFIER) else "embed"
    own = "token_classify" if name.endswith(TOKEN_CLASSIFIER) else own
    if asked.convert in ("auto", "none"):
        return own
    if asked.convert == "embed":
        return "embed"
    if own != "embed":
        return own
    if keys.text("model_type") == "qwen3":
        return "classify"
    raise keys.wrong("architectures", f"a ...{CLASSIFIER} for --convert classify: this model has no classifier")


def _embedder(keys: Keys, modules: SentenceModules | None) -> PoolingPlan:
    """Return the plan of an embedding model, from sentence-transformers' files.

    Without them it has vLLM's defaults: the first token for encoders, the last for decoders, scaled to unit length.
    """
    sizes = keys.get("matryoshka_dimensions")
    if sizes is not None and not (isinstance(sizes, list) and sizes and all(isinstance(s, int) for s in sizes)):
        raise keys.wrong("matryoshka_dimensions", "a list of lengths")
    dimensions = tuple(sizes) if sizes else None if keys.flag("is_matryoshka") else ()
    if modules is None:
        pool: Pool = "cls" if is_encoder(keys.text("model_type")) else "last"
        return PoolingPlan("embed", pool, "normalize", dimensions=dimensions)
    return PoolingPlan(
        kind="embed",
        pool=modules.pool,
        finish="normalize" if modules.normalize else "none",
        dense=modules.dense,
        dense_folders=dict(enumerate(modules.dense_folders)),
        dimensions=dimensions,
        max_tokens=modules.max_tokens,
        lower_case=modules.lower_case,
        late_interaction=modules.late_interaction,
    )


def _classifier(keys: Keys, kind: Kind) -> PoolingPlan:
    """Return the plan of a classifier: the head that transformers' ...ForSequenceClassification or
    ...ForTokenClassification computes."""
    model_type = keys.text("model_type")
    tokens = keys.get("classifier_from_token")
    if kind == "classify" and (not _architecture(keys).endswith(CLASSIFIER) or tokens):
        words = tuple(str(token) for token in tokens or ("no", "yes"))
        return PoolingPlan("classify", "last", "sigmoid", labels=("LABEL_0",), from_tokens=words, yes_no=(1, 0))
    if kind == "classify" and model_type in ("t5", "mt5", "umt5"):
        own = f"{model_type.upper()}EncoderModel"
        raise keys.wrong("architectures", f"{own}: classifiers that also compute T5's decoder are not served")
    named = keys.object("id2label")
    if named is not None and "num_labels" not in keys:
        labels = tuple(str(named.values[key]) for key in sorted(named.values, key=int))
    else:
        labels = tuple(f"LABEL_{i}" for i in range(keys.integer("num_labels", 2)))
    from forearm.model.families.families import FAMILIES, family_of  # imports numpy, which other models start without

    count, finish = len(labels), _finish(keys, len(labels))
    if family_of(keys, FAMILIES | ENCODERS) is None:  # transformers' model pools by itself
        return PoolingPlan(kind, "cls", finish, labels=labels)
    if kind == "classify":
        pool, dense = _head(keys, model_type, count)
        return PoolingPlan(kind, pool, finish, dense, labels=labels)
    if is_encoder(model_type) or model_type in _TOKEN_CLASSIFIERS:
        dense = (Dense(count, "classifier"),)
    else:
        dense = (Dense(count, "score", bias=keys.flag("token_classification_bias", True)),)
    if model_type == "modernbert":  # the layer that its classifier of texts has, too
        dense = (_head(keys, model_type, count)[1][0], *dense)
    return PoolingPlan(kind, "cls", finish, dense, labels=labels)


def _head(keys: Keys, model_type: str, count: int) -> tuple[Pool, tuple[Dense, ...]]:
    """Return the rows that a classifier reads, and its layers. count: of its labels."""
    hidden = keys.integer("dim" if model_type == "distilbert" else "hidden_size")
    pool: Pool = "cls"
    dense: tuple[Dense, ...]
    act: DenseActivation
    if model_type in _POOLERS:
        dense = (Dense(hidden, _POOLERS[model_type], activation="tanh"), Dense(count, "classifier"))
    elif model_type == "distilbert":
        dense = (Dense(hidden, "pre_classifier", activation="relu"), Dense(count, "classifier"))
    elif model_type in _HEADS:
        act = "gelu_erf" if model_type == "electra" else "tanh"
        dense = (Dense(hidden, "classifier.dense", activation=act), Dense(count, "classifier.out_proj"))
    elif model_type == "neobert":
        dense = (Dense(hidden, "dense", activation="tanh"), Dense(count, "classifier"))
    elif model_type == "eurobert":
        key = "classifier_pooling" if "classifier_pooling" in keys else "clf_pooling"  # the latter as published
        if keys.text(key, "late") not in _EUROBERT:
            raise keys.wrong(key, " or ".join(_EUROBERT))
        pool = _EUROBERT[keys.text(key, "late")]
        dense = (Dense(hidden, "dense", activation="gelu_erf"), Dense(count, "classifier"))
    elif model_type in ("deberta", "deberta-v2"):
        act = ACTIVATIONS[keys.text("pooler_hidden_act", "gelu")]
        dense = (Dense(hidden, "pooler.dense", activation=act), Dense(count, "classifier"))
    elif model_type in ("modernbert", "modernbert-decoder"):
        decodes = model_type == "modernbert-decoder"
        pool = "last" if decodes else "mean" if keys.text("classifier_pooling", "cls") == "mean" else "cls"
        act = ACTIVATIONS[keys.text("classifier_activation", "gelu")]
        bias = keys.flag("classifier_bias")
        dense = (Dense(hidden, "head.dense", bias, act, "head.norm"), Dense(count, "classifier", bias or not decodes))
    else:
        pool, dense = "last", (Dense(count, "score", bias=False),)
    return pool, dense


def _finish(keys: Keys, labels: int) -> Finish:
    """Return the function that turns a classifier's outputs into scores, chosen by vLLM's rule."""
    nested = keys.object("sentence_transformers")
    name = nested.text("activation_fn", "") if nested else keys.text("sbert_ce_default_activation_function", "")
    kind = name.rsplit(".", 1)[-1].lower()
    if kind:
        if kind not in ("identity", "sigmoid", "softmax"):
            raise keys.wrong("sentence_transformers", "an activation_fn of Identity, Sigmoid or Softmax")
        chosen: dict[str, Finish] = {"identity": "none", "sigmoid": "sigmoid", "softmax": "softmax"}
        return chosen[kind]
    problem = keys.text("problem_type", "")
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification" or labels < 2:
        return "sigmoid"
    return "softmax"


def _configured(plan: PoolingPlan, config: Mapping[str, Any]) -> PoolingPlan:
    """Return the plan with the changes of --pooler-config (vLLM's PoolerConfig).

    Raises: ConfigError naming the key.
    """
    for name, value in config.items():
        if name in ("pooling_type", "seq_pooling_type"):
            if value not in _POOLS:
                raise ConfigError(f"--pooler-config: {name} is {value!r}; it must be one of {', '.join(_POOLS)}")
            plan = replace(plan, pool=_POOLS[value])
        elif name in ("normalize", "use_activation", "activation", "softmax"):
            if not isinstance(value, bool):
                raise ConfigError(f"--pooler-config: {name} is {value!r}; it must be true or false")
            default: Finish = "normalize" if plan.kind == "embed" else "softmax" if len(plan.labels) > 1 else "sigmoid"
            plan = replace(plan, finish=default if value else "none")
        elif name == "dimensions":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"--pooler-config: dimensions is {value!r}; it must be a whole number from 1 on")
            plan = replace(plan, default_dimensions=value)
        elif name == "task":  # a request chooses among the tasks; in vLLM this setting does
            if value is not None and value not in plan.tasks:
                raise ConfigError(f"--pooler-config: task is {value!r}; this model supports {' and '.join(plan.tasks)}")
        else:
            keys = "pooling_type, normalize, dimensions or task"
            raise ConfigError(f"--pooler-config: {name} is not supported; write {keys}")
    return plan


def asked_of(config: Common) -> PoolingAsked:
    """Return the pooling settings of a server or an offline engine."""
    return PoolingAsked(config.runner, config.convert, config.pooler_config, config.hf_overrides)
