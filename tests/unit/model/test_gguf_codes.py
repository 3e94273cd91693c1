"""Every block type against a plain decoder, and against ggml's own in numpy; fused matrices of two types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from tests.unit.model.ggml_blocks import PLAIN
from tests.unit.model.gguf_files import random_blocks, write_gguf

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.gguf.gguf import read_gguf
from forearm.model.gguf.gguf_codes import BLOCK_TYPES, FLOATS, decode_rows, gguf_matrices
from forearm.model.quantization.codes import CodedMatrix, Codes, common_format, expressed

COLUMNS = 768
SHIFTED = ("Q4_1", "Q4_K")  # their codes 0 .. 15 become -8 .. 7, and 8 scales join the offset
ROUNDED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")  # their scales have more bits than float16


def numbers(rows: Codes) -> np.ndarray:
    """scale * code + offset, float32 and a rounding after each, as ggml has it."""
    group = rows.codes.shape[1] // rows.scales.shape[1]
    values = rows.codes.astype(np.float32) * np.repeat(rows.scales, group, axis=1)
    return values if rows.offsets is None else values + np.repeat(rows.offsets, group, axis=1)


def kept(values: np.ndarray, dtype: str) -> np.ndarray:
    """Scales or offsets, rounded to float32 and then to the dtype that they are kept in."""
    return values.astype(np.float32).astype(dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", PLAIN)
def test_codes_scales_and_offsets_are_those_of_a_plain_decoder(dtype: str) -> None:
    stored = random_blocks(dtype, 3, COLUMNS)
    block_bytes = BLOCK_TYPES[dtype].bytes

    rows = decode_rows(dtype, stored, COLUMNS)

    for row in range(3):
        blocks = stored[row].reshape(-1, block_bytes)
        scales, codes, offsets = map(
            np.array, zip(*(v for b in blocks for v in PLAIN[dtype](b.tobytes())), strict=True)
        )
        format = BLOCK_TYPES[dtype].format
        group = format.group
        shift = 8 if dtype in SHIFTED else 0
        assert np.array_equal(rows.codes[row], codes - shift)
        assert np.array_equal(np.repeat(rows.scales[row], group), kept(scales, format.scale_dtype))
        if rows.offsets is None:
            assert not offsets.any()
        else:
            assert np.array_equal(np.repeat(rows.offsets[row], group), kept(offsets + shift * scales, format.zero))


@pytest.mark.parametrize("dtype", [dtype for dtype in BLOCK_TYPES if dtype != "Q1_0"])  # which gguf does not decode
def test_numbers_are_those_of_ggml(dtype: str) -> None:
    stored = random_blocks(dtype, 40, 512, seed=1)

    rows = decode_rows(dtype, stored, 512)

    theirs = dequantize(stored, GGMLQuantizationType[dtype])
    if dtype not in (*ROUNDED, *SHIFTED):
        assert np.array_equal(numbers(rows), theirs)
        return
    of_scales = np.abs(numbers(replace(rows, offsets=None)))
    of_offsets = np.abs(numbers(replace(rows, codes=np.zeros_like(rows.codes))))
    # A scale or offset is rounded by at most 2^-11 of it, which is 2^-11 (1 + 2^-11) of what it has become; and
    # float32's roundings, the offset's once more.
    rounding = 2**-11 + 2**-22
    allowed = of_scales * (rounding if dtype in ROUNDED else 0.0) + of_offsets * rounding
    assert (np.abs(numbers(rows) - theirs) <= allowed + 2**-22 * (of_scales + of_offsets)).all()


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_codes_and_scales_are_within_their_format(dtype: str) -> None:
    format = BLOCK_TYPES[dtype].format
    rows = decode_rows(dtype, random_blocks(dtype, 5, 512, seed=2), 512)

    assert rows.codes.shape == (5, 512)
    assert rows.scales.shape == (5, 512 // format.group)
    assert (rows.offsets is not None) == (format.zero != "none")
    if format.is_integer:
        least, most = {"int4": (-8, 7), "int6": (-32, 31), "fp4_e2m1": (-12, 12)}.get(format.dtype, (-128, 127))
        assert least <= rows.codes.min() <= rows.codes.max() <= most
    if format.scale_dtype == "float16":
        assert np.array_equal(rows.scales, rows.scales.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    "pair",
    [
        ("Q4_K", "Q6_K"),
        ("Q5_0", "Q8_0"),
        ("Q4_0", "Q4_1"),
        ("Q5_K", "Q3_K"),
        ("Q8_0", "Q6_K"),
        ("NVFP4", "Q4_0"),
        ("TQ2_0", "Q4_0"),
    ],
)
def test_a_matrix_fused_of_two_types_keeps_the_numbers_of_both(tmp_path: Path, pair: tuple[str, str]) -> None:
    blocks = {f"{name}.weight": (dtype, random_blocks(dtype, 6, 512)) for name, dtype in zip("ab", pair, strict=True)}
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", "llama", {}, blocks))
    find = gguf_matrices(gguf.tensors, wide=False)
    matrices: list[CodedMatrix] = [matrix for name in "ab" if (matrix := find(name, (6, 512))) is not None]

    common = common_format(matrices)

    for matrix, dtype in zip(matrices, pair, strict=True):
        own = matrix.read(Files(), 1, 5)
        both = expressed(own, matrix.format, common)
        assert both.scales.shape == (4, 512 // common.group)
        assert (both.offsets is not None) == (common.zero != "none")
        assert np.array_equal(numbers(both), numbers(own)), dtype
        assert np.array_equal(own.codes, decode_rows(dtype, blocks[f"{matrix.name}.weight"][1][1:5], 512).codes)


def test_every_type_of_the_gguf_package_is_read_but_those_of_activations_and_integers() -> None:
    others = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64"}

    assert {kind.name for kind in GGMLQuantizationType} - others == {*BLOCK_TYPES, *FLOATS}


def test_scales_beside_nvfp4_multiply_the_rows_of_each_expert(tmp_path: Path) -> None:
    stored, scales = random_blocks("NVFP4", 6, 128), np.array([0.25, 3.0, 1e-3], np.float32)
    tensors = {"a.weight": ("NVFP4", stored), "a.scale": scales, "a.input_scale": scales[:1]}
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", "llama", {}, tensors))
    matrix = gguf_matrices(gguf.tensors, wide=False)("a", (6, 128))
    assert matrix is not None

    rows = matrix.read(Files(), 1, 5)

    plain = decode_rows("NVFP4", stored[1:5], 128)
    assert np.array_equal(rows.codes, plain.codes)
    assert np.array_equal(rows.scales, plain.scales * scales[[0, 1, 1, 2], None])
    assert [tensor.name for tensor in matrix.tensors] == ["a.weight", "a.scale", "a.input_scale"]


def test_float64_is_rounded_to_float32_once(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5))
    tensor = read_gguf(write_gguf(tmp_path / "m.gguf", "llama", {}, {"a.weight": values})).tensors["a.weight"]

    assert tensor.dtype == "F64"
    assert np.array_equal(Files().floats(tensor), values.astype(np.float32))


def test_types_that_are_not_supported_and_wrong_shapes_are_named(tmp_path: Path) -> None:
    blocks = {"a.weight": ("Q8_K", np.zeros((2, 292), np.uint8)), "b.weight": ("Q8_0", random_blocks("Q8_0", 2, 64))}
    find = gguf_matrices(read_gguf(write_gguf(tmp_path / "m.gguf", "llama", {}, blocks)).tensors, wide=False)

    with pytest.raises(ConfigError, match=r"tensor a\.weight is Q8_K; F32, F16, BF16, F64, Q4_0"):
        find("a", (2, 256))
    with pytest.raises(ConfigError, match=r"tensor b\.weight has shape \[2, 64\]; the metadata makes it \[2, 32\]"):
        find("b", (2, 32))
    assert find("c", (2, 32)) is None


def test_the_type_of_bitnet_cpp_is_named_with_a_remedy() -> None:
    tensor = StoredTensor("a.weight", Path("m.gguf"), "type 36", (2, 128), 0, 0)

    with pytest.raises(
        ConfigError, match=r"a\.weight is type 36 \(I2_S of bitnet\.cpp, .*: serve the model's safetensors"
    ):
        gguf_matrices({"a.weight": tensor}, wide=False)("a", (2, 128))
