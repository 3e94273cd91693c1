"""Random models of every shape that forward() has a branch for: what the tests of the same tokens run on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, Layer, ModelConfig, Rope
from forearm.model.families.encoders.dense import Dense
from forearm.model.families.indexed.indexers import BlockIndexer, Indexer
from forearm.model.families.recurrences import (
    AltUp,
    CompressedAttention,
    ConvolvedHeads,
    GatedDelta,
    HashedNgrams,
    HyperConnections,
    Lightning,
    Mamba2,
    RelativeBias,
    RgLru,
    RouterMlp,
    SelectiveScan,
    ShortConv,
)
from forearm.model.families.recurrent.time_mixing import Rwkv7


def rope(head_dim: int) -> Rope:
    return Rope(inv_freq=(10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32))


def layers(
    feed_forward: FeedForward | Experts, rope: int | None = 0, windows: tuple[int, int] = (0, 0)
) -> tuple[Layer, ...]:
    return tuple(Layer(Attention(rope, window), feed_forward) for window in windows)


LLAMA = ModelConfig(
    model_type="llama",
    dtype="float32",
    vocab_size=301,
    hidden=96,
    heads=6,
    kv_heads=2,
    head_dim=16,
    max_positions=4096,
    layers=layers(FeedForward(176)),
    ropes=(rope(16),),
    attention_scale=0.25,
)
BY_CHANNEL = (
    Layer(GatedDelta(3, 3, 20, 20, 4, gate_rank=20, by_channel=True), FeedForward(176)),
    Layer(LatentAttention(None, rank=32, plain=12, rotary=8, value=20), FeedForward(100)),
    Layer(GatedDelta(2, 4, 16, 80, 3, by_channel=True, least_decay=-5.0), FeedForward(100)),
)
LATENT = replace(LLAMA, heads=20, kv_heads=1, head_dim=40, ropes=(rope(8),))
MLA = LatentAttention(0, rank=32, plain=12, rotary=8, value=20, q_rank=28)
INDEXERS = (Indexer(9, 32, 600), Indexer(9, 32, 600, interleaved=True), Indexer(9, 32, 600, shared=True))
SLIDING = LatentAttention(1, 48, 20, 12, 28, q_rank=44, heads=6, window=70, norm_eps=1e-5, key_norm=True)
CHOOSING = [replace(MLA, indexer=one) for one in INDEXERS]
# Entries of which there are two chunks; those that are chosen, of as many tokens as a block holds a multiple of or not.
PLAIN = CompressedAttention(0, 1, 28, window=600, groups=2, group_rank=20)
CHOSEN = replace(PLAIN, window=20, overlapping=True, index_heads=9, index_dim=32)
COMPRESSED = (
    PLAIN,
    replace(CHOSEN, ratio=4, chosen=40),
    replace(PLAIN, window=20, ratio=2),
    replace(CHOSEN, ratio=6, chosen=100),
    replace(PLAIN, ratio=128),
)
LOOKED_UP = Experts(40, 12, 3, score="sqrt_softplus", renormalized=True, shared=FeedForward(72, limit=0.7), limit=0.5)
LIMITED = Experts(40, 12, 3, score="sigmoid", correction=True, renormalized=True, scale=3.0, limit=0.2, gate_limit=0.3)
LIMITED = replace(LIMITED, shared=FeedForward(72, limit=0.3, gate_limit=0.45))
BESIDE_SHARED = Experts(40, count=12, active=3, shared=FeedForward(72), shared_gate=True)
NGRAMS = HashedNgrams(2, 40, 3, 7, (12345678901, 998877, 5000000029), (101, 103, 107, 109), 424)
# A bias that reaches over two chunks of keys, and one that ends with a window; experts that every token chooses.
ATTENDING, NEAR = Attention(None, bias=RelativeBias(12, 600)), RelativeBias(8, 70)
SINKING = Experts(40, 14, 5, score="sigmoid", correction=True, renormalized=True, scale=3.0, always=2)
ON_SHORTCUT = Experts(40, 7, 4, correction=True, scale=1.5, zeros=5, behind=2)
BACK = replace(rope(8), inv_freq=-rope(8).inv_freq)
# Cases with other branches of forward(): full-width qk-norm and norms after the layers; sandwich norms, windows and
# softcaps; heads of two shapes, with caches that layers share; an embedding of each layer, with several residual
# streams and cut gates, too; experts apart from a dense feed-forward; learned positions, LayerNorm, biases and no gate;
# heads that end inside a panel; experts, a gated shared one beside them in one layer, chosen by groups in the other;
# latent attention, with heads that the threads divide, beside experts on a shortcut, and to keys that are chosen;
# latents of several sizes, some of a window; gates behind norms, and beside queries; streams that are not mixed,
# attention to blocks that are chosen; compressed attention of several streams; streams with gates, complete blocks that
# are chosen for all heads, embeddings of several tokens.
SHAPES = {
    "llama": LLAMA,
    # 3, 2 and 5 times 64: activations before each matrix can be turned
    "widths of 64": replace(LLAMA, hidden=192, heads=8, layers=layers(FeedForward(320))),
    "olmo2": replace(LLAMA, qk_norm="full", norm_placement="post"),
    "gemma2": replace(
        LLAMA,
        norm_placement="sandwich",
        norm_plus_one=True,
        qk_norm="head",
        layers=layers(FeedForward(176, "gelu_tanh"), windows=(20, 700)),
        attention_softcap=50.0,
        logits_softcap=30.0,
        tied_head=True,
    ),
    "gemma4": replace(
        LLAMA,
        norm_placement="sandwich",
        qk_norm="head",
        v_norm=True,
        layer_scalar=True,
        layers=tuple(
            Layer(attention, FeedForward(176, "gelu_tanh"))
            for attention in (
                Attention(0, window=20),
                Attention(0, kv_heads=1, head_dim=40, keys_as_values=True),
                Attention(0, window=20, shared_from=0),
                Attention(0, kv_heads=1, head_dim=40, keys_as_values=True, shared_from=1),
            )
        ),
    ),
    "per layer": replace(
        LLAMA,
        norm_placement="sandwich",
        layer_scalar=True,
        layers=layers(FeedForward(176, "gelu_tanh"), windows=(20, 0)),
        per_layer=40,
        per_layer_scale=6.0,
    ),
    "streams": replace(
        LLAMA,
        norm_placement="sandwich",
        v_norm=True,
        layers=tuple(
            Layer(attention, FeedForward(width, "gelu_tanh", gate_cut=cut))
            for attention, width, cut in ((Attention(0, 20), 176, 1.2), (Attention(0), 92, None), (Attention(0), 76, 0))
        ),
        per_layer=40,
        per_layer_vocab=260,
        alt_up=AltUp(3, 12, scaled=True),
    ),
    "experts apart": replace(
        LLAMA,
        norm_placement="sandwich",
        layers=layers(Experts(40, 12, 3, "gelu_tanh", renormalized=True, shared=FeedForward(72), apart=True)),
    ),
    "opt": replace(
        LLAMA,
        layers=layers(FeedForward(176, "relu", gated=False, bias=True), rope=None),
        ropes=(),
        learned_positions=True,
        position_offset=2,
        layer_norm=True,
        qkv_bias=True,
        o_bias=True,
    ),
    "xielu and segments": replace(
        LLAMA,
        layers=(
            Layer(Attention(0, segment=70, unit_qk=True), FeedForward(176, "xielu", gated=False)),
            Layer(Attention(None, query_growth=0.4, query_positions=20, query_first=1), FeedForward(100)),
            Layer(
                Attention(0, segment=600), Experts(40, 7, 2, score="sigmoid", scales_input=True, shared=FeedForward(72))
            ),
        ),
    ),
    "odd heads": replace(
        LLAMA, head_dim=24, heads=3, kv_heads=3, ropes=(rope(24),), hidden=52, layers=layers(FeedForward(100))
    ),
    "convolutions": replace(
        LLAMA,
        qk_norm="head",
        layers=(
            Layer(ShortConv(3), FeedForward(176)),
            Layer(Attention(0), FeedForward(100)),
            Layer(ShortConv(4, bias=True), FeedForward(100)),
        ),
    ),
    "mamba2": replace(
        LLAMA,
        layers=(
            Layer(Mamba2(heads=6, groups=2, head_dim=24, state_dim=20, taps=4), FeedForward(176)),
            Layer(Attention(None), FeedForward(100)),
            Layer(Mamba2(5, 1, 32, 16, 3, conv_bias=False, bias=True, dt_most=2.0), FeedForward(100)),
        ),
    ),
    "selective scan": replace(
        LLAMA,
        layers=(
            Layer(SelectiveScan(150, 20, 9, 4, norm_eps=1e-6, norm_weights=True), FeedForward(176)),
            Layer(Attention(None), Experts(40, count=12, active=3)),
            Layer(SelectiveScan(96, 16, 40, 3, conv_bias=False, bias=True, norm_eps=1e-5), None),
            Layer(SelectiveScan(144, 16, 5, 4), None),
        ),
    ),
    "rg-lru": replace(
        LLAMA,
        norm_plus_one=True,
        o_bias=True,
        logits_softcap=30.0,
        layers=(
            Layer(RgLru(150, 6, 4), FeedForward(100, "gelu_tanh", bias=True)),  # heads of 25 channels end inside panels
            Layer(Attention(0, window=20), FeedForward(88, "gelu_tanh", bias=True)),
            Layer(RgLru(96, 2, 3), FeedForward(100, "gelu_tanh", bias=True)),
        ),
    ),
    "time mixing": replace(
        LLAMA,
        layer_norm=True,
        embed_norm=True,
        layers=tuple(
            Layer(Rwkv7(heads, dim, 20, 16, few, 40), FeedForward(100, "relu_squared", gated=False, shifted=True))
            for heads, dim, few in ((6, 25, 0), (2, 75, 12), (6, 25, 33))  # which end inside panels
        ),
    ),
    # heads of 20 numbers end inside panels; a layer skips experts, and its router has what the one before hands on
    "convolved heads": replace(
        LLAMA,
        heads=6,
        head_dim=20,
        ropes=(rope(8), rope(20)),
        merges=True,
        layers=tuple(
            Layer(
                Attention(own, window, convolved=ConvolvedHeads(taps, head_taps)),
                Experts(40, 12, 1, correction=True, zeros=1, skips=True, router=RouterMlp(28, follows)),
            )
            for own, window, taps, head_taps, follows in ((0, 0, 2, 2, False), (1, 20, 4, 3, True), (0, 0, 2, 2, True))
        ),
    ),
    "two mixers and one half": replace(
        LLAMA,
        layers=(
            Layer(None, FeedForward(72, gate_scale=0.7, out_scale=0.6)),
            Layer(
                Attention(0, out_scale=0.9),
                FeedForward(100),
                beside=Mamba2(6, 3, 24, 20, 4, norm=False, x_scale=0.8, b_scale=1.2, dt_scale=0.5, out_scale=0.4),
            ),
            Layer(Mamba2(4, 1, 16, 16, 4, gate_first=False, z_scale=0.8), None),
            Layer(Attention(None), None),
            Layer(None, Experts(40, count=12, active=3, activation="relu_squared", gated=False)),
        ),
    ),
    "beside the residual": replace(
        LLAMA,
        head_dim=32,
        layers=(
            Layer(Attention(0), FeedForward(176, "gelu_erf"), aside=True),
            Layer(Mamba2(heads=6, groups=2, head_dim=24, state_dim=20, taps=4), None),
            Layer(Mamba2(heads=6, groups=2, head_dim=24, state_dim=20, taps=4), None),
            Layer(Attention(0), FeedForward(176, "gelu_erf"), aside=True),
            Layer(Mamba2(heads=6, groups=2, head_dim=24, state_dim=20, taps=4), None),
        ),
        shared={f"layers.3.{name}": f"layers.0.{name}" for name in ("qkv", "o", "down")},
    ),
    "delta": replace(
        LLAMA,
        qk_norm="head",
        norm_plus_one=True,
        attention_gate="sigmoid",
        layers=(
            Layer(GatedDelta(2, 4, 16, 24, 4), FeedForward(176)),
            Layer(Attention(0), FeedForward(100)),
            Layer(GatedDelta(3, 3, 20, 80, 3), FeedForward(100)),
        ),
    ),
    "norms by layer": replace(
        LLAMA,
        norm_placement="post",
        layers=(
            Layer(GatedDelta(2, 4, 16, 24, 4, beta_scale=2.0, gate_norm_eps=1e-5), FeedForward(176), None, "pre"),
            *(Layer(Attention(None), FeedForward(100)), Layer(Attention(0), FeedForward(100), None, "pre")),
            Layer(Attention(0), FeedForward(100), None, "around_mlp"),
        ),
    ),
    "heads by layer": replace(
        LLAMA,
        qk_norm="head",
        attention_gate="softplus",
        head_gates=True,
        layers=(
            Layer(Attention(0, heads=2 * LLAMA.kv_heads, sinks=True), FeedForward(176)),
            Layer(Attention(0, window=20, head_dim=36, value_dim=20, sinks=True), FeedForward(100)),
            Layer(Attention(0, heads=5 * LLAMA.kv_heads), FeedForward(100)),
        ),
    ),
    "lightning": replace(
        LLAMA,
        norm_residual="all",
        residual_scale=0.6,
        layers=(
            Layer(Lightning(5, 20, (0.9, 0.4, 0.1, 0.03, 1e-4)), Experts(40, count=12, active=3)),
            Layer(Attention(0), Experts(40, count=12, active=3, renormalized=True)),
            Layer(Lightning(3, 32, (2.0, 0.01, 0.5), out_scale=0.7), FeedForward(100)),
        ),
    ),
    "slopes": replace(
        LLAMA, slopes=(0.5, 0.25, 0.1, 0.02, 0.003, 0.0), embed_norm=True, layers=layers(FeedForward(176), None)
    ),
    "norms of heads with biases": replace(
        LLAMA,
        layer_norm=True,
        qk_norm="each_head",
        qk_norm_bias=True,
        layers=(Layer(Attention(0), FeedForward(176)), Layer(Attention(0, o_bias=True), FeedForward(100))),
    ),
    "a layer before the head": replace(
        LLAMA,
        tied_head=True,
        head_bias=True,
        norm_residual="first",
        head_dense=Dense(LLAMA.hidden, "lm_head.dense", activation="gelu_erf", norm="lm_head.norm"),
    ),
    "norms within halves": replace(LLAMA, sub_norm=True, layers=layers(FeedForward(176, "relu_squared"))),
    "latent": replace(LATENT, layers=(Layer(MLA, FeedForward(176)),) * 2),
    "shortcut": replace(
        LATENT,
        layers=(Layer(MLA, ON_SHORTCUT), Layer(None, FeedForward(100)), Layer(MLA, FeedForward(176))) * 2,
    ),
    "chosen keys": replace(LATENT, layers=tuple(Layer(one, FeedForward(176)) for one in CHOOSING)),
    "latents of several sizes": replace(
        LATENT,
        attention_gate="sigmoid",
        head_gates=True,
        ropes=(rope(8), rope(12)),
        layers=(
            Layer(replace(MLA, indexer=INDEXERS[1], norm_eps=1e-5, key_norm=True), FeedForward(176)),
            Layer(SLIDING, Experts(40, 12, 3)),
            Layer(replace(MLA, key_norm=True), FeedForward(100)),
            Layer(SLIDING, FeedForward(100)),
        ),
    ),
    "gated norms": replace(
        LATENT,
        attention_gate="sigmoid",
        norm_gates=10,
        layers=tuple(
            Layer(replace(one, joint_gates=True), half)
            for one, half in zip(
                (MLA, *CHOOSING[1:]),
                (FeedForward(176), Experts(40, 12, 3, shared=FeedForward(72)), Experts(40, 12, 3)),
                strict=True,
            )
        ),
    ),
    "streams that keep their rows": replace(
        LATENT,
        attention_gate="sigmoid",
        hyper_connections=HyperConnections(3, 0, 1e-6, 1.3),
        layers=tuple(
            Layer(replace(MLA, sinks=True, indexer=replace(one, last=True, key_eps=1e-5)), half)
            for one, half in zip(INDEXERS, (FeedForward(176), *(Experts(40, 12, 3, limit=0.5),) * 2), strict=True)
        ),
    ),
    "chosen blocks": replace(
        LLAMA,
        qk_norm="head",
        norm_plus_one=True,
        layers=tuple(
            Layer(Attention(0, blocks=blocks), FeedForward(176, "swiglu_oai"))
            for blocks in (BlockIndexer(32, 64, 9, 2), None, BlockIndexer(32, 64, 9))
        ),
    ),
    "gated streams": replace(
        LLAMA,
        qk_norm="head",
        norm_plus_one=True,
        attention_gate="sigmoid",
        norm_placement="none",
        final_norm=False,
        hyper_connections=HyperConnections(3, 0, 0.0, rank=20),
        names={"hyper_attention": "attention", "hyper_mlp": "mlp", "hyper_head": "head"},
        layers=(
            Layer(GatedDelta(2, 4, 16, 24, 4), BESIDE_SHARED, ngrams=NGRAMS),
            Layer(Attention(0, blocks=BlockIndexer(32, 24, 20, heads=9)), BESIDE_SHARED),
            Layer(GatedDelta(2, 4, 16, 24, 4, sigmoid_gate=True), BESIDE_SHARED, ngrams=NGRAMS),
        ),
    ),
    "compressed": replace(
        LLAMA,
        heads=20,
        kv_heads=1,
        head_dim=48,
        ropes=(rope(8), BACK),
        hyper_connections=HyperConnections(3, 4, 1e-6),
        layers=tuple(
            Layer(own, replace(LOOKED_UP, by_token=i < 2, correction=i > 1)) for i, own in enumerate(COMPRESSED)
        ),
    ),
    "limits by layer": replace(
        LLAMA,
        qk_norm="head",
        norm_plus_one=True,
        attention_gate="sigmoid",
        head_gates=True,
        layers=(
            Layer(Attention(0), FeedForward(176, limit=0.4, gate_limit=0.6)),
            Layer(Attention(0, 600, heads=8), LIMITED),
            Layer(Attention(0), replace(LIMITED, limit=0.6, gate_limit=0.9, shared=FeedForward(72))),
        ),
    ),
    "four convolutions": replace(
        LLAMA,
        embed_norm=True,
        qk_norm="head",
        conv_taps=4,
        layers=(
            Layer(replace(ATTENDING, window=70, heads=4, kv_heads=1, head_dim=20, bias=NEAR), FeedForward(176)),
            Layer(replace(ATTENDING, query_growth=0.3, query_positions=100, query_first=1, query_smooth=True), SINKING),
            Layer(replace(ATTENDING, scale=0.1), FeedForward(100)),
        ),
    ),
    "delta by channel": replace(
        LLAMA, heads=5, kv_heads=1, head_dim=40, ropes=(), attention_gate="sigmoid", head_gates=True, layers=BY_CHANNEL
    ),
    "experts": replace(
        LLAMA,
        layers=(
            Layer(Attention(0), Experts(40, count=12, active=3, shared=FeedForward(72), shared_gate=True)),
            Layer(
                Attention(0),
                Experts(
                    *(56, 16, 4, "swiglu_oai"),
                    bias=True,
                    score="sigmoid",
                    correction=True,
                    groups=4,
                    groups_kept=2,
                    renormalized=True,
                    scale=1.5,
                ),
            ),
        ),
    ),
}
