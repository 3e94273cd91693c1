"""Quantized tensors are read bit for bit, in any pieces, into the format that holds them; others are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.model.stored_codes import FORMATS, Format, Stored, awq, bitnet, compressed, fp8, gptq, mxfp4

from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.formats import packed_bytes
from forearm.model.checkpoint.shards import Files, read_tensors
from forearm.model.families.keys import Keys
from forearm.model.quantization.codes import CodedMatrix, Codes, common_format, expressed
from forearm.model.quantization.quantization import Asked, find_coded, quantization_of

AS_IT_IS = Asked()
BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
MODULE = "model.layers.0.mlp.up_proj"


def weights(rows: int, k: int) -> np.ndarray:
    random = np.random.default_rng(rows + k)
    return random.standard_normal((rows, k)) * random.uniform(0.001, 0.1, (rows, 1))


def write(folder: Path, tensors: Stored) -> None:
    save_file({f"{MODULE}.{end}": tensor for end, tensor in tensors.items()}, folder / "model.safetensors")


def found(folder: Path, settings: dict[str, Any], shape: tuple[int, int], asked: Asked = AS_IT_IS) -> CodedMatrix:
    quantized = quantization_of(Keys({"quantization_config": settings}, "config.json"), folder)
    matrix = find_coded(quantized, asked, read_tensors(folder), folder)(MODULE, shape)
    assert matrix is not None
    return matrix


def widened(codes: Codes, group: int, order: np.ndarray | None) -> np.ndarray:
    """float64 weights, columns where they belong."""
    own = codes.codes
    values = torch.from_numpy(own.copy()).view(torch.float8_e4m3fn).double().numpy() if own.dtype == np.uint8 else own
    group_of = np.arange(own.shape[1]) // (group or own.shape[1])
    zeros = np.zeros(codes.scales.shape, int) if codes.zeros is None else codes.zeros.astype(int)
    offsets = 0.0 if codes.offsets is None else codes.offsets.astype(np.float64)[:, group_of]
    w = (values - zeros[:, group_of]) * codes.scales.astype(np.float64)[:, group_of] + offsets
    out: np.ndarray = np.empty_like(w)
    out[:, np.arange(own.shape[1]) if order is None else order] = w
    return out


@pytest.mark.parametrize("shape", [(48, 256), (136, 384), (8, 128)], ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_what_is_read_is_what_the_file_says(format: Format, shape: tuple[int, int], tmp_path: Path) -> None:
    stored = format.encode(weights(*shape))
    write(tmp_path, stored)

    matrix = found(tmp_path, format.settings, shape)
    codes = matrix.read(Files(), 0, shape[0])

    expected = format.decode(stored, shape)
    assert np.array_equal(widened(codes, matrix.format.group, matrix.order), expected)
    assert np.abs(expected - weights(*shape)).max() < format.error * np.abs(expected).max(), (
        "the test's own encoder is wrong"
    )
    low, high = {"int4": (-8, 7), "int8": (-128, 127), "fp4_e2m1": (-12, 12)}.get(matrix.format.dtype, (0, 255))
    assert low <= codes.codes.min() <= codes.codes.max() <= high
    assert {tensor.name.rpartition(".")[2] for tensor in matrix.tensors} == set(stored)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_any_rows_are_read_alone(format: Format, tmp_path: Path) -> None:
    shape = (136, 256)
    write(tmp_path, format.encode(weights(*shape)))
    matrix, files = found(tmp_path, format.settings, shape), Files()

    whole = matrix.read(files, 0, shape[0])
    for begin, end in ((0, 5), (5, 6), (6, 100), (100, 136)):
        part = matrix.read(files, begin, end)
        for name in ("codes", "scales", "zeros"):
            mine, all_rows = getattr(part, name), getattr(whole, name)
            assert mine is all_rows is None or (
                np.array_equal(mine, all_rows[begin:end]) and mine.dtype == all_rows.dtype and mine.flags.c_contiguous
            )


@pytest.mark.parametrize(
    ("format", "kept"),
    [
        (gptq(4, 32, sym=True), WeightFormat("int4", 32, "float16")),
        (gptq(4, 128, sym=False), WeightFormat("int4", 128, "float16", zero="int8")),
        (gptq(4, 64, sym=False, act_order=True), WeightFormat("int4", 64, "float16", zero="int8", ordered=True)),
        (gptq(8, -1, sym=True, act_order=True), WeightFormat("int8", 0, "float16")),
        (awq(128), WeightFormat("int4", 128, "float16", zero="int8")),
        (compressed(8, 0, packed=False, int8_activations=True), WeightFormat("int8", 0, "bfloat16")),
        (compressed(8, 0, packed=True, int8_activations=False), WeightFormat("int8", 0, "bfloat16", wide=True)),
        (compressed(4, 128, packed=False, int8_activations=True), WeightFormat("int4", 128, "float32")),
        (fp8("tensor"), WeightFormat("fp8_e4m3", wide=True)),
        (fp8("block"), WeightFormat("fp8_e4m3", 128, wide=True)),
        (mxfp4(), WeightFormat("fp4_e2m1", 32, "e8m0")),
        (mxfp4(method="compressed-tensors"), WeightFormat("fp4_e2m1", 32, "e8m0", wide=True)),
        (bitnet("bitlinear"), WeightFormat("int4")),
        (bitnet("autobitlinear"), WeightFormat("int4", 0, "bfloat16")),
        (bitnet("autobitlinear", mode="online"), WeightFormat("int4")),
    ],
    ids=lambda value: value.name if isinstance(value, Format) else "",
)
def test_the_format_holds_no_more_than_the_checkpoint(format: Format, kept: WeightFormat, tmp_path: Path) -> None:
    write(tmp_path, format.encode(weights(16, 256)))

    assert found(tmp_path, format.settings, (16, 256)).format == kept
    wide = found(tmp_path, format.settings, (16, 256), Asked(activations="float")).format
    assert wide == replace(kept, wide=True)


def test_a_checkpoint_that_says_16_bits_is_served_with_int8_activations_where_asked(tmp_path: Path) -> None:
    format = compressed(4, 32, packed=True, int8_activations=False)
    write(tmp_path, format.encode(weights(16, 64)))

    assert found(tmp_path, format.settings, (16, 64)).format.wide
    assert not found(tmp_path, format.settings, (16, 64), Asked(activations="int8")).format.wide


def matrix_of(format: WeightFormat, order: np.ndarray | None = None, name: str = "q") -> CodedMatrix:
    return CodedMatrix(name, (16, 256), format, (), lambda files, begin, end: codes_of(format), order)


def codes_of(format: WeightFormat) -> Codes:
    random = np.random.default_rng(format.group)
    shape = (16, -(-256 // format.group) if format.group else 1)
    codes = random.integers(-8, 8, (16, 256)).astype(np.int8)
    scales = random.standard_normal(shape).astype(np.float16).astype(np.float32)
    zeros = random.integers(-8, 8, shape).astype(np.int8) if format.zero == "int8" else None
    offsets = random.standard_normal(shape).astype(np.float16).astype(np.float32) if format.zero == "float16" else None
    return Codes(codes, scales, zeros, offsets)


@pytest.mark.parametrize(
    ("formats", "common"),
    [
        (["int4 32 none", "int4 32 none"], "int4 32 none"),
        (["int4 128 none", "int8 0 none"], "int8 128 none"),
        (["int4 32 float16", "int6 16 none", "int4 32 float16"], "int6 16 float16"),
        (["int4 32 none", "int6 32 none", "int8 32 none"], "int8 32 none"),
        (["fp4_e2m1 32 none", "int4 32 none"], "int6 32 none"),
        (["int4 32 float16", "int8 16 none"], "int8 16 float16"),
        (["int4 32 int8", "int4 64 none"], "int4 32 int8"),
        (["int4 32 int8", "int4 48 float16"], "int4 16 float16"),
        (["int8 0 none", "int8 0 int8"], "int8 0 int8"),
    ],
)
def test_fused_matrices_have_a_common_format_with_the_same_numbers(formats: list[str], common: str) -> None:
    def made(text: str) -> WeightFormat:
        dtype, group, zero = text.split()
        return WeightFormat(dtype, int(group), "float16", zero=zero)  # type: ignore[arg-type]

    parts = [made(text) for text in formats]
    want = common_format([matrix_of(part) for part in parts])

    assert want == made(common)
    for part in parts:
        codes = codes_of(part)
        after = expressed(codes, part, want)
        become_offsets = want.zero == "float16" and codes.zeros is not None  # and are rounded
        rounding = 2**-11 * np.abs(codes.scales * codes.zeros).max() if become_offsets else 0.0
        assert np.abs(widened(after, want.group, None) - widened(codes, part.group, None)).max() <= rounding
        assert (after.zeros is None, after.offsets is None) == (want.zero != "int8", want.zero != "float16")


def test_fused_matrices_without_a_common_format_are_refused() -> None:
    int4, eight = WeightFormat("int4", 32, ordered=True), WeightFormat("fp8_e4m3", wide=True)
    there, back = np.arange(256, dtype=np.int32), np.arange(256, dtype=np.int32)[::-1]

    with pytest.raises(ConfigError, match="q, k are kept as one matrix, but their columns were sorted differently"):
        common_format([matrix_of(int4, there), matrix_of(int4, back, "k")])
    with pytest.raises(ConfigError, match="q, k are kept as one matrix, but are fp8_e4m3 and int4"):
        common_format([matrix_of(replace(int4, ordered=False)), matrix_of(eight, name="k")])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes is not supported.*--quantization int8"),
        ({"quant_method": "aqlm"}, "quant_method aqlm is not supported"),
        ({"bits": 4}, "quant_method is missing"),
        ({"quant_method": "gptq", "bits": 3}, "bits = 3; it should be 4 or 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, 'checkpoint_format = "marlin"'),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, 'version = "gemv"; it should be gemm'),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size = 128"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size = .0, 128."),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 1 << 70]},
            "weight_block_size = .128, 1180591620717411303424.",
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {
                        "format": "float-quantized",
                        "weights": {"type": "float", "strategy": "block", "block_structure": [[1], None]},
                    }
                },
            },
            "block_structure = .*; it should be a list of two numbers",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {
                        "format": "int-quantized",
                        "weights": {"num_bits": 8},
                        "targets": ["re:(mlp"],
                    }
                },
            },
            "targets = .*; it should be names of modules or patterns",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}, "format": "marlin-24"},
            "format marlin-24 is not supported",
        ),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
            'format = "sparse-24-bitmask"; it should be dense',
        ),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}},
            "rotations of activations are not supported",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "format nvfp4-pack-quantized is not supported",
        ),
        (BITNET | {"linear_class": "linear"}, 'linear_class = "linear"; it should be bitlinear or autobitlinear'),
        (BITNET | {"quantization_mode": "late"}, 'quantization_mode = "late"; it should be online or offline'),
        (BITNET | {"use_rms_norm": True}, "use_rms_norm = true; it should be false: norms within linear layers"),
        (BITNET | {"modules_to_not_convert": 3}, "modules_to_not_convert = 3; it should be a list of names, or null"),
        (BITNET | {"modules_to_not_convert": ["("]}, "it should be names of modules or patterns"),
        (BITNET | {"modules_to_not_convert": []}, "it should be null, or a list with lm_head"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], text: str, tmp_path: Path) -> None:
    write(tmp_path, {"weight": torch.zeros(2, 2)})

    with pytest.raises(ConfigError, match=text):
        found(tmp_path, settings, (2, 2))


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    format = gptq(4, 64, sym=True)
    stored = format.encode(weights(16, 256))
    write(tmp_path, stored)
    with pytest.raises(ConfigError, match=r"up_proj.qweight has shape \[32, 16\]; config.json makes it \[32, 24\]"):
        found(tmp_path, format.settings, (24, 256))
    with pytest.raises(ConfigError, match="in groups of 24 values; groups must be multiples of 16"):
        found(tmp_path, format.settings | {"group_size": 24}, (16, 256))

    del stored["scales"]
    write(tmp_path, stored)
    with pytest.raises(ConfigError, match=r"up_proj\.scales is missing"):
        found(tmp_path, format.settings, (16, 256))


def test_a_g_idx_that_makes_no_groups_is_refused(tmp_path: Path) -> None:
    format = gptq(4, 64, sym=True, act_order=True)
    write(tmp_path, format.encode(weights(16, 256)) | {"g_idx": torch.zeros(256, dtype=torch.int32)})

    with pytest.raises(ConfigError, match="g_idx does not divide 256 columns into groups of 64"):
        found(tmp_path, format.settings, (16, 256))


def test_weights_of_a_training_are_not_taken_for_ternary_ones(tmp_path: Path) -> None:
    format = bitnet("autobitlinear", packed=False)
    write(tmp_path, format.encode(weights(16, 256)) | {"weight": torch.full((16, 256), 0.5)})

    matrix = found(tmp_path, format.settings, (16, 256))

    with pytest.raises(ConfigError, match=r'not -1, 0 or 1.*set it to "online" in config.json'):
        matrix.read(Files(), 0, 16)


@pytest.mark.parametrize("skipped", ["layers.0.mlp", "up_proj", "model.layers.*", "model.layers.0.mlp.up_proj"])
def test_bitnet_modules_that_are_not_converted_stay_floats(skipped: str, tmp_path: Path) -> None:
    settings = BITNET | {"modules_to_not_convert": ["lm_head", skipped]}
    write(tmp_path, {"weight": torch.ones(16, 256)})
    quantized = quantization_of(Keys({"quantization_config": settings}, "config.json"), tmp_path)

    find = find_coded(quantized, AS_IT_IS, read_tensors(tmp_path), tmp_path)

    assert (find(MODULE, (16, 256)) is None) == (skipped != "layers.0.mlp")


def test_zero_points_under_a_config_that_says_there_are_none_are_refused(tmp_path: Path) -> None:
    format = gptq(4, 64, sym=False)
    write(tmp_path, format.encode(weights(16, 256)))

    matrix = found(tmp_path, format.settings | {"sym": True}, (16, 256))

    with pytest.raises(ConfigError, match=r'zero points that are not in the middle.*"sym": true'):
        matrix.read(Files(), 0, 16)


def test_a_sorted_checkpoint_that_was_not_sorted_has_no_order(tmp_path: Path) -> None:
    format = gptq(4, 64, sym=True)
    write(tmp_path, format.encode(weights(16, 256)))

    matrix = found(tmp_path, format.settings | {"desc_act": True}, (16, 256))

    assert matrix.order is None
    assert not matrix.format.ordered


@pytest.mark.parametrize(
    ("asked", "settings", "text"),
    [
        ("awq", None, "--quantization awq: the checkpoint is not quantized; int8, int4"),
        ("int8", gptq(4, 32, sym=True).settings, r"--quantization int8: the checkpoint is quantized already \(gptq\)"),
        ("awq", gptq(4, 32, sym=True).settings, r"quantized already \(gptq\) and keeps its format"),
    ],
)
def test_a_quantization_that_the_checkpoint_has_not_is_refused(
    asked: str, settings: dict[str, Any] | None, text: str, tmp_path: Path
) -> None:
    config = Keys({"quantization_config": settings}, "config.json")

    with pytest.raises(ConfigError, match=text):
        find_coded(quantization_of(config, tmp_path), Asked(asked), {}, tmp_path)


@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_settings_beside_config_json_are_found(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps({"bits": 4, "group_size": 32, "w_bit": 4, "q_group_size": 32}))

    quantized = quantization_of(Keys({}, "config.json"), tmp_path)

    assert quantized is not None
    assert quantized[0] == {"quantize_config.json": "gptq", "quant_config.json": "awq"}[file]


def test_the_bytes_planned_are_those_of_panels_and_scales() -> None:
    # 50 rows are 4 panels of 16; 100 columns are 104 int8, 112 nibbles
    assert packed_bytes(WeightFormat("int8"), 50, 100) == 64 * 104 + 64 * 4
    assert packed_bytes(WeightFormat("int4", 32, "float16", zero="int8"), 50, 100) == 64 * 112 // 2 + 64 * 4 * 3
    assert packed_bytes(WeightFormat("int4", 32, "float16", ordered=True), 50, 100) == 64 * 56 + 64 * 4 * 2 + 400
    assert packed_bytes(WeightFormat("int8", 16, zero="float16"), 50, 100) == 64 * 104 + 64 * 7 * 6
    assert packed_bytes(WeightFormat("fp8_e4m3", 128, wide=True), 50, 100) == 64 * 100 + 64 * 4
    assert packed_bytes(WeightFormat("bfloat16"), 50, 98) == 64 * 100 * 2 + 64 * 4
