"""DeBERTa: BERT with disentangled attention, whose scores have two terms of the distance from key to query."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.encoders.bert_like import BERT, MOST_DISTANCE, learned

_V2 = BERT | {
    **{part: f"attention.self.{name}_proj" for part, name in (("q", "query"), ("k", "key"), ("v", "value"))},
    "distances": "encoder.rel_embeddings",
    "distance_norm": "encoder.LayerNorm",
}
_V1 = BERT | {
    "q.bias": "attention.self.q_bias",
    "v.bias": "attention.self.v_bias",
    "distances": "encoder.rel_embeddings",
    "distance_q": "attention.self.pos_q_proj",
    "distance_k": "attention.self.pos_proj",
}


def deberta_v2(inputs: FamilyInputs) -> ModelConfig:
    """DeBERTa v2 and v3: mxbai-rerank v1, NLI classifiers; BERT with disentangled attention."""
    keys = inputs.keys
    size = keys.integer("hidden_size") // keys.integer("num_attention_heads")
    only = {"share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 0, "attention_head_size": size}
    return _disentangled(inputs, _V2, only, keys.integer("position_buckets", -1), distance_bias="embedded")


def deberta(inputs: FamilyInputs) -> ModelConfig:
    """DeBERTa 1: NLI classifiers; matrices of its own project embeddings of distances, each distance has one.

    Queries, keys and values of a head follow each other in one matrix, and keys have no bias.
    """
    head_dim = inputs.keys.integer("hidden_size") // inputs.keys.integer("num_attention_heads")
    packed = {part: f"attention.self.in_proj[{i * head_dim}:{head_dim}:{3 * head_dim}]" for i, part in enumerate("qkv")}
    return _disentangled(
        inputs, _V1 | packed, {"talking_head": False}, -1, distance_bias="embedded_apart", key_bias=False
    )


def _disentangled(
    inputs: FamilyInputs, names: dict[str, str], only: dict[str, Any], span: int, **differs: Any
) -> ModelConfig:
    """Return a DeBERTa. only: the only values of these keys that are computed. span: as of embedded_distances."""
    keys = inputs.keys
    heads, width = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    for key, value in {
        "relative_attention": True,
        **only,
        "embedding_size": width,
        "pooler_hidden_size": width,
    }.items():
        absent = False if value is True else "none" if key == "norm_rel_ebd" else value
        if (absent if keys.get(key) is None else keys.get(key)) != value:
            raise keys.wrong(key, json.dumps(value))
    terms = keys.get("pos_att_type")
    listed = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(listed, list) or sorted(map(str, listed)) != ["c2p", "p2c"]:
        raise keys.wrong("pos_att_type", '["p2c", "c2p"]')
    inputs = inputs.with_defaults(max_position_embeddings=512, type_vocab_size=0, layer_norm_eps=1e-7)
    reach = keys.integer("max_relative_positions", -1)
    reach = reach if reach > 0 else inputs.keys.integer("max_position_embeddings")
    if not 2 < reach <= MOST_DISTANCE or span > MOST_DISTANCE or 0 <= span < 4:
        key = "position_buckets" if 2 < reach <= MOST_DISTANCE else "max_relative_positions"
        raise keys.wrong(key, f"4 to {MOST_DISTANCE}, or -1")
    keys.get("legacy")  # marks it as read: it concerns a head for pretraining
    return replace(
        learned(inputs, 0, names),
        learned_positions=keys.flag("position_biased_input", True),
        attention_scale=(3 * (width // heads)) ** -0.5,
        distance_buckets=embedded_distances(span, reach),
        **differs,
    )


def embedded_distances(span: int, reach: int) -> tuple[int, ...]:
    """Return DeBERTa's embedding, a row of 2 * span, of each distance key - query from -reach to reach.

    Distances up to span / 2 have a row each; farther ones share rows by their logarithm, rounded up in float32 as
    transformers rounds it. span: -1: each distance up to `reach` has a row, 2 * reach in all.
    Source: He et al. 2021, arXiv:2111.09543; the rows are those of transformers' DebertaV2Model.
    """
    import numpy as np

    bucket = np.arange(reach + 1)
    half = span // 2
    if 0 < half < reach - 1:
        ratio = np.log(np.maximum(bucket, half).astype(np.float32) / np.float32(half))
        ratio = ratio / np.log(np.float32((reach - 1) / half)) * np.float32(half - 1)
        bucket = np.where(bucket <= half, bucket, np.ceil(ratio).astype(np.int64) + half)
    span = span if span > 0 else reach
    rows = np.concatenate([span + bucket[::-1], span - bucket[1:]])  # of query - key, descending
    return tuple(np.clip(rows, 0, 2 * span - 1).tolist())
