"""jina-embeddings-v2: BERT with slopes of distances instead of positions, and a gated feed-forward."""

from __future__ import annotations

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, positions, with_slopes
from forearm.model.families.encoders.bert_like import BERT, post_norm

_NAMES = BERT | {
    "gate": "mlp.gated_layers", "up": "mlp.gated_layers", "down": "mlp.wo", "output_norm": "mlp.layernorm",
}  # fmt: skip


def jina_v2(inputs: FamilyInputs) -> ModelConfig:
    """jina-embeddings-v2, whose type in published files is bert: scores fall with the distance to both sides.

    Source: Günther et al. 2023, arXiv:2310.19923.
    """
    inputs = inputs.with_defaults(max_position_embeddings=8192)
    keys = inputs.keys
    keys.only(position_embedding_type="alibi", feed_forward_type="geglu", hidden_act="gelu")
    for key in ("emb_pooler", "with_flash_attn"):
        keys.get(key)  # marks it as read: modules.json says how rows are pooled
    return post_norm(
        inputs,
        _NAMES,
        Attention(rope=None),
        FeedForward(keys.integer("intermediate_size"), "gelu_erf", down_bias=True),
        max_positions=positions(inputs),
        slopes=with_slopes(inputs, keys.integer("num_attention_heads"))["slopes"],
        qkv_bias=True,
        o_bias=True,
    )
