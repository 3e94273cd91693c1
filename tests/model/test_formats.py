"""Matrices of codes in the executor: what they compute is what their numbers do, and what is not theirs is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from forearm import _native
from forearm.array_types import Float32Array, Int32Array
from forearm.config.number_formats import WeightFormat
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig, Rope
from forearm.model.families.matrices import matrices, uniform_formats

CONFIG = ModelConfig(
    model_type="llama",
    dtype="float32",
    vocab_size=50,
    hidden=80,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=128,
    layers=(Layer(Attention(rope=0), FeedForward(112)),),
    ropes=(Rope(np.ones(8, np.float32)),),
)
SHAPES = {
    "embed": (50, 80),
    "head": (50, 80),
    "layers.0.q": (64, 80),
    "layers.0.k": (32, 80),
    "layers.0.v": (32, 80),
    "layers.0.o": (80, 64),
    "layers.0.gate": (112, 80),
    "layers.0.up": (112, 80),
    "layers.0.down": (80, 112),
}
PACKED = {part.name: spec.name for spec in matrices(CONFIG) for part in spec.parts}
# Activations rounded to int8 err by up to 1/254 of the largest of their row, about 1 % of a usual one; independent,
# added up over six multiplications, for the worst of 50 logits.
ROUNDED = 0.1
# Rounded to 16 bits they err by up to 1/65024.
BITS_16 = ROUNDED / 256


@dataclass
class Coded:
    """One part, quantized, and the numbers that its codes stand for: columns in the activations' order."""

    arguments: dict[str, Any]
    numbers: Float32Array


