"""The format of each packed matrix: as configured, as the checkpoint has it, or refused if its parts differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.model.stored_codes import Format, awq, gptq
from tests.unit.model.stored import LLAMA, llama, llama_shapes

from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.families.matrices import matrices
from forearm.model.quantization.quantization import Asked

INT8 = WeightFormat("int8")
INT8_WIDE = WeightFormat("int8", wide=True)
INT8_GROUPED = WeightFormat("int8", 128, "float16", wide=True)
INT4 = WeightFormat("int4", 128, "float16")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}


def formats(folder: Path, *asked: str) -> dict[str, WeightFormat]:
    return open_checkpoint(folder, quantization=Asked(*asked)).formats


def quantized(folder: Path, format: Format, floats: tuple[str, ...] = (), **config: Any) -> Path:
    """A Llama of zeros, its layers' matrices but `floats` in this format."""
    settings = LLAMA | SIZES | config
    (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": format.settings}))
    stored = {}
    for name, shape in llama_shapes(settings).items():
        if len(shape) == 2 and "layers" in name and not any(end in name for end in floats):
            encoded = format.encode(torch.ones(shape).double().numpy())
            stored |= {f"{name.removesuffix('.weight')}.{end}": tensor for end, tensor in encoded.items()}
        else:
            stored[name] = torch.zeros(shape, dtype=torch.float16)
    save_file(stored, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("asked", "layers", "embeddings"),
    [
        (("none",), WeightFormat("bfloat16"), WeightFormat("bfloat16")),
        (("none", "int8"), WeightFormat("bfloat16"), INT8),
        (("int8",), INT8, INT8),
        (("int8", "auto", "int8"), INT8, INT8),
        (("int8", "auto", "float"), INT8_WIDE, INT8_WIDE),
        (("int4",), INT4, WeightFormat("int8", 256, "float16")),
        (("int4-g32",), WeightFormat("int4", 32, "float16"), WeightFormat("int8", 64, "float16")),
        (("int4", "none"), INT4, WeightFormat("bfloat16")),
        (("int4", "auto", "float"), replace(INT4, wide=True), INT8_WIDE),
        (("fp8",), WeightFormat("fp8_e4m3", wide=True), WeightFormat("int8", 32, "float16")),
        (("fp8", "auto", "float"), WeightFormat("fp8_e4m3", wide=True), INT8_WIDE),
    ],
    ids=str,
)
def test_what_was_asked_is_what_each_matrix_gets(
    asked: tuple[str, ...], layers: WeightFormat, embeddings: WeightFormat, tmp_path: Path
) -> None:
    found = formats(llama(tmp_path, "BF16", **SIZES | {"hidden_size": 256}), *asked)

    of_layers = {f"layers.{i}.{name}" for i in range(2) for name in ("qkv", "o", "up", "down")}
    expected = dict.fromkeys(of_layers, layers) | {"embed": embeddings, "head": embeddings}
    if layers.dtype == "fp8_e4m3":  # whose three bits of fraction lose least in gate and up
        expected |= dict.fromkeys(of_layers - {f"layers.{i}.up" for i in range(2)}, replace(INT8_WIDE, turned=True))
        expected |= {"head": replace(INT8, wide=embeddings.wide, turned=True)}
    if asked[0] == "int8":
        expected |= {name: replace(own, turned=True) for name, own in expected.items()}
    if asked[0] in ("int8", "fp8") and not embeddings.group:
        expected |= {"embed": replace(embeddings, group=64, scale_dtype="float16")}
    if layers == INT8:  # a scale for a whole row of activations before down would be that of outliers
        grouped = replace(INT8_GROUPED, group=512, wide=False, turned=True)
        expected |= {"layers.0.down": grouped, "layers.1.down": grouped}
    if asked == ("int8",):
        expected |= {"layers.1.down": replace(INT8_WIDE, turned=True)}  # the last layer's have most
    assert found == expected


@pytest.mark.parametrize(("width", "group"), [(256, 128), (192, 64), (96, 32), (100, 128)])
def test_groups_are_halved_until_they_divide_the_rows(width: int, group: int, tmp_path: Path) -> None:
    llama(tmp_path, **SIZES | {"intermediate_size": width})

    found = formats(tmp_path, "int4")

    assert found["layers.0.down"].group == group, "of 100 values: no groups of 32 or more divide them"
    assert found["layers.0.up"].group == 128


@pytest.mark.parametrize(("width", "group"), [(8576, 128), (12864, 192), (4288, 64), (100, 128)])
def test_fp8_has_int8_groups_of_192_where_rows_cannot_be_turned_and_128_does_not_divide_them(
    width: int, group: int, tmp_path: Path
) -> None:
    """67 is a factor of the widths: no matrix for it is made while serving."""
    folder = llama(tmp_path, **SIZES | {"intermediate_size": width})

    assert formats(folder, "fp8")["layers.0.down"].group == group
    portable = open_checkpoint(folder, quantization=Asked("fp8", portable=True))
    assert portable.formats["layers.0.down"].group == (64 if group == 192 else group), "other engines read 32, 64, 128"


@pytest.mark.parametrize(
    ("width", "group"),
    [(256, 512), (128, 512), (640, 512), (384, 384), (896, 448), (192, 192), (576, 192), (100, 0), (4288, 64)],
)
def test_activations_are_turned_in_groups_before_down_and_whole_before_others(
    width: int, group: int, tmp_path: Path
) -> None:
    llama(tmp_path, **SIZES | {"intermediate_size": width})
    divides = width not in (100, 4288)  # 4288: 64 times a prime that is too large

    turned = {name: one.group for name, one in formats(tmp_path, "int8").items() if one.turned}
    beside_fp8 = {name: one.group for name, one in formats(tmp_path, "fp8").items() if one.turned}

    whole = {f"layers.{i}.{name}": 0 for i in range(2) for name in ("qkv", "o")} | {"head": 0}
    last = {"layers.1.down": 0} if divides else {}  # of 16 bits
    first = {"layers.0.down": group} if group else {}
    assert turned == whole | {"layers.0.up": 0, "layers.1.up": 0} | first | last
    assert beside_fp8 == whole | last | ({"layers.0.down": 0} if divides else {})


@pytest.mark.parametrize(("asked", "ends"), [("int4", 2), ("int4-g32", 2), ("int4-fast", 0)])
def test_down_projections_of_the_first_and_last_layers_keep_8_bits(asked: str, ends: int, tmp_path: Path) -> None:
    found = formats(llama(tmp_path, "BF16", num_hidden_layers=29), asked, "auto", "float")

    eight = [name for name, format in found.items() if name.startswith("layers.") and format.dtype == "int8"]
    assert sorted(eight) == sorted(f"layers.{i}.down" for i in (*range(ends), *range(29 - ends, 29)))
    assert {found[name] for name in eight} <= {WeightFormat("int8", 128, "float16", wide=True)}


def test_a_tied_head_is_the_embedding_unless_the_model_is_rotated(tmp_path: Path) -> None:
    folder = llama(tmp_path, "BF16", tie_word_embeddings=True)

    assert "head" not in formats(folder, "int4")
    assert "head" not in formats(folder, "int4", "auto", "float")
    assert "head" in formats(folder, "int8")
    assert "head" in formats(folder, "int8", "auto", "float")


def test_the_memory_plan_counts_the_head_that_rotation_takes_apart(tmp_path: Path) -> None:
    folder = llama(tmp_path, "BF16", tie_word_embeddings=True)

    tied = open_checkpoint(folder, quantization=Asked("fp8"))
    rotated = open_checkpoint(folder, quantization=Asked("int8"))

    head = next(spec for spec in matrices(rotated.config) if spec.name == "head")
    assert "head" not in tied.formats
    assert rotated.packed_bytes - tied.packed_bytes >= head.rows * head.k


def test_models_with_learned_positions_are_calibrated_and_have_no_groups_beside_16_bits(tmp_path: Path) -> None:
    config = {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": 50, "hidden_size": 32, "ffn_dim": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16, "word_embed_proj_dim": 32,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    at = "model.decoder.layers.0"
    matrices = {f"{at}.self_attn.{n}_proj": (32, 32) for n in ("q", "k", "v", "out")}
    matrices |= {f"{at}.fc1": (64, 32), f"{at}.fc2": (32, 64)}
    stored = {f"{name}.weight": torch.zeros(shape) for name, shape in matrices.items()}
    stored |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in matrices.items()}
    for norm in (f"{at}.self_attn_layer_norm", f"{at}.final_layer_norm", "model.decoder.final_layer_norm"):
        stored |= {f"{norm}.weight": torch.zeros(32), f"{norm}.bias": torch.zeros(32)}
    stored |= {"model.decoder.embed_tokens.weight": torch.zeros(50, 32)}
    stored |= {"model.decoder.embed_positions.weight": torch.zeros(18, 32)}
    save_file(stored, tmp_path / "model.safetensors")

    found = formats(tmp_path, "int8")

    assert found["positions"] == WeightFormat("float32")
    assert found["layers.0.up"] == INT8, "rows of 32 columns are not turned"
    assert found["embed"] == replace(INT8, group=64, scale_dtype="float16"), "which is the head, too"
    wide = formats(tmp_path, "int8", "auto", "float")
    assert wide["layers.0.up"] == replace(INT8, wide=True), "calibrated, so one scale a row"


def test_a_quantized_checkpoint_keeps_its_formats_and_the_dtype_of_the_rest(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(quantized(tmp_path, gptq(4, 32, sym=True)))

    assert checkpoint.method == "gptq"
    assert checkpoint.formats["layers.1.qkv"] == WeightFormat("int4", 32, "float16")
    assert checkpoint.formats["embed"] == checkpoint.formats["head"] == WeightFormat("float16")
    files = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert 0.9 * files < checkpoint.stored_bytes < files


def test_the_embedding_of_a_quantized_checkpoint_is_rounded_where_asked(tmp_path: Path) -> None:
    found = formats(quantized(tmp_path, awq(32)), "awq", "int8")

    assert found["embed"] == found["head"] == INT8
    assert found["layers.0.o"].dtype == "int4"


def test_modules_left_as_floats_stay_floats(tmp_path: Path) -> None:
    found = formats(quantized(tmp_path, gptq(4, 32, sym=True), floats=("down_proj",)))

    assert found["layers.0.down"] == WeightFormat("float16")
    assert found["layers.0.up"].dtype == "int4"


def test_parts_of_one_matrix_of_which_some_are_floats_are_refused(tmp_path: Path) -> None:
    folder = quantized(tmp_path, gptq(4, 32, sym=True), floats=("v_proj",))

    with pytest.raises(ConfigError, match=r"q_proj, .*k_proj is quantized and .*v_proj\.weight is not"):
        open_checkpoint(folder)


def test_gptq_tensors_under_a_config_that_does_not_say_so_are_missing_weights(tmp_path: Path) -> None:
    quantized(tmp_path, gptq(4, 32, sym=True))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | SIZES))

    with pytest.raises(ConfigError, match=r"down_proj\.weight.* missing from its safetensors files"):
        open_checkpoint(tmp_path)
