"""Opening a model folder: what is missing, cut short, misshapen or of no use is said by name, before anything loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.model.stored import LLAMA, llama, llama_shapes, write

from forearm.engine.host.memory_plan import kv_bytes
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint


def rewrite(folder: Path, shapes: dict[str, list[int]], dtype: str = "F32") -> None:
    write(folder / "model.safetensors", shapes, dtype)


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


def test_a_whole_folder_opens_with_its_sizes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama(tmp_path, "BF16", torch_dtype="bfloat16"))

    values = 50 * 24 * 2 + 2 * (24 * 24 * 2 + 8 * 24 * 2 + 3 * 40 * 24 + 2 * 24) + 24
    assert checkpoint.stored_bytes == 2 * values
    assert checkpoint.weight_dtype == checkpoint.kv_dtype == "bfloat16"
    assert checkpoint.max_model_len == 64
    # panels of 16 rows: 50 -> 64, 24 -> 32, 8 -> 16, 40 -> 48; vectors in float32, 24 -> 32
    padded = 2 * 64 * 24 + 2 * (2 * 32 * 24 + 2 * 16 * 24 + 2 * 48 * 24 + 32 * 40)
    # a row of each tensor may have a scale in float32; those of a tensor fill lines of 32: 16 -> 32, 48 -> 64
    scales = 2 * 64 + 2 * (2 * 32 + 2 * 32 + 2 * 64 + 32)
    assert checkpoint.packed_bytes == 2 * padded + 4 * scales + 4 * 5 * 32


@pytest.mark.parametrize(
    ("asked", "weights"),
    [("auto", "float16"), ("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")],
)
def test_dtype_names_are_those_of_vllm(asked: str, weights: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama(tmp_path, "F16", torch_dtype="float16"), dtype=asked, kv_dtype="float32")

    assert checkpoint.weight_dtype == weights
    assert checkpoint.kv_dtype == "float32"


@pytest.mark.parametrize(("asked", "dtype"), [("int8", "int8"), ("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")])
def test_a_kv_cache_of_8_bits_takes_a_byte_a_value_and_a_scale_a_head(asked: str, dtype: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama(tmp_path), kv_dtype=asked)

    assert checkpoint.kv_dtype == dtype
    # Keys and values of 2 layers with 1 head, which is padded to 16 values.
    assert kv_bytes(checkpoint) == 32 * 2 * 2 * (16 + 4)


def test_an_unknown_kv_dtype_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-cache-dtype int4 is not supported; use auto, .*, int8, fp8_e4m3, fp8_e5m2, .*, fp8$"
    ):
        open_checkpoint(llama(tmp_path), kv_dtype="int4")


def test_without_a_word_in_config_json_the_dtype_is_that_of_the_tensors(tmp_path: Path) -> None:
    assert open_checkpoint(llama(tmp_path, "BF16")).config.dtype == "bfloat16"


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dtype int3 is not supported"):
        open_checkpoint(llama(tmp_path), dtype="int3")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    shapes = llama_shapes(LLAMA)
    del shapes["model.layers.1.mlp.up_proj.weight"]
    rewrite(llama(tmp_path), shapes)

    assert "model.layers.1.mlp.up_proj.weight is missing" in refused(tmp_path)


def test_a_wrong_shape_is_named_with_the_right_one(tmp_path: Path) -> None:
    rewrite(llama(tmp_path), llama_shapes(LLAMA) | {"model.layers.0.self_attn.k_proj.weight": [16, 24]})

    message = refused(tmp_path)
    assert "model.layers.0.self_attn.k_proj.weight has shape [16, 24]; config.json makes it [8, 24]" in message


def test_a_quantized_tensor_is_named(tmp_path: Path) -> None:
    rewrite(llama(tmp_path, torch_dtype="float32"), llama_shapes(LLAMA), "I32")

    assert "tensor model.embed_tokens.weight is I32" in refused(tmp_path)


def test_a_tensor_nothing_uses_is_warned_of_and_known_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": [4], "vision_tower.patch.weight": [3, 3]}
    rewrite(llama(tmp_path), llama_shapes(LLAMA) | extra | {"model.layers.0.adapter.weight": [1, 1]})

    open_checkpoint(tmp_path)

    assert [r.getMessage().split(": ", 1)[1] for r in caplog.records] == [
        "model.layers.0.adapter.weight is in the files but not in the model, and left out"
    ]


@pytest.mark.parametrize("cut", [1, 1000, 30000])
def test_a_file_cut_short_is_named(cut: int, tmp_path: Path) -> None:
    path = llama(tmp_path) / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut)

    message = refused(tmp_path)
    assert "model.safetensors" in message
    assert "is cut short" in message


@pytest.mark.parametrize(
    "content", [b"", b"1234", b"\xff" * 100, b"\x02" + b"\0" * 7 + b"[]", b"\x09" + b"\0" * 7 + b'{"a":{}} ']
)
def test_a_damaged_header_is_named(content: bytes, tmp_path: Path) -> None:
    (llama(tmp_path) / "model.safetensors").write_bytes(content)

    assert "model.safetensors" in refused(tmp_path)


def test_other_pickled_weights_are_not_opened_and_the_remedy_is_given(tmp_path: Path) -> None:
    (llama(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "weights.pth").write_bytes(b"\x80\x02c__builtin__\nexec\n")

    message = refused(tmp_path)
    assert "weights.pth, a pickle" in message
    assert "--revision" in message


def test_an_index_leads_to_its_shards(tmp_path: Path) -> None:
    shapes = llama_shapes(LLAMA)
    names = list(shapes)
    llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    weight_map = {}
    for i, part in enumerate((names[:9], names[9:])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        write(tmp_path / file, {name: shapes[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    sources = open_checkpoint(tmp_path).sources
    assert len({tensor.path for _, tensor in sources}) == 2
    assert [(t.path, t.begin) for _, t in sources] == sorted((t.path, t.begin) for _, t in sources)

    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors can't be read" in refused(tmp_path)


def test_an_index_can_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (llama(tmp_path) / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')

    assert "'../secret.safetensors' is not the name of a weight file" in refused(tmp_path)


def test_tensors_of_a_multimodal_file_are_found_under_either_prefix(tmp_path: Path) -> None:
    for prefix in ("language_model.model.", "model.language_model."):
        shapes = {n.replace("model.", prefix, 1): s for n, s in llama_shapes(LLAMA).items()}
        rewrite(llama(tmp_path), shapes)

        assert len(open_checkpoint(tmp_path).sources) == len(shapes)
