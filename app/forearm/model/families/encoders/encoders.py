"""Encoders: the table of their families by `model_type`, and ModernBERT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forearm.model.families import switches
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig, Rope
from forearm.model.families.decoder import ACTIVATIONS, FamilyInputs, activation, decoder, positions, sizes
from forearm.model.families.encoders import bert_like, deberta, llama_like, pre_norm, projected
from forearm.model.families.encoders.bert_like import MOST_DISTANCE, distance_buckets
from forearm.model.families.encoders.dense import Dense
from forearm.model.families.encoders.jina_v2 import jina_v2
from forearm.model.families.encoders.nomic_moe import nomic_bert_moe
from forearm.model.families.keys import Keys

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


_T5 = {
    "embed": "shared",
    "layers": "encoder.block",
    **{part: f"layer.0.SelfAttention.{part}" for part in "qkvo"},
    "gate": "layer.1.DenseReluDense.wi_0",
    "up": "layer.1.DenseReluDense.wi",
    "down": "layer.1.DenseReluDense.wo",
    "input_norm": "layer.0.layer_norm",
    "pre_mlp_norm": "layer.1.layer_norm",
    "final_norm": "encoder.final_layer_norm",
    "attention_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
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


def modernbert_decoder(inputs: FamilyInputs) -> ModelConfig:
    """Ettin's decoders: ModernBERT that sees no later tokens; a layer and a norm stand before its head."""
    inputs = inputs.with_defaults(local_attention=128, tie_word_embeddings=True)
    keys = inputs.keys
    if keys.object("rope_scaling"):
        raise keys.wrong("rope_scaling", "null: angles are those of rope_parameters, by layer type")
    # With the query's own key; transformers writes it, published files have twice as many in local_attention.
    window = keys.integer("sliding_window", keys.integer("local_attention") // 2)
    if window < 1:
        raise keys.wrong("local_attention", "2 or more: twice the keys of a window")
    encoder = modernbert(inputs)
    act, bias = activation(keys, "classifier_activation", "gelu"), keys.flag("classifier_bias")
    return replace(
        encoder,
        layers=tuple(
            replace(one, mixer=Attention(rope=1, window=window)) if one.mixer != Attention(rope=0) else one
            for one in encoder.layers
        ),
        bidirectional=False,
        pooled=False,
        tied_head=keys.flag("tie_word_embeddings"),
        head_bias=keys.flag("decoder_bias", True),
        head_dense=Dense(encoder.hidden, "lm_head.dense", bias, act, "lm_head.norm"),
        names=_MODERN | {"head": "decoder"} | {part: f"attn.{part}_proj" for part in "qkv"},
    )


def _modern_ropes(inputs: FamilyInputs, head_dim: int) -> tuple[Rope, Rope]:
    """Return the rotary angles of layers with full attention, and of layers with a window.

    Older files have global_rope_theta and local_rope_theta; newer files have rope_parameters by layer type.
    """
    from forearm.model.families.rope import Lengths, rope

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


def t5(inputs: FamilyInputs) -> ModelConfig:
    """T5's encoder: sentence-t5, gtr; RMSNorm, no positions but a bias of attention by distance, scores not scaled."""
    keys = inputs.keys
    keys.get("is_encoder_decoder")  # marks it as read: files give the whole model's value with the encoder alone
    named = {
        "hidden_size": keys.integer("d_model", 512),
        "num_attention_heads": keys.integer("num_heads", 8),
        "num_hidden_layers": keys.integer("num_layers", 6),
        "intermediate_size": keys.integer("d_ff", 2048),
        "head_dim": keys.integer("d_kv", 64),
        "max_position_embeddings": keys.integer("n_positions", 512),
        "rms_norm_eps": keys.number("layer_norm_epsilon", 1e-6),
    }
    inputs = inputs.with_defaults(**named)
    buckets = keys.integer("relative_attention_num_buckets", 32)
    reach = keys.integer("relative_attention_max_distance", 128)
    if buckets % 2 or not 4 <= buckets <= 2 * MOST_DISTANCE:
        raise keys.wrong("relative_attention_num_buckets", f"an even number from 4 to {2 * MOST_DISTANCE}")
    if not buckets // 4 < reach <= MOST_DISTANCE:
        raise keys.wrong("relative_attention_max_distance", f"{buckets // 4 + 1} to {MOST_DISTANCE}")
    gate, _, act = keys.text("feed_forward_proj", "relu").rpartition("-")
    if gate not in ("", "gated") or act not in ACTIVATIONS:
        raise keys.wrong("feed_forward_proj", f"relu, or gated- and one of {', '.join(ACTIVATIONS)}")
    gelu_new = (gate, act) == ("gated", "gelu")  # transformers reads gated-gelu as the approximation
    return decoder(
        inputs,
        mixers=[Attention(rope=None)] * inputs.layers,
        ropes=(),
        act="gelu_tanh" if gelu_new else ACTIVATIONS[act],
        gated=gate == "gated",
        attention_scale=1.0,
        distance_buckets=distance_buckets(buckets, reach),
        bidirectional=True,
        pooled=True,
        tied_head=True,
        names=_T5 | ({"up": "layer.1.DenseReluDense.wi_1"} if gate else {}),
    )


def mt5(inputs: FamilyInputs) -> ModelConfig:
    """mT5's encoder: T5's, trained on a hundred languages, with a gated feed-forward."""
    return t5(inputs.with_defaults(d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu"))


def umt5(inputs: FamilyInputs) -> ModelConfig:
    """umT5's encoder: mT5's, with a bias of attention of its own in each layer."""
    names = {"attention_bias": "layer.0.SelfAttention.relative_attention_bias"}
    shared = mt5(inputs)
    return replace(shared, distance_bias="each_layer", names=shared.names | names)


def bert(inputs: FamilyInputs) -> ModelConfig:
    """BERT: MiniLM, bge-*-en, e5-*, mxbai, ms-marco rerankers; jina-embeddings-v2, which is of this type, too."""
    alibi = inputs.keys.get("position_embedding_type") == "alibi"
    return jina_v2(inputs) if alibi else bert_like.bert(inputs)


ENCODERS: dict[str, Callable[[FamilyInputs], ModelConfig]] = {
    "bert": bert,
    "roberta": bert_like.roberta,
    "xlm-roberta": bert_like.roberta,
    "camembert": bert_like.roberta,
    "data2vec-text": bert_like.roberta,
    "electra": projected.electra,
    "albert": projected.albert,
    "rembert": projected.rembert,
    "ernie": bert_like.ernie,
    "xlm-roberta-xl": pre_norm.xlm_roberta_xl,
    "roberta-prelayernorm": pre_norm.roberta_prelayernorm,
    "megatron-bert": pre_norm.megatron_bert,
    "esm": pre_norm.esm,
    "eurobert": llama_like.eurobert,
    "neobert": llama_like.neobert,
    "distilbert": bert_like.distilbert,
    "modernbert": modernbert,
    "nomic_bert": bert_like.nomic_bert,
    "nomic_bert_moe": nomic_bert_moe,
    "gte": bert_like.gte,
    "new": bert_like.gte,  # the name in files with code of their own
    "jina_bert_v2": jina_v2,
    "jina_embeddings_v3": bert_like.jina_v3,
    "mpnet": bert_like.mpnet,
    "deberta": deberta.deberta,
    "deberta-v2": deberta.deberta_v2,
    "t5": t5,
    "mt5": mt5,
    "umt5": umt5,
}
