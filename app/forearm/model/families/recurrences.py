"""Mixers that keep a state (Mamba2, the gated delta rule, compression ...), several residual streams."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forearm.model.families.indexed.indexers import BlockIndexer
from forearm.model.families.recurrent.time_mixing import Rwkv7


@dataclass(frozen=True)
class Mamba2:
    """A mixer: a state of each head, moved by each token (Dao and Gu 2024, arXiv:2405.21060).

    z, x, b, c and dt are linear functions of a token; x, b and c go through a convolution and silu. A head's state
    [state_dim, head_dim] is multiplied with exp(-dt * exp(a_log)), b * dt * x is added, and y = c * state + d * x;
    y * silu(z) is normalized over each of `groups` parts. gate_first: false: y is normalized before the gate.
    norm: false: there is none.

    groups: heads / groups neighbours share b and c. taps: of the convolution; the last taps - 1 tokens are state too.
    dt_least, dt_most: bounds of dt, behind its softplus. bias: the matrices have one.
    """

    heads: int
    groups: int
    head_dim: int
    state_dim: int
    taps: int
    conv_bias: bool = True
    bias: bool = False
    dt_least: float = 0.0
    dt_most: float = math.inf
    norm: bool = True
    gate_first: bool = True
    z_scale: float = 1.0  # z .. dt and the result are multiplied with these (Falcon-H1)
    x_scale: float = 1.0
    b_scale: float = 1.0
    c_scale: float = 1.0
    dt_scale: float = 1.0
    out_scale: float = 1.0

    @property
    def inner(self) -> int:
        """Return the width of z, x and y."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Return the channels of the convolution: those of x, b and c."""
        return self.inner + 2 * self.groups * self.state_dim


@dataclass(frozen=True)
class SelectiveScan:
    """A mixer: a state of each of `inner` channels, moved by each token (Mamba; Gu and Dao 2023, arXiv:2312.00752).

    x and z are linear functions of a token; x goes through a convolution and silu. b, c and a latent of rank dt_rank
    are linear functions of x, and softplus of one of the latent is dt. A channel's state [state_dim] is multiplied with
    exp(-dt * exp(a_log)), dt * x * b is added, and y = c * state + d * x; the result is a function of y * silu(z).

    taps: of the convolution; the last taps - 1 tokens are state too. bias: the first and the last matrix have one.
    norm_eps: of RMSNorms of the latent, b and c; 0: there are none. norm_weights: they have weights.
    """

    inner: int
    state_dim: int
    dt_rank: int
    taps: int
    conv_bias: bool = True
    bias: bool = False
    norm_eps: float = 0.0
    norm_weights: bool = False


@dataclass(frozen=True)
class RgLru:
    """A mixer: the real-gated linear recurrent unit (De et al. 2024, arXiv:2402.19427; RecurrentGemma).

    x and y are linear functions of a token; x goes through a convolution. Each of `inner` channels has two gates, r and
    i, linear functions of x in the channels of its head, of which there are gate_heads. A channel's state, a number, is
    multiplied with a = exp(-8 * softplus(rate) * sigmoid(r)), sqrt(1 - a^2) * sigmoid(i) * x is added (without the root
    by a sequence's first token), and the result is a function of state * gelu(y).

    taps: of the convolution; the last taps - 1 tokens are state too.
    """

    inner: int
    gate_heads: int
    taps: int


