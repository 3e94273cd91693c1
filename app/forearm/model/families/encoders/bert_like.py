"""Encoders whose norms follow each half of a layer: config.json of BERT and its descendants -> ModelConfig.

A norm after a half of a layer equals a norm before the next half whose output also replaces the residual. BERT is
therefore computed with the same steps as decoders (ModelConfig.norm_residual).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, flat_rope, positions, sizes

MOST_DISTANCE = 1 << 14  # the largest bound of distance_buckets that a config.json may give; models have 128

# Names of tensors. `output_norm` is the norm after a layer, which is read as the next layer's input_norm.
BERT = {
    "embed": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "layers": "encoder.layer",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
    "pre_mlp_norm": "attention.output.LayerNorm",
    "output_norm": "output.LayerNorm",
}
_DISTIL = BERT | {
    "layers": "transformer.layer",
    "q": "attention.q_lin",
    "k": "attention.k_lin",
    "v": "attention.v_lin",
    "o": "attention.out_lin",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "pre_mlp_norm": "sa_layer_norm",
    "output_norm": "output_layer_norm",
}
_MPNET = BERT | {
    **{part: f"attention.attn.{part}" for part in "qkvo"},
    "pre_mlp_norm": "attention.LayerNorm",
    "attention_bias": "encoder.relative_attention_bias",
}
_GTE = {
    "embed": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "layers": "encoder.layer",
    **dict.fromkeys("qkv", "attention.qkv_proj"),
    "o": "attention.o_proj",
    "up": "mlp.up_gate_proj[0]",
    "gate": "mlp.up_gate_proj[1]",
    "down": "mlp.down_proj",
    "pre_mlp_norm": "attn_ln",
    "output_norm": "mlp_ln",
}
_FLASH = {  # of models derived from the flash-attn package's BERT
    "embed": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embed_norm": "emb_ln",
    "layers": "encoder.layers",
    "down": "mlp.fc2",
    "pre_mlp_norm": "norm1",
    "output_norm": "norm2",
}
JINA = _FLASH | {**dict.fromkeys("qkv", "mixer.Wqkv"), "o": "mixer.out_proj", "up": "mlp.fc1"}
_NOMIC = _FLASH | {**dict.fromkeys("qkv", "attn.Wqkv"), "o": "attn.out_proj", "up": "mlp.fc11", "gate": "mlp.fc12"}
# transformers' keys -> those of files that nomic-ai published, which are GPT-2's and flash-attn's.
_NOMIC_KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}


def bert(inputs: FamilyInputs) -> ModelConfig:
    """BERT: MiniLM, bge-*-en, e5-*, mxbai, ms-marco rerankers."""
    return learned(inputs.with_defaults(max_position_embeddings=512), 0, BERT)


def ernie(inputs: FamilyInputs) -> ModelConfig:
    """ERNIE 1 to 3: ernie-3.0-base-zh; BERT whose texts have a type of task, of which each has the first.

    Its row is added to those of the types of tokens as these are read.
    """
    config = bert(inputs)
    inputs.keys.get("task_type_vocab_size")  # marks it as read: the table has as many rows
    if not inputs.keys.flag("use_task_id"):
        return config
    if not config.token_types:
        raise inputs.keys.wrong("type_vocab_size", "at least 1 where use_task_id is true")
    return replace(config, names=config.names | {"task_types": "embeddings.task_type_embeddings"})


def roberta(inputs: FamilyInputs) -> ModelConfig:
    """RoBERTa and XLM-RoBERTa (bge-m3, multilingual-e5): BERT with positions from the padding token's id + 1 on.

    The published jina-embeddings-v3 is of this type, too, and has rotary angles instead.
    """
    keys = inputs.keys
    if keys.get("position_embedding_type") == "rotary":
        return jina_v3(inputs.with_defaults(rope_theta=keys.number("rotary_emb_base", 10_000.0)))
    inputs = inputs.with_defaults(max_position_embeddings=512)
    return learned(inputs, padding_of(inputs, 1) + 1, BERT)


def padding_of(inputs: FamilyInputs, default: int) -> int:
    """Return the id of the padding token, after which the positions of a RoBERTa begin."""
    padding = inputs.keys.integer("pad_token_id", default)
    if not 0 <= padding < 1024:
        raise inputs.keys.wrong("pad_token_id", "0 to 1023: the model's positions begin after it")
    return padding


def distilbert(inputs: FamilyInputs) -> ModelConfig:
    """DistilBERT: multi-qa-distilbert, msmarco-distilbert, sentiment classifiers; BERT without token types."""
    keys = inputs.keys
    keys.get("sinusoidal_pos_embds")  # marks it as read: the file has the positions either way
    named = {
        "hidden_size": keys.integer("dim", 768),
        "num_attention_heads": keys.integer("n_heads", 12),
        "num_hidden_layers": keys.integer("n_layers", 6),
        "intermediate_size": keys.integer("hidden_dim", 3072),
        "hidden_act": keys.text("activation", "gelu"),
    }
    config = learned(inputs.with_defaults(max_position_embeddings=512, **named), 0, _DISTIL)
    return replace(config, token_types=0)


def mpnet(inputs: FamilyInputs) -> ModelConfig:
    """MPNet: all-mpnet-base-v2, multi-qa-mpnet; RoBERTa without token types, with a bias of attention by distance."""
    if inputs.keys.integer("relative_attention_num_buckets", 32) != 32:
        raise inputs.keys.wrong("relative_attention_num_buckets", "32, whatever the number of rows: the model's code")
    config = learned(inputs.with_defaults(max_position_embeddings=512), 2, _MPNET)
    return replace(config, token_types=0, distance_buckets=distance_buckets(32, 128))


def nomic_bert(inputs: FamilyInputs) -> ModelConfig:
    """NomicBERT: nomic-embed-text v1 and v1.5, arctic-embed-m-long; rotary angles, a gated MLP, no biases.

    Texts are at most as long as in training (max_trained_positions), as vLLM serves it: no angle is scaled.
    """
    keys = inputs.keys
    for key, only in (
        ("prenorm", False), ("causal", False), ("parallel_block", False), ("use_rms_norm", False),
        ("qkv_proj_bias", False), ("mlp_fc1_bias", False), ("mlp_fc2_bias", False), ("rotary_emb_fraction", 1.0),
        ("rotary_emb_interleaved", False), ("activation_function", "swiglu"),
    ):  # fmt: skip
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, json.dumps(only))
    for key in ("n_positions", "rotary_scaling_factor"):
        keys.get(key)  # marks it as read: it concerns longer texts
    most = keys.optional_integer("max_trained_positions") or 2048
    published = {own: keys.get(old) for own, old in _NOMIC_KEYS.items() if keys.get(old) is not None}
    defaults = {"rope_theta": 1000.0, "max_position_embeddings": most, "hidden_act": "silu"}
    return rotary_encoder(inputs.with_defaults(**defaults | published), _NOMIC, gated=True, biases=False)


def gte(inputs: FamilyInputs) -> ModelConfig:
    """GTE: gte-multilingual, gte-*-v1.5, arctic-embed-m-v2.0; rotary angles, a gated MLP, packed matrices."""
    keys = inputs.keys
    for key, only in (
        ("position_embedding_type", "rope"), ("layer_norm_type", "layer_norm"), ("logn_attention_scale", False),
        ("pack_qkv", True),
    ):  # fmt: skip
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, json.dumps(only))
    inputs = inputs.with_defaults(rope_theta=160_000.0, max_position_embeddings=8192, type_vocab_size=1)
    return rotary_encoder(inputs, _GTE, gated=True, biases=True)


def jina_v3(inputs: FamilyInputs) -> ModelConfig:
    """jina-embeddings-v3-hf, the form of transformers, without adapters: XLM-RoBERTa with rotary angles."""
    defaults = {"rope_theta": 20_000.0, "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return rotary_encoder(inputs.with_defaults(**defaults), JINA, gated=False, biases=True)


def rotary_encoder(inputs: FamilyInputs, names: dict[str, str], *, gated: bool, biases: bool) -> ModelConfig:
    """Return a BERT with rotary angles. A gated feed-forward has a bias after its product alone."""
    keys = inputs.keys
    head_dim = keys.integer("hidden_size") // keys.integer("num_attention_heads")
    if keys.optional_integer("head_dim") not in (None, head_dim):
        raise keys.wrong("head_dim", f"hidden_size / num_attention_heads ({head_dim})")
    angles, max_positions = flat_rope(inputs, head_dim, partial=False, interleaved=False)
    act, width = activation(keys, "hidden_act", "gelu"), keys.integer("intermediate_size")
    feed_forward = FeedForward(width, act, gated, bias=biases and not gated, down_bias=biases and gated)
    return post_norm(
        inputs,
        names,
        Attention(rope=0),
        feed_forward,
        max_positions=max_positions,
        ropes=(angles,),
        qkv_bias=biases,
        o_bias=biases,
    )


def learned(inputs: FamilyInputs, first_position: int, names: dict[str, str]) -> ModelConfig:
    """Return a BERT with learned positions, a feed-forward without gate, and biases."""
    keys = inputs.keys
    if keys.text("position_embedding_type", "absolute") != "absolute":
        raise keys.wrong("position_embedding_type", "absolute: relative positions are not supported")
    rows = keys.integer("max_position_embeddings")
    gelu = activation(keys, "hidden_act", "gelu")
    return post_norm(
        inputs,
        names,
        Attention(rope=None),
        FeedForward(keys.integer("intermediate_size"), gelu, gated=False, bias=True),
        max_positions=positions(replace(inputs, allow_longer=False), rows - first_position, rows - first_position),
        learned_positions=True,
        position_offset=first_position,
        qkv_bias=True,
        o_bias=True,
    )


def post_norm(
    inputs: FamilyInputs, names: dict[str, str], mixer: Attention, feed_forward: FeedForward, **differs: Any
) -> ModelConfig:
    """Return an encoder of equal layers with norms of the embeddings and after each half of a layer."""
    keys = inputs.keys
    if keys.flag("is_decoder"):
        raise keys.wrong("is_decoder", "false: only encoders are served")
    keys.get("tie_word_embeddings")  # marks it as read: it concerns a head that is not served
    heads, layers = keys.integer("num_attention_heads"), inputs.layers
    return ModelConfig(
        **sizes(inputs, keys.integer("hidden_size") // heads, heads),
        layers=(Layer(mixer, feed_forward),) * layers,
        token_types=keys.integer("type_vocab_size", 2),
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        norm_residual="all",
        bidirectional=True,
        pooled=True,
        tied_head=True,
        names=norm_names(names, layers),
        **differs,
    )


def norm_names(names: dict[str, str], layers: int) -> dict[str, str]:
    """Return the names with those of the norms before layers, which are the norms after what comes before them."""
    norms = [names["embed_norm"], *(f"{names['layers']}.{i}.{names['output_norm']}" for i in range(layers))]
    return names | {f"layers.{i}.input_norm": norm for i, norm in enumerate(norms[:-1])} | {"final_norm": norms[-1]}


def distance_buckets(buckets: int, reach: int) -> tuple[int, ...]:
    """Return the bucket of each distance key - query from -reach to reach; farther ones are in the same as those.

    The first half of the `buckets` is of keys up to the query, the second of keys after it. Bounds between buckets are
    rounded in float32, as transformers rounds them. Near distances have a bucket each, farther ones share buckets that
    grow with the logarithm of the distance, and all beyond the farthest share the last.
    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.
    """
    import numpy as np

    half = buckets // 2
    exact = half // 2
    distance = np.arange(reach + 1)
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(reach / exact))
    shared = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int64), half - 1)
    one_way = np.where(distance < exact, distance, shared)
    return (*one_way[::-1].tolist(), *(one_way[1:] + half).tolist())
