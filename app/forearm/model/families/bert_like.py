"""Encoders whose norms follow each half of a layer: config.json of BERT and its descendants -> ModelConfig.

A norm after a half of a layer equals a norm before the next half whose output also replaces the residual. BERT is
therefore computed with the same steps as decoders (ModelConfig.norm_residual).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, positions, sizes

# Names of tensors. `output_norm` is the norm after a layer, which is read as the next layer's input_norm.
_BERT = {
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
_DISTIL = _BERT | {
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


def bert(inputs: FamilyInputs) -> ModelConfig:
    """BERT: MiniLM, bge-*-en, e5-*, mxbai, ms-marco rerankers."""
    return _learned(inputs.with_defaults(max_position_embeddings=512), 0, _BERT)


def roberta(inputs: FamilyInputs) -> ModelConfig:
    """RoBERTa and XLM-RoBERTa (bge-m3, multilingual-e5): BERT with positions from the padding token's id + 1 on."""
    inputs = inputs.with_defaults(pad_token_id=1, max_position_embeddings=512)
    return _learned(inputs, inputs.keys.integer("pad_token_id") + 1, _BERT)


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
    return _learned(inputs.with_defaults(type_vocab_size=0, max_position_embeddings=512, **named), 0, _DISTIL)


def _learned(inputs: FamilyInputs, first_position: int, names: dict[str, str]) -> ModelConfig:
    """Return a BERT with learned positions, a feed-forward without gate, and biases."""
    keys = inputs.keys
    if keys.text("position_embedding_type", "absolute") != "absolute":
        raise keys.wrong("position_embedding_type", "absolute: relative positions are not supported")
    rows = keys.integer("max_position_embeddings")
    gelu = activation(keys, "hidden_act", "gelu")
    return _post_norm(
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


def _post_norm(
    inputs: FamilyInputs, names: dict[str, str], mixer: Attention, feed_forward: FeedForward, **differs: Any
) -> ModelConfig:
    """Return an encoder of equal layers with norms of the embeddings and after each half of a layer."""
    keys = inputs.keys
    if keys.flag("is_decoder"):
        raise keys.wrong("is_decoder", "false: only encoders are served")
    keys.get("tie_word_embeddings")  # marks it as read: it concerns a head that is not served
    heads, layers = keys.integer("num_attention_heads"), inputs.layers
    norms = [names["embed_norm"], *(f"{names['layers']}.{i}.{names['output_norm']}" for i in range(layers))]
    own = {f"layers.{i}.input_norm": norm for i, norm in enumerate(norms[:-1])}
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
        names=names | own | {"final_norm": norms[-1]},
        **differs,
    )
