"""Ranks say where weights, keys and values lie and who computes them, never what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.model.shapes import SHAPES
from tests.model.test_same_tokens import Slice, Weights, prompt, run_alone, same, step

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.families.matrices import matrices, uniform_formats

LENGTH = 600  # two chunks of attention
KINDS = [
    ("llama", WeightFormat("bfloat16"), "bfloat16"),
    ("gemma2", WeightFormat("bfloat16"), "int8"),
    ("widths of 64", WeightFormat("int8", turned=True), "bfloat16"),
    ("olmo2", WeightFormat("float32"), "float32"),
    ("odd heads", WeightFormat("int4", 16), "float32"),
    ("experts", WeightFormat("int4", 16), "float32"),
    ("two mixers and one half", WeightFormat("bfloat16"), "bfloat16"),
    ("latent", WeightFormat("bfloat16"), "bfloat16"),
    ("chosen blocks", WeightFormat("bfloat16"), "bfloat16"),
    ("gated streams", WeightFormat("int4", 16), "bfloat16"),
    ("latents of several sizes", WeightFormat("int4", 16), "bfloat16"),
    ("gated norms", WeightFormat("bfloat16"), "bfloat16"),
    ("rg-lru", WeightFormat("int4", 16), "bfloat16"),
    ("time mixing", WeightFormat("int4", 16), "bfloat16"),
    ("convolved heads", WeightFormat("int4", 16), "bfloat16"),
    ("four convolutions", WeightFormat("int4", 16), "bfloat16"),
    ("delta by channel", WeightFormat("int4", 16), "bfloat16"),
    ("beside the residual", WeightFormat("int4", 16), "bfloat16"),
    ("shortcut", WeightFormat("int4", 16), "bfloat16"),
    ("compressed", WeightFormat("bfloat16"), "bfloat16"),
    ("per layer", WeightFormat("bfloat16"), "bfloat16"),
    ("experts apart", WeightFormat("int4", 16), "float32"),
    ("limits by layer", WeightFormat("int4", 16), "bfloat16"),
    ("norms within halves", WeightFormat("int4"), "float32"),
    ("norms within halves", WeightFormat("bfloat16"), "float32"),
]
TEAMS = [(1, 1), (2, 1), (1, 2, 2)]


def make(kind: tuple[str, WeightFormat, str], ranks: Sequence[int]) -> _native.Executor:
    shape, weights, kv_dtype = kind
    formats = uniform_formats(SHAPES[shape], weights)
    return _native.Executor(
        SHAPES[shape], matrices(SHAPES[shape]), formats, kv_dtype, 2048, 40, 40, 4096, [], sum(ranks), ranks
    )


def loaded(kind: tuple[str, WeightFormat, str], ranks: Sequence[int]) -> _native.Executor:
    executor = make(kind, ranks)
    Weights(executor, SHAPES[kind[0]]).load()
    executor.allocate_kv(64)
    if SHAPES[kind[0]].has_states:
        executor.allocate_states(64)
    return executor


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_any_ranks_give_the_same_logits(kind: tuple[str, WeightFormat, str]) -> None:
    alone = loaded(kind, (1,))
    expected = run_alone(alone, prompt(1, LENGTH), [LENGTH])
    blocks = list(range(40))
    following = [step(alone, [Slice([*prompt(1, LENGTH), 7, 8], LENGTH + i, 1, blocks)])[0] for i in range(2)]

    for ranks in TEAMS:
        team = loaded(kind, ranks)
        assert same(run_alone(team, prompt(1, LENGTH), [30, LENGTH - 30]), expected), ranks
        for i, logits in enumerate(following):
            again = step(team, [Slice([*prompt(1, LENGTH), 7, 8], LENGTH + i, 1, blocks)])[0]
            assert same(again, logits), (ranks, i)


@pytest.mark.parametrize(("one", "other"), [((1,), (1, 1)), ((2, 1), (1,)), ((1, 1), (1, 2))])
def test_a_file_of_packed_weights_is_for_any_ranks(
    tmp_path: Path, one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    path = str(tmp_path / "packed")
    first = loaded(KINDS[3], one)
    first.save_weights(path, "key")
    second = make(KINDS[3], other)

    second.map_weights(path, "key")

    second.finish_loading()
    second.allocate_kv(64)
    assert same(run_alone(second, prompt(1, 90), [90]), run_alone(first, prompt(1, 90), [90]))


@pytest.mark.parametrize(("ranks", "message"), [((1, 1), "must add up to 3"), ((3, 0), "a rank has 0 threads")])
def test_ranks_that_are_not_the_threads_are_refused(ranks: tuple[int, ...], message: str) -> None:
    config = SHAPES["llama"]
    formats = uniform_formats(config, WeightFormat("float32"))
    with pytest.raises(ValueError, match=message):
        _native.Executor(config, matrices(config), formats, "float32", 8, 2, 2, 64, [], 3, ranks)
