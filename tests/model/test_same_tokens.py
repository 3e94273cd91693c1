"""Same request, same logits, bit for bit: whatever else is in the step, however the prompt is cut, on any threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.model.shapes import LLAMA, SHAPES

from forearm import _native
from forearm.config.number_formats import DTypeName, KvDTypeName, WeightFormat
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, Mixer, ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.families.recurrences import (
    CompressedAttention,
    GatedDelta,
    Lightning,
    Mamba2,
    RgLru,
    SelectiveScan,
    ShortConv,
)
from forearm.model.families.recurrent.time_mixing import Rwkv7

BLOCK = 32
Floats = npt.NDArray[np.float32]


class Weights:
    """Random weights, the same for the same config, into an executor."""

    def __init__(self, executor: _native.Executor, config: ModelConfig) -> None:
        self.executor, self.config = executor, config
        self.rng = np.random.default_rng(7)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        values = self.rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        self.executor.load_matrix(name, values, "float32")

    def vector(self, name: str, n: int, around: float) -> None:
        self.executor.load_vector(name, self.rng.normal(around, 0.2, n).astype(np.float32))

    def merge(self, name: str, count: int) -> None:
        """Load pairs of a vector that scales, and one that moves: a mean would be all that int8 has the range for."""
        around = np.tile(np.repeat([0.7, 0.0], self.config.hidden), count)
        self.executor.load_vector(name, self.rng.normal(around, 0.2).astype(np.float32))

    def norm(self, name: str) -> None:
        self.vector(name, self.config.hidden, 0.0 if self.config.norm_plus_one else 1.0)
        if self.config.layer_norm:
            self.vector(name + ".bias", self.config.hidden, 0.0)

    def load(self) -> None:
        config = self.config
        for spec in matrices(config):
            for part in spec.parts:
                self.matrix(part.name, spec.experts * part.rows, spec.k)
                if spec.bias:
                    self.vector(part.name + ".bias", spec.experts * part.rows, 0.0)
        if config.norm_placement != "none":  # a model without any has none before its head
            self.norm("final_norm")
        if config.merges:
            self.merge("embed_merge", 1)
        if config.head_dense:
            self.norm("head_dense.norm")
        if config.embed_norm:
            self.norm("embed_norm")
        if config.hyper_connections:
            self.hyper("hyper_head", config.hyper_connections.streams, 1)
        if config.per_layer:
            self.vector("per_layer_norm", config.per_layer, 1.0)
        for i, layer in enumerate(config.layers):
            self.layer(f"layers.{i}.")
            if config.sub_norm and isinstance(layer.feed_forward, FeedForward):
                self.vector(f"layers.{i}.attn_sub_norm", config.heads * config.head_dim, 1.0)
                self.vector(f"layers.{i}.ffn_sub_norm", layer.feed_forward.width, 1.0)
            if isinstance(own := layer.feed_forward, Experts) and own.correction:
                self.vector(f"layers.{i}.correction", own.count + own.zeros - own.always, 0.0)
            if isinstance(layer.feed_forward, Experts) and (router := layer.feed_forward.router):
                self.vector(f"layers.{i}.router_norm", router.rank, 1.0)
                if router.follows:
                    self.vector(f"layers.{i}.router_state", router.rank, 1.0)
            if isinstance(layer.feed_forward, Experts) and layer.feed_forward.by_token:
                table = self.rng.integers(0, layer.feed_forward.count, config.vocab_size * layer.feed_forward.active)
                self.executor.load_vector(f"layers.{i}.experts_by_token", table.astype(np.float32))
            if isinstance(layer.feed_forward, Experts) and layer.feed_forward.apart:
                self.vector(f"layers.{i}.expert_scale", layer.feed_forward.count, 1.0)
                for name in ("router", "pre_experts", "post_experts", "post_shared"):
                    self.norm(f"layers.{i}.{name}_norm")
        self.executor.finish_loading()

    def hyper(self, name: str, count: int, scales: int) -> None:
        own = self.config.hyper_connections
        assert own is not None
        if own.rank:
            self.vector(f"{name}_norm", own.streams * self.config.hidden, 0.0)
            if scales > 1:
                self.vector(f"{name}_project", own.streams * own.streams * self.config.hidden, 0.0)
            return
        self.vector(f"{name}_project", count * own.streams * self.config.hidden, 0.0)
        self.vector(f"{name}_base", count, 0.0)
        self.vector(f"{name}_scale", scales, 0.5)

    def compressed(self, prefix: str, mixer: CompressedAttention) -> None:
        self.vector(prefix + "q_norm", mixer.q_rank, 1.0)
        self.vector(prefix + "k_norm", self.config.head_dim, 1.0)
        for name, dim in (("entry", self.config.head_dim), ("index", mixer.index_dim)):
            if mixer.ratio and dim:
                self.vector(f"{prefix}{name}_norm", dim, 1.0)
                self.vector(f"{prefix}{name}_bias", mixer.ratio * mixer.series * dim, 0.0)

    def latents(self, prefix: str, mixer: LatentAttention) -> None:
        if mixer.q_rank:
            self.vector(prefix + "q_norm", mixer.q_rank, 1.0)
        self.vector(prefix + "k_norm", mixer.rank, 1.0)
        if mixer.key_norm:
            self.vector(prefix + "rotated_key_norm", mixer.rotary, 1.0)
        if mixer.indexer and not mixer.indexer.shared:
            self.vector(prefix + "index_norm", mixer.indexer.head_dim, 1.0)
            self.vector(prefix + "index_norm.bias", mixer.indexer.head_dim, 0.2)

    def layer(self, prefix: str) -> None:
        config = self.config
        before, after = ("input_norm", "pre_mlp_norm"), ("post_attention_norm", "post_mlp_norm")
        layer = config.layers[int(prefix.split(".")[1])]
        absent = {"input_norm": layer.mixer is None, "pre_mlp_norm": layer.feed_forward is None}
        if layer.aside:
            self.vector(prefix + "input_norm", 2 * config.hidden, 1.0)
            absent["input_norm"] = True
        placements = {"pre": before, "post": after, "sandwich": before + after, "around_mlp": (*before, after[1])}
        for name in placements.get(layer.norm_placement or config.norm_placement, ()):
            if not absent.get(name):
                self.norm(prefix + name)
        mixer = layer.mixer
        if isinstance(mixer, ShortConv):
            self.vector(prefix + "conv", mixer.taps * config.hidden, 0.0)
            if mixer.bias:
                self.vector(prefix + "conv.bias", config.hidden, 0.0)
        elif isinstance(mixer, GatedDelta):
            self.vector(prefix + "conv", mixer.taps * mixer.channels, 0.0)
            self.vector(prefix + "a_log", mixer.value_heads, 0.0)
            self.vector(prefix + "dt_bias", mixer.decays, 0.0)
            self.vector(prefix + "gate_norm", mixer.value_dim, 1.0)
        elif isinstance(mixer, SelectiveScan | RgLru):
            self.scan(prefix, mixer)
        elif isinstance(mixer, Rwkv7):
            self.time_mixing(prefix, mixer)
        elif isinstance(mixer, Lightning):
            self.vector(prefix + "gate_norm", mixer.inner, 1.0)
        elif isinstance(mixer, LatentAttention):
            self.latents(prefix, mixer)
        elif isinstance(mixer, CompressedAttention):
            self.compressed(prefix, mixer)
        elif isinstance(mixer, Attention):
            self.heads(prefix, mixer)
        self.chosen_by(prefix, mixer)
        if config.per_layer:
            self.norm(prefix + "per_layer_norm")
        if config.alt_up:
            self.streams(prefix, config.alt_up.streams, config.hidden)
        if isinstance(layer.feed_forward, FeedForward) and layer.feed_forward.activation == "xielu":
            self.vector(prefix + "xielu", 4, 0.4)
        if config.layer_scalar:
            self.vector(prefix + "scalar", 1, 1.0)
        if layer.mamba2:
            self.mamba2(prefix, layer.mamba2)

    def chosen_by(self, prefix: str, mixer: Mixer | None) -> None:
        """Load what chooses blocks of keys and weighs residual streams, sinks, convolutions of layers, biases."""
        own = self.config.hyper_connections
        if own and (ngrams := self.config.layers[int(prefix.split(".")[1])].ngrams):
            numbers = own.streams * self.config.hidden
            for name, n in (("key_norm", 1), ("query_norm", 1), ("conv_norm", 1), ("conv", ngrams.taps)):
                self.vector(f"{prefix}ngrams_{name}", n * numbers, 0.0)
        if isinstance(mixer, Attention) and mixer.blocks:
            self.vector(prefix + "index_q_norm", mixer.blocks.head_dim, 1.0)
            self.vector(prefix + "index_norm", mixer.blocks.head_dim, 1.0)
        for half in ("attention", "mlp") if self.config.merges else ():
            self.merge(f"{prefix}{half}_merge", 2)
        if isinstance(mixer, Attention):
            self.convolutions(prefix, mixer)
        for half in ("hyper_attention", "hyper_mlp") if own else ():
            self.hyper(prefix + half, own.weights, own.scales)
        if isinstance(mixer, CompressedAttention) or (isinstance(mixer, Attention | LatentAttention) and mixer.sinks):
            self.vector(prefix + "sinks", self.config.heads_of(mixer)[0], 0.5)

    def convolutions(self, prefix: str, mixer: Attention) -> None:
        """Load a layer's four convolutions, and the profiles of its bias by distance."""
        _, kv_heads, head_dim = self.config.heads_of(mixer)
        if taps := self.config.conv_taps:
            self.vector(prefix + "conv", taps * 2 * (kv_heads * head_dim + self.config.hidden), 0.0)
            self.vector(prefix + "feed_forward_scale", 1, 1.0)
        if mixer.bias:
            self.vector(prefix + "relative_bias", mixer.bias.dim * mixer.bias.reach, 0.0)

    def heads(self, prefix: str, mixer: Attention) -> None:
        """Load convolutions of heads, or their norms."""
        all_heads, kv_heads, head_dim = self.config.heads_of(mixer)
        if mixer.convolved:
            channels = (all_heads + kv_heads) * head_dim
            self.vector(prefix + "conv", mixer.convolved.taps * channels, 0.4)
            self.vector(prefix + "conv.bias", channels, 0.0)
            self.vector(prefix + "key_scale", kv_heads, 1.0)
        if self.config.qk_norm == "none":
            return
        for name, heads in (("q_norm", all_heads), ("k_norm", kv_heads)):
            if name == "q_norm" or mixer.shared_from is None:
                n = head_dim * (1 if self.config.qk_norm == "head" else heads)
                self.vector(prefix + name, n, 1.0)
                if self.config.qk_norm_bias:
                    self.vector(f"{prefix}{name}.bias", n, 0.2)

    def streams(self, prefix: str, count: int, hidden: int) -> None:
        self.norm(prefix + "laurel_norm")
        for name, n in (("norm", hidden), ("router", count * hidden), ("predict", count**3), ("correct", count**2)):
            self.vector(f"{prefix}alt_up_{name}", n, 0.5)
        self.vector(prefix + "alt_up_scale", hidden, 1.0)

    def time_mixing(self, prefix: str, own: Rwkv7) -> None:
        for name, around in (("gate_norm", 1.0), ("gate_norm.bias", 0.0), ("rwkv_k_k", 1.0), ("rwkv_k_a", 1.0)):
            self.vector(prefix + name, own.inner, around)
        self.vector(prefix + "rwkv_r_k", own.inner, 0.0)
        self.vector(prefix + "rwkv_mixes", 6 * self.config.hidden, 0.5)
        self.vector(prefix + "mlp_mix", self.config.hidden, 0.5)

    def scan(self, prefix: str, own: SelectiveScan | RgLru) -> None:
        self.vector(prefix + "conv", own.taps * own.inner, 0.0)
        if isinstance(own, RgLru) or own.conv_bias:
            self.vector(prefix + "conv.bias", own.inner, 0.0)
        if isinstance(own, RgLru):
            self.vector(prefix + "lru_rate", own.inner, -3.0)
            return
        self.vector(prefix + "a_log", own.inner * own.state_dim, 0.0)
        self.vector(prefix + "d", own.inner, 1.0)
        if own.norm_weights:
            self.vector(prefix + "scan_norm", own.dt_rank + 2 * own.state_dim, 1.0)

    def mamba2(self, prefix: str, own: Mamba2) -> None:
        self.vector(prefix + "conv", own.taps * own.channels, 0.0)
        if own.conv_bias:
            self.vector(prefix + "conv.bias", own.channels, 0.0)
        for name in ("dt_bias", "a_log", "d"):
            self.vector(prefix + name, own.heads, 1.0)
        if own.norm:
            self.vector(prefix + "gate_norm", own.inner, 1.0)