def coded(rng: np.random.Generator, weights: WeightFormat, rows: int, k: int, order: Int32Array | None) -> Coded:
    """Random codes; scales are powers of two, which every scale_dtype has."""
    group = weights.group or k
    groups = -(-k // group)
    limit = {"int8": 128, "int6": 32}.get(weights.dtype, 8)
    codes = rng.integers(-limit, limit, (rows, k)).astype(np.int8)
    if weights.dtype == "fp4_e2m1":
        codes = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)[codes + 8]
    scales = (np.exp2(rng.integers(-2, 2, (rows, groups))) / limit / np.sqrt(k)).astype(np.float32)
    scales = np.exp2(np.round(np.log2(scales))).astype(np.float32)
    zeros = rng.integers(-limit // 4, limit // 4, (rows, groups)).astype(np.int8) if weights.zero == "int8" else None
    offsets = rng.normal(0, k**-0.5, (rows, groups)) if weights.zero == "float16" else None
    offsets = None if offsets is None else offsets.astype(np.float16).astype(np.float32)

    at = np.arange(k) // group
    numbers = scales[:, at] * (codes.astype(np.float32) - (0 if zeros is None else zeros[:, at]))
    if offsets is not None:
        numbers = numbers + offsets[:, at]
    if order is not None:
        numbers = numbers[:, np.argsort(order)]
    arguments = {"codes": codes, "scales": scales, "zeros": zeros, "offsets": offsets, "order": order}
    return Coded(arguments, np.ascontiguousarray(numbers, dtype=np.float32))


def make(formats: dict[str, WeightFormat]) -> _native.Executor:
    return _native.Executor(CONFIG, matrices(CONFIG), formats, "float32", 40, 2, 2, 64, [], 2)


def finish(executor: _native.Executor) -> _native.Executor:
    for norm in ("final_norm", "layers.0.input_norm", "layers.0.pre_mlp_norm"):
        executor.load_vector(norm, np.linspace(0.5, 1.5, CONFIG.hidden, dtype=np.float32))
    executor.finish_loading()
    executor.allocate_kv(4)
    return executor


def logits(executor: _native.Executor, tokens: int) -> Float32Array:
    ids = np.arange(tokens, dtype=np.int32)
    ends = np.array([0, tokens], np.int32)
    executor.forward(ids, ids, ends, np.array([0, 2], np.int32), np.array([3, 1], np.int32), ends[1:] - 1)
    return executor.logits()


def both(weights: WeightFormat, damaged: Path | None = None) -> tuple[_native.Executor, _native.Executor]:
    """A model of codes, and one of the numbers they stand for. The first tries to map a damaged file before."""
    rng = np.random.default_rng(5)
    floats = WeightFormat("float32")
    formats = uniform_formats(CONFIG, weights) | {"embed": replace(weights, ordered=False)}
    of_codes, of_numbers = make(formats), make(uniform_formats(CONFIG, floats))
    if damaged:
        with pytest.raises(ValueError, match="damaged"):
            of_codes.map_weights(str(damaged), "a model")
    orders: dict[str, Int32Array] = {}
    for name, (rows, k) in SHAPES.items():
        matrix = PACKED[name]
        if weights.ordered and name != "embed":
            orders.setdefault(matrix, rng.permutation(k).astype(np.int32))
        part = coded(rng, weights, rows, k, orders.get(matrix))
        half = rows // 2 + 3  # pieces end inside a panel
        for begin, end in ((0, half), (half, rows)):
            piece = {
                key: value[begin:end] if value is not None and key != "order" else value
                for key, value in part.arguments.items()
            }
            of_codes.load_codes(name, row=begin, **piece)
        of_numbers.load_matrix(name, part.numbers, "float32")
    return finish(of_codes), finish(of_numbers)


@pytest.mark.parametrize("tokens", [1, 3, 17, 40])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "weights",
    [
        WeightFormat("int8"),
        WeightFormat("int8", 32, "float16"),
        WeightFormat("int8", 48, "bfloat16", "int8"),
        WeightFormat("int6", 16, "float16"),
        WeightFormat("int6", 32, "float16", "float16"),
        WeightFormat("int4", 32, "float16"),
        WeightFormat("int4", 32, "float32", "int8"),
        WeightFormat("int4", 16, "float32", "float16"),
        WeightFormat("int4", 32, "float16", "float16"),
        WeightFormat("int4", 32, ordered=True),
        WeightFormat("fp4_e2m1", 32, "e8m0"),
        WeightFormat("int8", 64, "float32", "int8", ordered=True),
    ],
)
def test_codes_compute_what_the_numbers_they_stand_for_compute(weights: WeightFormat, wide: bool, tokens: int) -> None:
    of_codes, of_numbers = both(replace(weights, wide=wide))

    got, wanted = logits(of_codes, tokens), logits(of_numbers, tokens)

    assert np.isfinite(wanted).all()
    largest = np.abs(wanted).max()
    assert largest > 0.1
    assert np.abs(got - wanted).max() <= (BITS_16 if wide else ROUNDED) * largest


def test_matrices_of_one_model_may_have_any_mixture_of_formats() -> None:
    mixture = {
        "embed": WeightFormat("int8"),
        "head": WeightFormat("bfloat16"),
        "layers.0.qkv": WeightFormat("int4", 16),
        "layers.0.o": WeightFormat("fp8_e4m3"),
        "layers.0.up": WeightFormat("int8", 16, wide=True),
        "layers.0.down": WeightFormat("float16"),
    }
    rng = np.random.default_rng(6)
    values = {n: rng.normal(0, k**-0.5, (rows, k)).astype(np.float32) for n, (rows, k) in SHAPES.items()}
    mixed, plain = make(mixture), make(uniform_formats(CONFIG, WeightFormat("float32")))
    for name, matrix in values.items():
        mixed.load_matrix(name, matrix, "float32")
        plain.load_matrix(name, matrix, "float32")

    got, wanted = logits(finish(mixed), 20), logits(finish(plain), 20)

    # int4 in groups of 16 errs by about 7 % of a weight, 80 of which are summed.
    assert np.sqrt(np.mean((got - wanted) ** 2)) <= 0.15 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize("missing", ["embed", "layers.0.up"])
