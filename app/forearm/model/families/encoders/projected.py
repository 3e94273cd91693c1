"""Encoders whose embeddings are narrower or wider than their layers: a matrix stands between both."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.encoders.bert_like import BERT, learned

_ALBERT = BERT | {
    "embed_in": "encoder.embedding_hidden_mapping_in",
    "layers": "encoder.albert_layer_groups",
    **{part: f"attention.{name}" for part, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "dense"))},
    "up": "ffn",
    "down": "ffn_output",
    "pre_mlp_norm": "attention.LayerNorm",
    "output_norm": "full_layer_layer_norm",
}
_MATRICES = ("qkv", "o", "up", "down")  # of a layer


def electra(inputs: FamilyInputs) -> ModelConfig:
    """ELECTRA: ms-marco-electra-base, KoELECTRA; BERT, in the small ones with embeddings of half the width."""
    config = learned(inputs.with_defaults(max_position_embeddings=512), 0, BERT | {"embed_in": "embeddings_project"})
    width = inputs.keys.integer("embedding_size", 128)
    return config if width == config.hidden else _projected(config, inputs, "embedding_size", width)


def rembert(inputs: FamilyInputs) -> ModelConfig:
    """RemBERT: BERT with embeddings of its own input width; that of its head for pretraining is not computed."""
    names = BERT | {"embed_in": "encoder.embedding_hidden_mapping_in"}
    inputs.keys.get("output_embedding_size")  # marks it as read
    config = learned(inputs.with_defaults(max_position_embeddings=512), 0, names)
    return _projected(config, inputs, "input_embedding_size", inputs.keys.integer("input_embedding_size", 256))


def albert(inputs: FamilyInputs) -> ModelConfig:
    """ALBERT: paraphrase-albert-small-v2; BERT whose layers share the weights of a few, which are kept once.

    Source: Lan et al. 2020, arXiv:1909.11942.
    """
    keys = inputs.keys
    groups, inner = keys.integer("num_hidden_groups", 1), keys.integer("inner_group_num", 1)
    if not 1 <= groups <= inputs.layers:
        raise keys.wrong("num_hidden_groups", f"1 to num_hidden_layers ({inputs.layers})")
    if not 1 <= inner * inputs.layers <= 1024:
        raise keys.wrong("inner_group_num", f"at least 1, and {1024 // inputs.layers} at most: 1024 layers in all")
    group_of = [int(i / (inputs.layers / groups)) for i in range(inputs.layers)]  # in floats, as transformers has it
    modules = [f"{_ALBERT['layers']}.{g}.albert_layers.{j}" for g in group_of for j in range(inner)]
    first = {module: modules.index(module) for module in modules}
    inputs = inputs.with_defaults(max_position_embeddings=512, hidden_act="gelu_new")
    config = learned(inputs, 0, _ALBERT)
    norms = [f"{module}.{_ALBERT['output_norm']}" for module in modules]
    names = {f"layers.{i}": module for i, module in enumerate(modules)} | {"final_norm": norms[-1]}
    names |= {f"layers.{i + 1}.input_norm": norm for i, norm in enumerate(norms[:-1])}
    config = replace(
        config,
        layers=config.layers[:1] * len(modules),
        names=_ALBERT | names,
        shared={
            f"layers.{i}.{one}": f"layers.{first[module]}.{one}"
            for i, module in enumerate(modules)
            for one in _MATRICES
            if first[module] != i
        },
    )
    return _projected(config, inputs, "embedding_size", keys.integer("embedding_size", 128))


def _projected(config: ModelConfig, inputs: FamilyInputs, key: str, width: int) -> ModelConfig:
    """Return the encoder with embeddings of this width, which config.json gives under `key`."""
    if not 1 <= width <= 1 << 20:
        raise inputs.keys.wrong(key, f"1 to {1 << 20}")
    return replace(config, embed_norm=True, embed_width=width)