def make(config: ModelConfig, weights: WeightFormat, kv_dtype: KvDTypeName, threads: int) -> _native.Executor:
    executor = _native.Executor(
        config, matrices(config), uniform_formats(config, weights), kv_dtype, 2048, 40, 40, 4096, [], threads
    )
    Weights(executor, config).load()
    executor.allocate_kv(400)
    if config.has_states:
        executor.allocate_states(400)
    return executor


@dataclass
class Slice:
    """Tokens first .. first + count - 1 of a sequence, and the blocks it has."""

    tokens: list[int]
    first: int
    count: int
    blocks: list[int]


def step(executor: _native.Executor, slices: list[Slice], rows: Sequence[int] | None = None) -> Floats:
    """Logits of these rows of the step, or of each slice's last token: float32 [rows, vocab]."""
    tokens = [t for s in slices for t in s.tokens[s.first : s.first + s.count]]
    positions = [p for s in slices for p in range(s.first, s.first + s.count)]
    starts = np.cumsum([0] + [s.count for s in slices])
    block_starts = np.cumsum([0] + [len(s.blocks) for s in slices])
    blocks = [b for s in slices for b in s.blocks]
    columns = (tokens, positions, starts, block_starts, blocks, starts[1:] - 1 if rows is None else rows)
    states = np.array([s.blocks[0] for s in slices], np.int32)  # ignored by models without states
    executor.forward(*(np.asarray(column, dtype=np.int32) for column in columns), states=states)
    return executor.logits()


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, LLAMA.vocab_size, length)]


