"""Encoders: config.json of BERT, RoBERTa, XLM-RoBERTa and ModernBERT -> ModelConfig, one function for each family.

A norm after a half of a layer equals a norm before the next half whose output also replaces the residual. BERT is
therefore computed with the same steps as decoders (ModelConfig.norm_residual).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forearm.model.families import switches
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs, activation, positions, sizes
from forearm.model.families.keys import Keys
from forearm.model.families.rope import Lengths, rope

_BERT_LAYER = {
    "embed": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "layers": "encoder.layer",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
    "pre_mlp_norm": "attention.output.LayerNorm",
}
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


def bert(inputs: FamilyInputs) -> ModelConfig:
    """BERT: MiniLM, bge-*-en, e5-*, mxbai, ms-marco rerankers."""
    return _bert(inputs.with_defaults(max_position_embeddings=512), first_position=0)


def roberta(inputs: FamilyInputs) -> ModelConfig:
    """RoBERTa and XLM-RoBERTa (bge-m3, multilingual-e5): BERT with positions from the padding token's id + 1 on."""
    inputs = inputs.with_defaults(pad_token_id=1, max_position_embeddings=512)
    return _bert(inputs, first_position=inputs.keys.integer("pad_token_id") + 1)


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


def _bert(inputs: FamilyInputs, first_position: int) -> ModelConfig:
    keys = inputs.keys
    if keys.text("position_embedding_type", "absolute") != "absolute":
        raise keys.wrong("position_embedding_type", "absolute: relative positions are not supported")
    if keys.flag("is_decoder"):
        raise keys.wrong("is_decoder", "false: only encoders are served")
    keys.get("tie_word_embeddings")  # marks it as read: it concerns a head that is not served
    hidden, heads, layers = keys.integer("hidden_size"), keys.integer("num_attention_heads"), inputs.layers
    rows = keys.integer("max_position_embeddings")
    gelu = activation(keys, "hidden_act", "gelu")
    feed_forward = FeedForward(keys.integer("intermediate_size"), gelu, gated=False, bias=True)
    own = {f"layers.{i}.input_norm": f"encoder.layer.{i - 1}.output.LayerNorm" for i in range(1, layers)}
    names = _BERT_LAYER | own | {"layers.0.input_norm": "embeddings.LayerNorm"}
    return ModelConfig(
        **sizes(inputs, hidden // heads, heads),
        max_positions=positions(replace(inputs, allow_longer=False), rows - first_position, rows - first_position),
        layers=(Layer(Attention(rope=None), feed_forward),) * layers,
        learned_positions=True,
        position_offset=first_position,
        token_types=keys.integer("type_vocab_size", 2),
        layer_norm=True,
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        norm_residual="all",
        qkv_bias=True,
        o_bias=True,
        bidirectional=True,
        pooled=True,
        tied_head=True,
        names=names | {"final_norm": f"encoder.layer.{layers - 1}.output.LayerNorm"},
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
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "modernbert": modernbert,
}
