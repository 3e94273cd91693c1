"""Encoders: the table of their families by `model_type`, and ModernBERT."""

from __future__ import annotations

from collections.abc import Callable

from forearm.model.families import bert_like, switches
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs, activation, positions, sizes
from forearm.model.families.keys import Keys
from forearm.model.families.rope import Lengths, rope

_MODERN = {
    "embed": "embeddings.tok_embeddings",
    "final_norm": "final_norm",
    **dict.fromkeys("qkv", "attn.Wqkv"),
    "o": "attn.Wo",
    **dict.fromkeys(("gate", "up"), "mlp.Wi"),
    "down": "mlp.Wo",
    "input_norm": "attn_norm",
    "pre_mlp_norm": "mlp_norm",
    "layers.0.input_norm": "embeddings.norm",
}


def modernbert(inputs: FamilyInputs) -> ModelConfig:
    """ModernBERT: pre-norm, rotary angles, a gated MLP, a window to both sides in two of three layers."""
    inputs = inputs.with_defaults(
        hidden_activation="gelu", max_position_embeddings=8192, local_attention=128, global_attn_every_n_layers=3,
        norm_eps=1e-5,
    )  # fmt: skip
    keys = inputs.keys
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    every = keys.integer("global_attn_every_n_layers")
    default = [switches.SLIDING if i % every else switches.FULL for i in range(inputs.layers)]
    slides = [kind == switches.SLIDING for kind in switches.layer_types(keys, default)]
    window = keys.integer("local_attention") // 2 + 1  # tokens i and j see each other if |i - j| <= local_attention / 2
    bias = keys.flag("attention_bias")
    gelu = activation(keys, "hidden_activation", "gelu")
    feed_forward = FeedForward(keys.integer("intermediate_size"), gelu, bias=keys.flag("mlp_bias"))
    for key in ("classifier_pooling", "classifier_bias", "classifier_activation", "tie_word_embeddings"):
        keys.get(key)  # read by pooling.py, or of a head for pretraining
    return ModelConfig(
        **sizes(inputs, hidden // heads, heads),
        max_positions=positions(inputs),
        layers=tuple(
            Layer(Attention(rope=1, window=window) if slide else Attention(rope=0), feed_forward) for slide in slides
        ),
        ropes=_modern_ropes(inputs, hidden // heads),
        layer_norm=True,
        norm_bias=keys.flag("norm_bias"),
        norm_eps=keys.number("norm_eps"),
        norm_residual="first",
        qkv_bias=bias,
        o_bias=bias,
        bidirectional=True,
        pooled=True,
        tied_head=True,
        names=_MODERN,
    )


def _modern_ropes(inputs: FamilyInputs, head_dim: int) -> tuple[Rope, Rope]:
    """Return the rotary angles of layers with full attention, and of layers with a window.

    Older files have global_rope_theta and local_rope_theta; newer files have rope_parameters by layer type.
    """
    keys = inputs.keys
    nested = keys.object("rope_parameters") or Keys({}, keys.source)
    most = keys.integer("max_position_embeddings")
    lengths = Lengths(max_positions=most, original=most, max_model_len=inputs.max_model_len or most)

    def angles(kind: str, key: str, theta: float) -> Rope:
        settings = nested.object(kind) or Keys({}, keys.source)
        own = keys.optional_number(key)
        return rope(settings, settings.number("rope_theta", theta if own is None else own), head_dim, lengths)

    return (
        angles(switches.FULL, "global_rope_theta", 160_000.0),
        angles(switches.SLIDING, "local_rope_theta", 10_000.0),
    )


ENCODERS: dict[str, Callable[[FamilyInputs], ModelConfig]] = {
    "bert": bert_like.bert,
    "roberta": bert_like.roberta,
    "xlm-roberta": bert_like.roberta,
    "distilbert": bert_like.distilbert,
    "modernbert": modernbert,
    "nomic_bert": bert_like.nomic_bert,
    "gte": bert_like.gte,
    "new": bert_like.gte,  # the name in files with code of their own
    "jina_embeddings_v3": bert_like.jina_v3,
}