def run_alone(executor: _native.Executor, tokens: list[int], chunks: list[int], first_block: int = 0) -> Floats:
    """Logits of the last token, computed in chunks of these sizes."""
    blocks = list(range(first_block, first_block + -(-len(tokens) // BLOCK)))
    done, logits = 0, np.empty((0, 0), dtype=np.float32)
    for count in chunks:
        logits = step(executor, [Slice(tokens, done, count, blocks)])
        done += count
    assert done == len(tokens)
    last: Floats = logits[0]
    return last


def same(a: Floats, b: Floats) -> bool:
    """Equal in every bit, and numbers at all."""
    return bool(np.isfinite(a).all()) and np.array_equal(a.view(np.int32), b.view(np.int32))


Executors = dict[int, _native.Executor]  # one entry a thread count


BASIC, DELTA = ("llama", "gemma2", "opt"), ("delta", "delta by channel")
OTHERS = (
    "slopes", "shortcut", "chosen keys", "chosen blocks", "latents of several sizes", "gated norms",
    "streams that keep their rows", "compressed", "per layer", "streams", "experts apart", "heads by layer",
    "gated streams", "norms within halves", "norms of heads with biases", "a layer before the head", "limits by layer",
    "convolved heads", "four convolutions",
)  # fmt: skip
FLOATS: tuple[DTypeName, ...] = ("float32", "bfloat16")
KINDS: list[tuple[str, WeightFormat, str]] = [(s, WeightFormat(dtype), dtype) for s in SHAPES for dtype in FLOATS]
KINDS += [
    (shape, WeightFormat("bfloat16"), kv)
    for shape in (
        *("llama", "gemma2", "gemma4", "latent", "chosen keys", "latents of several sizes"),
        *("chosen blocks", "gated streams", "compressed", "convolved heads", "four convolutions"),
    )
    for kv in ("int8", "fp8_e4m3", "fp8_e5m2")
]
KINDS += [
    (shape, replace(weights, wide=wide), "bfloat16")
    for shape in (
        "llama",
        "olmo2",
        "opt",
        "experts",
        "convolutions",
        "mamba2",
        "beside the residual",
        "selective scan",
        "rg-lru",
        "time mixing",
        *DELTA,
        "latent",
        *OTHERS,
    )
    for weights in (WeightFormat("int8"), WeightFormat("int4", 32, "float16"))
    for wide in (False, True)
]
KINDS += [
    ("widths of 64", replace(turned, wide=wide), "bfloat16")
    for turned in (WeightFormat("int8", turned=True), WeightFormat("int8", 64, "float16", turned=True))
    for wide in (False, True)
]
KINDS += [("llama", WeightFormat("fp8_e4m3"), "bfloat16"), ("odd heads", WeightFormat("int4", 16), "float32")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask all kinds with --whole; else all in float32, and of the others every third shape of each pair of formats."""
    if "executors" not in metafunc.fixturenames:
        return
    asked = KINDS
    if not metafunc.config.getoption("--whole"):
        pairs = list(dict.fromkeys(kind[1:] for kind in KINDS))
        of_pair = [[kind for kind in KINDS if kind[1:] == pair] for pair in pairs]
        asked = of_pair[0] + [kind for i, kinds in enumerate(of_pair[1:]) for kind in kinds[i % 3 % len(kinds) :: 3]]
    metafunc.parametrize("executors", asked, ids=[shape for shape, *_ in asked], indirect=True, scope="module")


@pytest.fixture(scope="module")
def executors(request: pytest.FixtureRequest) -> Executors:
    """The same model on 1, 2, 3 and 5 threads."""
    shape, weights, kv_dtype = request.param
    return {threads: make(SHAPES[shape], weights, kv_dtype, threads) for threads in (1, 2, 3, 5)}


LENGTH = 1100  # three chunks of attention


@pytest.fixture(scope="module")
def expected(executors: Executors) -> Floats:
    """A prompt computed whole by one thread."""
    return run_alone(executors[1], prompt(1, LENGTH), [LENGTH])


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_logits(executors: Executors, expected: Floats, threads: int) -> None:
    assert same(run_alone(executors[threads], prompt(1, LENGTH), [LENGTH]), expected)


@pytest.mark.parametrize("chunks", [[1] * 3 + [LENGTH - 3], [511, 589], [33, 1067], [LENGTH - 1, 1], [100] * 11])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_cut_of_the_prompt_gives_the_same_logits(
    executors: Executors, expected: Floats, chunks: list[int], threads: int
) -> None:
    assert same(run_alone(executors[threads], prompt(1, LENGTH), chunks), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_company_in_the_step_does_not_change_the_logits(executors: Executors, expected: Floats, threads: int) -> None:
    executor, tokens = executors[threads], prompt(1, LENGTH)
    mine = list(range(-(-LENGTH // BLOCK)))
    for others in (1, 2, 3, 4, 7, 15, 32):
        if others == 1 or executor.state_bytes_per_slot:  # a state goes on with each step; keys and values stay
            run_alone(executor, tokens[:-1], [LENGTH - 1])
        company = [Slice(prompt(10 + i, 40), 0, 1 + i % 40, [100 + 2 * i, 101 + 2 * i]) for i in range(others)]
        middle = others // 2
        slices = [*company[:middle], Slice(tokens, LENGTH - 1, 1, mine), *company[middle:]]

        assert same(step(executor, slices)[middle], expected), others


def test_a_sequence_computed_again_in_other_blocks_gives_the_same_logits(
    executors: Executors, expected: Floats
) -> None:
    executor, tokens = executors[2], prompt(1, LENGTH)
    run_alone(executor, tokens[:700], [700])  # then preempted, its blocks given to another
    run_alone(executor, prompt(2, 900), [900])

    blocks = list(np.random.default_rng(3).permutation(400)[: -(-LENGTH // BLOCK)])
    step(executor, [Slice(tokens, 0, 1000, blocks)])
    assert same(step(executor, [Slice(tokens, 1000, 100, blocks)])[0], expected)


def test_a_shared_prefix_gives_the_same_logits(executors: Executors, expected: Floats) -> None:
    executor, tokens = executors[3], prompt(1, LENGTH)
    run_alone(executor, tokens, [LENGTH])  # another request computed the first 32 blocks
    shared = list(range(32))
    if executor.state_bytes_per_slot:  # which is not shared
        run_alone(executor, tokens[: 32 * BLOCK], [32 * BLOCK])

    mine = [*shared, *range(200, 203)]
    assert same(step(executor, [Slice(tokens, 32 * BLOCK, LENGTH - 32 * BLOCK, mine)])[0], expected)


@pytest.mark.parametrize("rows", [[35], [0, 1, 2, 13, 22, 23, 24, 35], [11, 12], range(12)], ids=str)
def test_logits_are_the_same_whichever_rows_want_them(executors: Executors, rows: Sequence[int]) -> None:
    slices = [Slice(prompt(i, 12), 0, 12, [i]) for i in range(3)]
    every = step(executors[3], slices, range(36))

    assert same(step(executors[3], slices, rows), every[list(rows)])


def test_a_chunk_that_wants_no_logits_changes_none(executors: Executors, expected: Floats) -> None:
    executor, tokens, blocks = executors[3], prompt(1, LENGTH), list(range(-(-LENGTH // BLOCK)))
    at_500 = run_alone(executor, tokens[:500], [500])

    assert same(step(executor, [Slice(tokens, 0, LENGTH, blocks)], [499, LENGTH - 1]), np.stack([at_500, expected]))
    assert len(step(executor, [Slice(tokens, 0, 1000, blocks)], [])) == 0
    assert same(step(executor, [Slice(tokens, 1000, 100, blocks)])[0], expected)


@pytest.mark.parametrize("weights", [WeightFormat("float32"), WeightFormat("int8")])
@pytest.mark.parametrize(
    ("shape", "most"), [("olmo2", 6), *((s, 5) for s in (*BASIC, "convolutions", "delta", "norms within halves"))]
)
def test_a_layer_has_five_barriers_at_any_batch(shape: str, most: int, weights: WeightFormat) -> None:
    """Six where a norm is over all heads of a row; one more a step, after the embedding."""
    config = SHAPES[shape]
    executor = make(config, weights, "float32", 3)

    for tokens, sequences in ((1, 1), (1, 8), (1, 33), (700, 1), (20, 3)):
        slices = [Slice(prompt(i, tokens), 0, tokens, list(range(30 * i, 30 * i + 30))[:23]) for i in range(sequences)]
        slices = [replace(s, blocks=[b % 400 for b in s.blocks]) for s in slices]
        before = executor.barriers
        step(executor, slices)

        assert executor.barriers - before == most * len(config.layers) + 1, (tokens, sequences)
