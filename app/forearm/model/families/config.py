"""ModelConfig: the sizes and switches of one model that the native executor reads; families.py fills it in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from forearm.config.number_formats import DTypeName
from forearm.model.families.recurrences import CompressedAttention, Mamba2, Recurrent, keeps_state
from forearm.model.families.recurrent.time_mixing import Rwkv7

if TYPE_CHECKING:
    from forearm.array_types import Float32Array
    from forearm.model.families.encoders.dense import Dense
    from forearm.model.families.indexed.indexers import BlockIndexer, Indexer
    from forearm.model.families.recurrences import (
        AltUp,
        ConvolvedHeads,
        HashedNgrams,
        HyperConnections,
        RelativeBias,
        RouterMlp,
    )
    from forearm.model.modules.linear_module import LinearModule

# swiglu_oai: gpt-oss's clamped gate * sigmoid(1.702 gate) * (up + 1), only of a gated feed-forward. xielu: Apertus'
# activation with constants of its own in each layer, only of a feed-forward that is not gated.
Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "relu_squared", "swiglu_oai", "xielu"]
# around_mlp: before both halves of a layer, and after the feed-forward.
NormPlacement = Literal["pre", "post", "sandwich", "around_mlp", "none"]


@dataclass(frozen=True)
class Rope:
    """Angles of position * inv_freq[i] radians for pair i; cos and sin times `scale`. float32 [rotary_dim / 2]."""

    inv_freq: Float32Array
    scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True)
class Attention:
    """A mixer: softmax attention. Its fields are the properties that may differ from layer to layer.

    heads, kv_heads, head_dim: sizes of the layer's own; 0: ModelConfig's. value_dim: numbers of a head's values; 0:
    head_dim. keys_as_values: values are the projected keys, before their norm and rotation (Gemma 4). shared_from: the
    layer whose keys and values are read; None: the layer has its own. unit_qk: q and k are normalized per head, without
    weights, after their rotation (Llama 4). sinks: each head has one more logit in the denominator of its softmax.
    query_growth: queries at position p are multiplied by 1 + query_growth * log(1 + floor(n)), n = (p + query_first) /
    query_positions (Ministral 3, Llama 4); log(max(1, n)) if query_smooth (Inkling). scale: of scores; 0: the model's.
    """

    rope: int | None  # index into ModelConfig.ropes; None: no positions (SmolLM3's NoPE layers, OPT)
    window: int = 0  # keys j with i - j < window are visible; 0: all
    kv_heads: int = 0
    head_dim: int = 0
    keys_as_values: bool = False
    shared_from: int | None = None
    out_scale: float = 1.0  # multiplies its result
    segment: int = 0  # keys j of the query's segment are visible, j // segment = i // segment; 0: all
    unit_qk: bool = False
    query_growth: float = 0.0
    query_positions: int = 0
    query_first: int = 0
    heads: int = 0
    value_dim: int = 0
    sinks: bool = False
    o_bias: bool = False  # of this layer, where ModelConfig's is false
    blocks: BlockIndexer | None = None  # chooses the keys that are seen; None: all are
    convolved: ConvolvedHeads | None = None  # makes queries, keys and values of what is projected
    query_smooth: bool = False
    scale: float = 0.0
    bias: RelativeBias | None = None


@dataclass(frozen=True)
class LatentAttention:
    """A mixer: multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434).

    The cache keeps a latent of `rank` numbers and a rotated key of `rotary` numbers for each token, whatever the number
    of heads: ModelConfig.kv_heads is 1, and a head has rank + rotary numbers. plain, rotary: numbers of a query head
    that are not rotated, and that are. value: numbers of a value head. q_rank: rank of the latent that queries are made
    of; 0: they are made of the residual. query_growth, query_positions: as of Attention, with query_first 0 (Mistral
    4). indexer: chooses the keys that are seen; None: all are. scales: multiply the norms of the latents of queries and
    of keys and values (LongCat-Flash). heads, window: as of Attention. norm_eps: of these norms. key_norm: the rotated
    key is normalized before its rotation (dots3-note). joint_gates: queries, and behind them the gates of values, are
    made of the latent of queries twice, as it is behind its normalized numbers (A.X K2).
    """

    rope: int | None  # None: nothing is rotated (Kimi Linear)
    rank: int
    plain: int
    rotary: int
    value: int
    q_rank: int = 0
    query_growth: float = 0.0
    query_positions: int = 0
    indexer: Indexer | None = None
    scales: tuple[float, float] = (1.0, 1.0)
    heads: int = 0
    window: int = 0
    sinks: bool = False
    norm_eps: float = 1e-6
    key_norm: bool = False
    joint_gates: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | Recurrent


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward: down(activation(gate(x)) * up(x)), or down(activation(up(x))) if it is not gated (OPT).

    bias: each of its matrices has a bias. down_bias: the last one alone has. gate_scale, out_scale: multiply the gate
    before its activation, and the result. gate_cut: a token's gates become max(0, gate - mean - gate_cut * deviation)
    before it (You et al. 2025, arXiv:2506.06644); None: they do not. limit: the most of a gate, and of the magnitude
    that it multiplies. gate_limit: of a gate, if that is another. shifted: it reads each token mixed with the one
    before it (RWKV).
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    down_bias: bool = False
    gate_scale: float = 1.0
    out_scale: float = 1.0
    gate_cut: float | None = None
    limit: float = math.inf
    gate_limit: float | None = None
    shifted: bool = False


@dataclass(frozen=True)
class Experts:
    """A feed-forward of `count` experts, of which a router chooses `active` for each token: their weighted sum.

    width, activation, gated, bias, limit, gate_limit: those of one expert. score: what an expert's weight is made of.
    softmax: of all logits. sigmoid: of each logit. softmax_chosen: softmax of the logits of the chosen experts alone.
    sparse_mixer: Phi-3.5-MoE's, with `jitter`. sqrt_softplus: of each logit. sigmoid_chosen: sigmoid of each, of
    experts that are chosen by their logits (Kolibri 1). correction: a vector added to the scores to choose by, not to
    the weights. groups: if more than 1, experts are chosen from the `groups_kept` groups of neighbours whose
    `group_best` best scores have the largest sums (DeepSeek V2: 1, V3: 2). renormalized: weights are divided by the sum
    of the chosen scores + sum_epsilon. scale: then multiplies them. scales_input: weights multiply the expert's input
    instead of its result (Llama 4). shared: a feed-forward beside the experts, which every token takes. shared_gate:
    its result is multiplied with the sigmoid of a linear function of the token (Qwen2-MoE). apart: router, experts and
    shared feed-forward have norms of their own before them, and the latter two behind them; logits are multiplied with
    hidden ** -0.5, and each expert's weight with a factor (Gemma 4 26B-A4B). by_token: a table has the experts of each
    token, which scores weigh alone (DeepSeek V4's first layers). zeros: further experts that the router chooses from,
    whose result is their input (LongCat-Flash); skips: it is 0. router: what chooses experts; None: a matrix. behind:
    the result is added to the residual behind so many further layers, which don't read it; 0: behind this one. ahead:
    the router reads the residual before the layer's mixer, without a norm (SmallThinker). always: the last so many of
    the experts are among those that every token chooses (Inkling's shared ones).
    """

    width: int
    count: int
    active: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    score: Literal["softmax", "sigmoid", "softmax_chosen", "sparse_mixer", "sqrt_softplus", "sigmoid_chosen"] = (
        "softmax"
    )
    correction: bool = False
    groups: int = 1
    groups_kept: int = 1
    group_best: int = 2
    renormalized: bool = False
    sum_epsilon: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0
    scales_input: bool = False
    router_bias: bool = False
    shared: FeedForward | None = None
    shared_gate: bool = False
    apart: bool = False
    limit: float = math.inf
    gate_limit: float | None = None
    by_token: bool = False
    zeros: int = 0
    behind: int = 0
    ahead: bool = False
    skips: bool = False
    router: RouterMlp | None = None
    always: int = 0


@dataclass(frozen=True)
class Layer:
    """One layer: a mixer, which combines tokens, and a feed-forward, which treats each token alone, or one of them.

    beside: reads the same rows as the mixer, which is attention; the results of both are added.
    norm_placement: None: ModelConfig's. aside: attention reads the residual and the embedding side by side, the
    feed-forward attention's result, and a linear function of its result is added to what the next layer, Mamba2, reads,
    but not to the residual (Zamba2). ngrams: added to the residual streams before the layer.
    """

    mixer: Mixer | None
    feed_forward: FeedForward | Experts | None
    beside: Mamba2 | None = None
    norm_placement: NormPlacement | None = None
    aside: bool = False
    ngrams: HashedNgrams | None = None

    @property
    def mamba2(self) -> Mamba2 | None:
        """Return Mamba2, alone or beside attention; None: the layer has none."""
        return self.mixer if isinstance(self.mixer, Mamba2) else self.beside


@dataclass(frozen=True)
class ModelConfig:
    """A transformer: all that changes its results, and nothing about files or threads."""

    model_type: str
    dtype: DTypeName  # of the checkpoint
    vocab_size: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    layers: tuple[Layer, ...]
    ropes: tuple[Rope, ...] = ()
    learned_positions: bool = False
    position_offset: int = 0  # OPT's learned positions start at row 2
    token_types: int = 0  # rows of the token type embedding (BERT)
    bidirectional: bool = False  # every token attends to the whole prompt; windows reach to both sides
    # Attention adds a bias to each score, one value for a bucket of distances and a head: the bucket of each distance
    # key - query from -reach to reach, those beyond it as these (bert_like.py); (): no bias. each_layer: by its own
    # table (umT5). embedded: products of query and key with the bucket's embedding, projected as they are (DeBERTa), or
    # embedded_apart: by its own matrices, without a norm (DeBERTa 1).
    distance_buckets: tuple[int, ...] = ()
    distance_bias: Literal["shared", "each_layer", "embedded", "embedded_apart"] = "shared"
    slopes: tuple[float, ...] = ()  # of each head: times the distance, subtracted from its scores (ALiBi); (): none
    embed_norm: bool = False  # a norm behind the embedding, whose output is the residual (Bloom)
    fuses: bool = False  # the residual begins with the embedding and a row beside each token, joined (predictor.py)
    keeps_hidden: bool = False  # a step keeps the rows of all tokens behind the final norm
    embed_width: int = 0  # numbers of an embedding that is projected behind its norm (ALBERT); 0: hidden, as they are
    dropped_token: int | None = None  # its embedding is 0, the others of its text grow as if it were dropped (ESM)
    norm_eps: float = 1e-6
    layer_norm: bool = False  # LayerNorm instead of RMSNorm
    norm_bias: bool = True  # of LayerNorm
    centred: bool = False  # norms and the matrices behind them have biases (quantization/centred.py)
    norm_residual: Literal["none", "first", "all"] = "none"  # norms whose output it is: of embeddings, or each (BERT)
    norm_placement: NormPlacement = "pre"
    norm_plus_one: bool = False  # weights are stored minus one (Gemma)
    norm_weight: bool = True  # of the residual's norms (OLMo 1 has none)
    final_norm: bool = True
    parallel_residual: bool = False  # both halves of a layer read the same residual, and both are added to it
    qk_norm: Literal["none", "head", "each_head", "full"] = "none"  # one for all heads; for each; over all of them
    qk_norm_after_rope: bool = False
    qk_norm_bias: bool = False  # of LayerNorms of each head
    norm_gates: int = 0  # rank of the gates behind norms before mixers and experts (A.X K2); 0: there are none
    attention_gate: Literal["none", "sigmoid", "softplus"] = "none"  # of linear functions of the token, times results
    head_gates: bool = False  # one for each head instead of one for each number of its result
    v_norm: bool = False  # values are normalized per head, without weights (Gemma 4)
    sub_norm: bool = False  # RMSNorms of what o and down read, over whole rows (BitNet)
    conv_taps: int = 0  # of four short convolutions in each layer (Inkling; recurrent/inkling.py); 0: there are none
    stored_vocab: int = 0  # rows of the checkpoint's embedding, of which the first are tokens'; 0: vocab_size
    layer_scalar: bool = False  # the residual is multiplied with a number of the checkpoint at the end of each layer
    merges: bool = False  # the residual, and what is added to it, get vectors added and are multiplied with vectors
    qkv_clip: float = 0.0  # q, k and v are clamped to this size; 0: not
    per_layer: int = 0  # values that a second embedding of each token has for each layer (Gemma 3n and 4); 0: none
    per_layer_scale: float = 1.0
    per_layer_vocab: int = 0  # rows of its table, of which tokens beyond have the first one; 0: vocab_size
    alt_up: AltUp | None = None  # several residual streams (Gemma 3n); None: one
    hyper_connections: HyperConnections | None = None  # several residual streams (DeepSeek V4); None: one
    qkv_bias: bool = False
    key_bias: bool = True  # keys have one, too, if queries and values have
    o_bias: bool = False
    head_bias: bool = False
    head_dense: Dense | None = None  # between the final norm and the head (ModernBERT)
    tied_head: bool = False
    attention_scale: float = 1.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    logits_scale: float = 1.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    pooled: bool = False  # the executor returns outputs of the final norm: there is no head, prompts are not chunked
    dense: tuple[Dense, ...] = ()
    modules: bool = False  # transformers computes (model/modules); the executor multiplies for linears, and attends
    linears: tuple[LinearModule, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    # Names of tensors that differ from Llama's, of all layers or a single one (names.py; of experts: _PLACE). Behind a
    # name: "[i]": the i-th of equal parts. "[i::2]": every second row. "[first:rows:step]": pieces of `rows` rows, each
    # `step` rows after the one before. "[halves]": the rows of each head's two halves alternate. "[_a,_b]": rows of two
    # tensors, whose names end so.
    names: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)  # matrices that are another's, or a lender's (predictor.py)

    def heads_of(self, mixer: Attention | LatentAttention | CompressedAttention) -> tuple[int, int, int]:
        """Return the numbers of a layer's heads and kv heads, and the size of its heads."""
        if isinstance(mixer, LatentAttention):
            return mixer.heads or self.heads, 1, mixer.rank + mixer.rotary
        if not isinstance(mixer, Attention):
            return self.heads, self.kv_heads, self.head_dim
        return mixer.heads or self.heads, mixer.kv_heads or self.kv_heads, mixer.head_dim or self.head_dim

    @property
    def layers_stand_alone(self) -> bool:
        """True if a layer can be computed by itself: it has keys of its own, and reads and changes one residual."""
        latents = [layer.mixer for layer in self.layers if isinstance(layer.mixer, LatentAttention)]
        shares = any(one.indexer and one.indexer.shared for one in latents) or self.per_layer or self.hyper_connections
        mixers = [layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)]
        own = self.fuses or any(m.shared_from is not None for m in mixers)
        own = own or any(layer.aside or isinstance(layer.mixer, Rwkv7) for layer in self.layers)
        own = own or any(isinstance(e := one.feed_forward, Experts) and (e.behind or e.router) for one in self.layers)
        return not (own or shares) and self.norm_residual in (("none",) if self.pooled else ("none", "first"))

    @property
    def has_states(self) -> bool:
        """True if a layer keeps a state of each sequence, which is of one position alone, beside keys and values."""
        return self.conv_taps > 0 or any(keeps_state(layer.mamba2 or layer.mixer) for layer in self.layers)