@dataclass(frozen=True)
class GatedDelta:
    """A mixer: the gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear; Yang et al. 2024, arXiv:2412.06464).

    A value head's state is a matrix [key_dim, value_dim]. A token makes it forget by a factor, replaces part of what it
    holds for the token's key by the token's value, and reads it with the token's query.

    key_heads: heads of queries and keys; each has value_heads / key_heads value heads. taps: of a convolution over the
    tokens of each channel of queries, keys and values. tiled: value head h belongs to key head h % key_heads, as GGUF
    files order them; else a key head's value heads are neighbours.
    by_channel: each channel of a head's keys is forgotten by a factor of its own, and the results' gates are a sigmoid
    (Kimi Team 2025, arXiv:2510.26692); false: a head has one factor, and the gates are silu of a projection.
    gate_rank: rank of two latents that these factors and gates are made of; 0: they are projected at once.
    sigmoid_gate: the gates are a sigmoid in any case.
    least_decay: if not 0, factors are exp(least_decay * sigmoid(exp(a_log) * (a + dt_bias))) (Ling 3.0).
    beta_scale: multiplies the part that a token replaces (Grazzi et al. 2024, arXiv:2411.12537). gate_norm_eps: of the
    norm of results; 0: ModelConfig.norm_eps.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False
    gate_rank: int = 0
    beta_scale: float = 1.0
    gate_norm_eps: float = 0.0
    by_channel: bool = False
    least_decay: float = 0.0
    sigmoid_gate: bool = False

    @property
    def decays(self) -> int:
        """Return the number of factors that a token makes value heads forget by."""
        return self.value_heads * (self.key_dim if self.by_channel else 1)

    @property
    def channels(self) -> int:
        """Return the channels of the convolution: those of queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Lightning:
    """A mixer: lightning attention (Qin et al. 2024, arXiv:2405.17381; MiniMax-Text-01).

    A token multiplies a head's state [head_dim, head_dim] with exp(-slope), adds k v^T, and reads it with q; q, k and v
    are silu of linear functions of the token. Results are normalized over all heads, with an epsilon of their own, and
    multiplied with the sigmoid of a linear function. out_scale: multiplies what is added to the residual.
    """

    heads: int
    head_dim: int
    slopes: tuple[float, ...]
    norm_eps: float = 1e-6
    out_scale: float = 1.0

    @property
    def inner(self) -> int:
        """Return the width of q, k, v and the gates."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class ShortConv:
    """A mixer: c * convolution(b * x), where b, c and x are linear functions of a token (LFM2).

    taps: of each channel: the token's own, and those of the taps - 1 tokens before it, which are its state.
    bias: the convolution and the matrices around it have a bias.
    """

    taps: int
    bias: bool = False


@dataclass(frozen=True)
class ConvolvedHeads:
    """Convolutions of projected heads (compressed convolutional attention; Figliolia et al. 2025, arXiv:2510.04476).

    Queries and keys go through a convolution of `taps` tokens of each channel, and one of `head_taps` of its results of
    all channels of a head; both have biases. A query gets the mean of itself and its group's key, as projected, a key
    the mean of what its queries get. Each head is normalized, without weights, before its rotation; a number of its own
    multiplies a key head. The second half of values is the one that the token before has projected.
    """

    taps: int
    head_taps: int


@dataclass(frozen=True)
class RouterMlp:
    """A router that is an MLP (Anthony et al. 2025, arXiv:2511.17127; ZAYA1), of `rank` columns.

    A projection of the token, to which, if it follows, that of the layer before is added, scaled; the sum is handed on,
    normalized, and goes through two layers with GELU and biases, and a matrix.
    """

    rank: int
    follows: bool


@dataclass(frozen=True)
class AltUp:
    """Alternating updates (Baykal et al. 2023, arXiv:2301.13310) of `streams` residuals; layers compute the first.

    Before a layer each stream is predicted from all of them, after it each is corrected by what the layer changed; the
    embedding of each layer is added to all but the first, which is multiplied with a vector for it if `scaled`.
    laurel: rank of a path beside attention (Menghani et al. 2024, arXiv:2411.07501), which is added to the normed row.
    """

    streams: int
    laurel: int
    scaled: bool


@dataclass(frozen=True)
class CompressedAttention:
    """A mixer: attention to a window, and to entries that stand for `ratio` tokens each (DeepSeek V4).

    All heads share one key of ModelConfig.head_dim numbers a token, whose last numbers are rotated, and which is its
    value, too. An entry, one more such key, is a sum of numbers that the tokens give, weighted by a softmax of gates
    over them, normalized, and rotated as its first token; what the tokens so far add to the next one is a state.
    Queries, made of a latent of rank q_rank, are normalized per head, without weights. Results are rotated back, and
    each of `groups` groups of heads has a matrix of group_rank rows before the last one.

    rope, back: indices into ModelConfig.ropes: the angles of queries and keys, and the same with the other sign.
    ratio: 0: there are no entries. overlapping: an entry is made of the `ratio` tokens before its own, too.
    chosen: a token sees so many entries, of the largest scores, which are those of an Indexer of index_heads heads of
    index_dim numbers, with entries of its own as keys; 0: it sees all that are complete.
    """

    rope: int
    back: int
    q_rank: int
    window: int
    groups: int
    group_rank: int
    ratio: int = 0
    overlapping: bool = False
    index_heads: int = 0
    index_dim: int = 0
    chosen: int = 0

    @property
    def series(self) -> int:
        """Return how many entries a token adds to."""
        return 2 if self.overlapping else 1


@dataclass(frozen=True)
class RelativeBias:
    """A bias of scores by distance that each token makes for itself (Inkling).

    A head has `dim` numbers of the token, linear functions of it, which weigh as many profiles of the bias, each of a
    number for every distance from 0 to reach - 1 back. Keys farther back have none.
    """

    dim: int
    reach: int


@dataclass(frozen=True)
class HyperConnections:
    """Manifold-constrained hyper-connections of `streams` residuals (Xie et al. 2025, arXiv:2512.24880).

    Each half of a layer reads a weighted sum of the streams; its result is added to each by a weight, and the streams
    are mixed by a matrix that `rounds` rounds of dividing by the sums of columns and rows, with `eps` added to these,
    make doubly stochastic. The weights are functions of the token's streams.
    rounds: 0: streams are not mixed, and `eps` is added to the weight of a result, too. most: of such a weight (Hy4).
    rank: if not 0, a half reads the mean of the streams, each normalized, and each number times a gate of its own; the
    gates are made of `rank` functions of all streams, and halves and head have no other norm (Qwen4-Exp).
    """

    streams: int
    rounds: int
    eps: float
    most: float = 2.0
    rank: int = 0

    @property
    def scales(self) -> int:
        """Return the number of factors of the weights before a half."""
        return 3 if self.rounds else 2

    @property
    def weights(self) -> int:
        """Return the number of weights before a half: of what it reads, of its result, and of the matrix."""
        return (2 + self.streams if self.rounds else 2) * self.streams


@dataclass(frozen=True)
class HashedNgrams:
    """Embeddings of the last 2, 3 .. tokens together, which are added to all residual streams (Qwen4-Exp).

    Each number of tokens has `heads` hashes, which choose rows of one table; their embeddings, side by side, have
    `width` numbers. Keys and a value of these are gated by the streams, and go through a convolution of `taps` taps.
    multipliers: of the token itself and those before it, in the hash. sizes: rows of each head. rows: of the table, in
    which heads follow each other. end: the token that ends a text, which stands for all before it.
    """

    heads: int
    width: int
    taps: int
    end: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: int

    @property
    def head_width(self) -> int:
        """Return the numbers of an embedding of one head."""
        return self.width // len(self.sizes)


Recurrent = ShortConv | Mamba2 | SelectiveScan | RgLru | Rwkv7 | GatedDelta | Lightning


def keeps_state(mixer: object) -> bool:
    """Return True if a mixer keeps a state of each sequence, which is of one position alone."""
    blocks = getattr(mixer, "blocks", None)  # of attention, if it chooses some
    means = isinstance(blocks, BlockIndexer) and blocks.heads > 0
    compresses = isinstance(mixer, CompressedAttention) and mixer.ratio > 0
    convolves = getattr(mixer, "convolved", None) is not None
    return isinstance(mixer, Recurrent) or compresses or means or convolves