def test_every_matrix_has_a_format_and_nothing_else_has(missing: str) -> None:
    formats = uniform_formats(CONFIG, WeightFormat("int8"))

    with pytest.raises(ValueError, match=f"no format for the matrix '{missing}'"):
        make({name: f for name, f in formats.items() if name != missing})
    with pytest.raises(ValueError, match=r"format for 'layers\.1\.o'; this model has no such matrix"):
        make(formats | {"layers.1.o": WeightFormat("int8")})


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (WeightFormat("int8", 24), "group is 24; it must be a multiple of 16"),
        (WeightFormat("bfloat16", 32), "belong to codes"),
        (WeightFormat("fp8_e4m3", zero="int8"), "only codes that are integers have zeros"),
        (WeightFormat("int4", scale_dtype="int8"), "scales are float32, float16, bfloat16 or e8m0"),  # type: ignore[arg-type]
        (WeightFormat("e8m0"), "e8m0 is of scales only"),  # type: ignore[arg-type]
        (WeightFormat("int8", ordered=True), "'embed'.*no order"),
    ],
)
def test_a_format_that_can_not_be_is_refused(weights: WeightFormat, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(uniform_formats(CONFIG, weights))


def zeros(*shape: int) -> npt.NDArray[np.int8]:
    return np.zeros(shape, np.int8)


@pytest.mark.parametrize(
    ("weights", "changes", "text"),
    [
        (WeightFormat("float32"), {}, "its format holds floats"),
        (WeightFormat("int4", 16), {"codes": np.full((16, 80), 8, np.int8)}, "int4 codes are -8, -7, .*, 6, 7, not 8"),
        (WeightFormat("int6", 16), {"codes": np.full((16, 80), 32, np.int8)}, "int6 codes are -32 to 31, not 32"),
        (WeightFormat("fp4_e2m1", 16), {"codes": np.full((16, 80), 5, np.int8)}, "fp4_e2m1 codes are -12, .*, not 5"),
        (WeightFormat("fp4_e2m1", 16, "e8m0"), {"scales": np.full((16, 5), 3, np.float32)}, "scale_dtype"),
        (WeightFormat("int4", 16), {"codes": zeros(16, 80).view(np.uint8)}, "int8"),
        (WeightFormat("int8", 16), {"codes": zeros(16, 79)}, "of width 79 do not fit"),
        (WeightFormat("int8", 16), {"scales": np.ones((16, 4), np.float32)}, r"scales must be \[16, 5\]"),
        (WeightFormat("int8", 16, "float16"), {"scales": np.full((16, 5), 0.1, np.float32)}, "scale_dtype"),
        (WeightFormat("int8", 16), {"scales": np.full((16, 5), np.nan, np.float32)}, "scale_dtype"),
        (
            WeightFormat("int8", 16, zero="float16"),
            {"offsets": np.full((16, 5), 0.1, np.float32)},
            "the offset 0.1.* is not a number that the format's zero has",
        ),
        (WeightFormat("int8", 16, zero="int8"), {}, "zeros come where the format has them"),
        (WeightFormat("int8", 16), {"zeros": zeros(16, 5)}, "zeros come where the format has them"),
        (WeightFormat("int8", 16), {"order": np.arange(80, dtype=np.int32)}, "an order comes where"),
    ],
)
def test_codes_that_are_not_the_formats_are_refused(weights: WeightFormat, changes: dict[str, Any], text: str) -> None:
    executor = make(uniform_formats(CONFIG, weights))
    given: dict[str, Any] = {"codes": zeros(16, 80), "scales": np.ones((16, 80 // (weights.group or 80)), np.float32)}

    with pytest.raises(ValueError, match=text):
        executor.load_codes("layers.0.k", **(given | changes))


def test_parts_of_a_matrix_have_one_order_of_columns() -> None:
    formats = uniform_formats(CONFIG, WeightFormat("int8")) | {"layers.0.qkv": WeightFormat("int8", ordered=True)}
    executor = make(formats)
    codes, scales = zeros(32, 80), np.ones((32, 1), np.float32)
    order = np.arange(80, dtype=np.int32)
    executor.load_codes("layers.0.k", codes, scales, order=order)

    with pytest.raises(ValueError, match="one order of columns"):
        executor.load_codes("layers.0.v", codes, scales, order=order[::-1].copy())
    with pytest.raises(ValueError, match="once, not 3"):
        make(formats).load_codes("layers.0.v", codes, scales, order=np.full(80, 3, np.int32))
    with pytest.raises(ValueError, match="without zeros and order"):
        executor.load_matrix("layers.0.v", np.ones((32, 80), np.float32), "float32")


CACHED = WeightFormat("int4", 32, "float16", "int8", ordered=True)


def mapped(path: Path, key: str = "a model", weights: WeightFormat = CACHED) -> _native.Executor:
    """An executor whose matrices and vectors are the file's."""
    executor = make(uniform_formats(CONFIG, weights) | {"embed": replace(weights, ordered=False)})
    executor.map_weights(str(path), key)
    executor.finish_loading()
    executor.allocate_kv(4)
    return executor


def test_weights_mapped_from_a_file_compute_the_same_bits(tmp_path: Path) -> None:
    saved, _ = both(CACHED)
    saved.save_weights(str(tmp_path / "packed"), "a model")

    again = mapped(tmp_path / "packed")

    for tokens in (1, 20):
        assert np.array_equal(logits(again, tokens).view(np.int32), logits(saved, tokens).view(np.int32))
    assert [file.name for file in tmp_path.iterdir()] == ["packed"]
    with pytest.raises(ValueError, match="mapped from a file"):
        again.load_matrix("head", np.ones((50, 80), np.float32), "float32")


def test_a_file_of_another_model_is_not_mapped(tmp_path: Path) -> None:
    saved, _ = both(CACHED)
    saved.save_weights(str(tmp_path / "packed"), "a model")

    with pytest.raises(ValueError, match="holds other weights"):
        mapped(tmp_path / "packed", key="another")
    with pytest.raises(ValueError, match="holds other weights"):
        mapped(tmp_path / "packed", weights=replace(CACHED, group=16))
    with pytest.raises(ValueError, match="No such file"):
        mapped(tmp_path / "none")
    (tmp_path / "text").write_text("not weights at all" * 100)
    with pytest.raises(ValueError, match="is not a file of packed weights"):
        mapped(tmp_path / "text")


def test_a_damaged_file_is_not_mapped_and_the_executor_can_still_be_loaded(tmp_path: Path) -> None:
    saved, _ = both(CACHED)
    path = tmp_path / "packed"
    saved.save_weights(str(path), "a model")
    whole = path.read_bytes()

    for at in [*range(8, len(whole), 4999), len(whole) - 1]:
        if not any(whole[at : at + 1]) and 4096 < at < 2 << 20:
            continue  # no tensor lies between the head and the region
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"damaged|cut off|other weights"):
            mapped(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="cut off"):
        mapped(path)

    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 128]))
    loaded, _ = both(CACHED, damaged=path)
    assert np.array_equal(logits(loaded, 3), logits(saved, 3))
    saved.save_weights(str(path), "a model")
    assert np.array_equal(logits(mapped(path), 3), logits(saved, 3))


def test_a_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    saved, _ = both(WeightFormat("int8"))

    with pytest.raises(RuntimeError, match="No such file or directory"):
        saved.save_weights(str(tmp_path / "no" / "such" / "folder"), "a model")
    with pytest.raises(ValueError, match="these tensors are missing"):
        make(uniform_formats(CONFIG, WeightFormat("int8"))).save_weights(str(tmp_path / "packed"), "a model")
    assert list(tmp_path.iterdir()) == []
