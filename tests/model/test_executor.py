"""The native executor refuses what it cannot hold or compute, and says what and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.kernels.float64 import random
from tests.kernels.sampling_reference import Line, arrays

from forearm import _native
from forearm.array_types import Int32Array
from forearm.config.number_formats import WeightFormat
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig, Rope
from forearm.model.families.matrices import matrices, uniform_formats

CONFIG = ModelConfig(
    model_type="llama",
    dtype="float32",
    vocab_size=50,
    hidden=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    max_positions=128,
    layers=(Layer(Attention(rope=0), FeedForward(48)),),
    ropes=(Rope(np.ones(8, np.float32)),),
)
SHAPES = {
    "embed": (50, 32),
    "head": (50, 32),
    "layers.0.q": (32, 32),
    "layers.0.k": (16, 32),
    "layers.0.v": (16, 32),
    "layers.0.o": (32, 32),
    "layers.0.gate": (48, 32),
    "layers.0.up": (48, 32),
    "layers.0.down": (32, 48),
}
NORMS = ("final_norm", "layers.0.input_norm", "layers.0.pre_mlp_norm")


def make(**changes: Any) -> _native.Executor:
    config = replace(CONFIG, **changes)
    formats = uniform_formats(config, WeightFormat("float32"))
    return _native.Executor(config, matrices(config), formats, "float32", 8, 2, 2, 64, [], 2)


@pytest.fixture
def executor() -> _native.Executor:
    """Loaded with a model whose weights are all one value, and with four blocks."""
    made = make()
    for name, shape in SHAPES.items():
        made.load_matrix(name, np.full(shape, 0.01, np.float32), "float32")
    for name in NORMS:
        made.load_vector(name, np.ones(32, np.float32))
    made.finish_loading()
    made.allocate_kv(4)
    return made


def ints(*values: int) -> Int32Array:
    return np.asarray(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"heads": 3, "kv_heads": 2}, r"heads \(3\) is not a multiple of kv_heads \(2\)"),
        (
            {"layers": (Layer(Attention(rope=0), FeedForward(48, "mish")),)},
            "activation is 'mish'; known: none, tanh, silu",
        ),
        ({"layers": (Layer(Attention(rope=1), FeedForward(48)),)}, "rope of a layer is 1"),
        ({"head_dim": 8}, "rotary dimension is 16"),
        ({"learned_positions": True, "max_positions": 32}, "max_model_len is 64; the model has 32 learned positions"),
    ],
)
def test_a_config_that_cannot_be_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**changes)


def test_a_model_larger_than_the_machine_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(MemoryError, match=r"packed weights needs \d+\.\d\d GiB; this machine has"):
        make(vocab_size=1 << 25, hidden=1 << 17)


def test_a_kv_cache_larger_than_the_machine_is_refused_with_the_sum(executor: _native.Executor) -> None:
    with pytest.raises(MemoryError, match=r"weights .* \+ scratch .* \+ KV cache .* do not fit"):
        executor.allocate_kv(1 << 25)


def test_missing_tensors_are_listed_with_their_rows() -> None:
    executor = make()
    executor.load_matrix("embed", np.zeros((20, 32), np.float32), "float32")

    with pytest.raises(ValueError, match=r"embed \(rows 20 to 49\), head, .*layers.0.v, final_norm"):
        executor.finish_loading()


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "row", "text"),
    [
        ("layers.0.z", (1, 32), "float32", 0, "no matrix 'layers.0.z'"),
        ("embed", (1, 31), "float32", 0, r"'embed' is \[50, 32\]"),
        ("embed", (2, 32), "float32", 49, r"rows 49 to 50"),
        ("embed", (1, 32), "bfloat16", 0, "has dtype bfloat16, but its array is float32"),
    ],
)
def test_a_matrix_that_does_not_fit_is_named(
    name: str, shape: tuple[int, int], dtype: str, row: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make().load_matrix(name, np.zeros(shape, np.float32), dtype, row)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tokens": ints(1, 50)}, r"tokens\[1\] is 50; the vocabulary has 50"),
        ({"positions": ints(0, 2)}, r"positions\[1\] is 2; the one before is 0"),
        ({"positions": ints(31, 32)}, r"positions\[1\] is 32; the sequence has 1 blocks"),
        ({"positions": ints(63, 64)}, r"positions\[1\] is 64; the context is 64"),
        ({"starts": ints(0, 1)}, "starts must ascend from 0 to 2"),
        ({"starts": ints(0, 2, 2), "block_starts": ints(0, 1, 1)}, r"starts\[2\] is 2; the sequence has no tokens"),
        ({"block_starts": ints(0, 1, 1)}, "block_starts has 3 entries; it must have 2"),
        ({"blocks": ints(4)}, r"blocks\[0\] is 4; the KV cache has 4"),
        ({"logit_rows": ints(1, 1)}, r"logit_rows\[1\] is 1; rows ascend"),
        ({"logit_rows": ints(2)}, r"logit_rows\[0\] is 2"),
    ],
)
def test_a_batch_that_cannot_be_computed_is_named(
    executor: _native.Executor, changes: dict[str, Int32Array], text: str
) -> None:
    batch = {
        "tokens": ints(1, 2),
        "positions": ints(0, 1),
        "starts": ints(0, 2),
        "block_starts": ints(0, 1),
        "blocks": ints(0),
        "logit_rows": ints(1),
    }
    executor.forward(**batch)
    assert executor.logits().shape == (1, 50)

    with pytest.raises(ValueError, match=text):
        executor.forward(**(batch | changes))


def test_forward_before_loading_is_refused() -> None:
    with pytest.raises(RuntimeError, match="before finish_loading"):
        make().forward(ints(1), ints(0), ints(0, 1), ints(0, 1), ints(0), ints(0))


def test_what_a_block_held_before_does_not_reach_its_next_user(executor: _native.Executor) -> None:
    """0 times the NaN of a failed request would be NaN."""
    one = (ints(0, 1), ints(0, 1), ints(0, 2), ints(0, 1), ints(3), ints(1))
    executor.forward(*one)
    clean = executor.logits()

    executor.load_matrix("embed", np.full((1, 32), np.nan, np.float32), "float32", 7)
    executor.forward(ints(*[7] * 8), ints(*range(8)), ints(0, 8), ints(0, 1), ints(3), ints(7))
    assert np.isnan(executor.logits()).all()

    executor.forward(*one)
    assert np.array_equal(executor.logits(), clean)


def test_small_pages_that_are_made_huge_keep_what_is_in_them(executor: _native.Executor) -> None:
    """The cache of four blocks begins in one huge page, that of 4096 has one for the keys and one for the values."""
    first = (ints(0, 1), ints(0, 1), ints(0, 2), ints(0, 1), ints(3), ints(1))
    second = (ints(2), ints(2), ints(0, 1), ints(0, 1), ints(3), ints(0))
    executor.forward(*first)
    executor.forward(*second)
    asked = executor.logits()

    for blocks, pages in ((4, 1), (4096, 2)):
        executor.allocate_kv(blocks)
        executor.forward(*first)
        assert [executor.merge_page() for _ in range(pages + 1)] == [True] * pages + [False]
        executor.forward(*second)

        assert np.array_equal(executor.logits(), asked)


def _random_model(vocab: int, rows: int, threads: int) -> _native.Executor:
    config = replace(CONFIG, vocab_size=vocab)
    formats = uniform_formats(config, WeightFormat("float32"))
    made = _native.Executor(config, matrices(config), formats, "float32", rows, 1, rows, 64, [], threads)
    for i, (name, shape) in enumerate(SHAPES.items()):
        made.load_matrix(name, random(i, *((vocab, 32) if shape[0] == 50 else shape)), "float32")
    for name in NORMS:
        made.load_vector(name, np.ones(32, np.float32))
    made.finish_loading()
    made.allocate_kv(2)
    return made


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 7, 40])  # above 32 rows blocks of rows and columns are handed out
def test_a_step_samples_what_its_logits_alone_would(rows: int, threads: int) -> None:
    """The head leaves the maxima that the sampler goes by; Kernels.sample finds them itself."""
    vocab = 1001
    executor = _random_model(vocab, rows, threads)
    every = np.arange(rows, dtype=np.int32)
    blocks = np.arange((rows + 31) // 32, dtype=np.int32)
    executor.forward(every, every, ints(0, rows), ints(0, len(blocks)), blocks, every)
    asked = (
        Line(temperature=0.0),
        Line(temperature=9.0),
        Line(top_k=5),
        Line(min_p=0.5),
        Line(top_p=0.2),
        Line(mask=range(1, vocab, 2), top_k=9),
        Line(mask=range(1, vocab, 2), temperature=0.0),
    )
    lines = [replace(one, row=row, counter=row, logprobs=3) for row in range(rows) for one in asked]

    drawn = executor.sample(*arrays(lines, vocab))

    wanted = _native.Kernels(_native.tier()).sample(executor.logits(), *arrays(lines, vocab))
    for one, other in zip(drawn, wanted, strict=True):
        assert np.array_equal(one, other)


def test_a_nan_in_one_column_of_the_head_is_reported() -> None:
    executor = _random_model(1001, 4, 3)
    executor.load_matrix("head", np.full((1, 32), np.nan, np.float32), "float32", 999)
    every = ints(0, 1, 2, 3)
    executor.forward(every, every, ints(0, 4), ints(0, 1), ints(0), every)

    _, nan, *_ = executor.sample(*arrays([Line(row=row, temperature=row / 2) for row in range(4)], 1001))

    assert nan.all()
