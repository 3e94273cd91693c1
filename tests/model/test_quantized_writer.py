"""`forearm quantize` writes what serving the float model has in memory: both give the same logits, bit for bit."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.e2e.pooling_models import minilm
from tests.model.cases import CASES
from tests.model.made_cases import make
from tests.model.run_native import Run, compute

from forearm.cli.main import main
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.checkpoint.quantized_writer import packed
from forearm.model.quantization.bits import unpacked

CASE = {case.name: case for case in CASES}
# Tied and biased; fused matrices; norms that add one; LayerNorms and norms after sublayers, which are not rotated;
# experts with tensors of their own, and in one tensor, also by columns; states, latents.
FAMILIES = (
    "llama-gqa", "llama-sharded-mqa-tied", "llama-biases", "qwen2", "phi3", "gemma", "starcoder2", "olmo2", "qwen2_vl",
    "mixtral", "qwen3-moe", "qwen2-moe", "ernie-moe", "gemma4-experts", "llama4-text", "qwen3.5", "qwen3.5-moe",
    "lfm2-moe", "falcon-h1", "kimi-linear", "recurrent-gemma", "deepseek-v3", "hy_v4",
)  # fmt: skip


@pytest.mark.parametrize("format", ["int4", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_gives_the_logits_of_the_model_rounded_while_loading(
    family: str, format: str, tmp_path: Path
) -> None:
    case = CASE[family]
    make(case, tmp_path / "floats")

    assert main(["quantize", str(tmp_path / "floats"), "-o", str(tmp_path / "codes"), "--format", format]) == 0

    same_answers(tmp_path / "floats", tmp_path / "codes", format, case.tokens())


@pytest.mark.parametrize("format", ["int4", "int8"])
def test_a_calibrated_model_is_written_as_it_is_served(format: str, tmp_path: Path) -> None:
    asked = ["--format", format, "--quality-tokens", "0"]
    assert main(["quantize", "-o", str(tmp_path / "codes"), *asked]) == 0

    same_answers(
        DEMO_MODEL, tmp_path / "codes", format, [int(t) for t in np.random.default_rng(0).integers(0, 999, 40)]
    )
    tokenizers = [(folder / "tokenizer.json").read_bytes() for folder in (DEMO_MODEL, tmp_path / "codes")]
    assert tokenizers[0] == tokenizers[1]


def same_answers(floats: Path, codes: Path, format: str, prompt: list[int]) -> None:
    activations = "int8"  # left out on both sides: what a checkpoint says about activations is tested apart
    asked = {"quantization": format, "embeddings": "none", "activations": activations}
    served = Run(str(floats), prompt, 16, portable=True, **asked)
    wanted, expected = compute(served)
    logits, tokens = compute(Run(str(codes), prompt, 16, activations=activations))

    assert np.array_equal(tokens, expected)
    assert np.array_equal(logits, wanted)


def test_the_config_names_the_formats_and_modules(tmp_path: Path) -> None:
    make(CASE["llama-gqa"], tmp_path / "floats")

    main(["quantize", str(tmp_path / "floats"), "-o", str(tmp_path / "codes"), "--format", "int8"])

    settings = json.loads((tmp_path / "codes/config.json").read_text())["quantization_config"]
    rows, downs = settings["config_groups"]["group_0"], settings["config_groups"]["group_1"]
    assert settings["format"] == "mixed-precision"
    assert (rows["targets"], rows["format"], rows["input_activations"]["num_bits"]) == (["Linear"], "int-quantized", 8)
    assert downs["targets"] == [f"model.layers.{i}.mlp.down_proj" for i in range(2)]
    assert (downs["format"], downs["weights"]["group_size"]) == ("pack-quantized", 128)


def test_codes_are_packed_as_they_are_read() -> None:
    codes = np.random.default_rng(0).integers(-8, 8, (5, 44)).astype(np.int8)

    assert np.array_equal(unpacked(packed(codes, 4), 4)[:, :44], codes)
    assert np.array_equal(unpacked(packed(codes * np.int8(15), 8), 8)[:, :44], codes * np.int8(15))


def test_what_can_t_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()

    assert main(["quantize", "-o", str(tmp_path / "full")]) == 78
    assert "has files; name a new folder" in capsys.readouterr().err
    assert main(["quantize", "-o", str(tmp_path / "codes")]) == 0
    assert main(["quantize", str(tmp_path / "codes"), "-o", str(tmp_path / "again")]) == 78
    assert "is quantized already (compressed-tensors); name one of floats" in capsys.readouterr().err
    for name, tensor in (
        ("gpt-oss", "experts.down_proj"),
        ("gpt2", "c_attn.weight"),
        ("zamba2", "call.0.weight"),
        ("granite-moe", "input_linear.weight"),
    ):
        make(CASE[name], tmp_path / name)
        assert main(["quantize", str(tmp_path / name), "-o", str(tmp_path / "again"), "--format", "int4"]) == 78
        assert f"{tensor} is not written, as it could not be read again" in capsys.readouterr().err
        assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("format", ["int4", "gguf-Q8_0"])
def test_a_model_that_generates_no_text_is_refused_as_such(
    format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(minilm()), "-o", str(tmp_path / "codes"), "--format", format]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("it generates no text, so it is not written; serve it with --quantization")


def test_routers_stay_floats_and_experts_have_one_format(tmp_path: Path) -> None:
    make(CASE["mixtral"], tmp_path / "floats")

    main(["quantize", str(tmp_path / "floats"), "-o", str(tmp_path / "codes"), "--format", "int8"])

    settings = json.loads((tmp_path / "codes/config.json").read_text())["quantization_config"]
    assert set(settings["ignore"]) >= {"lm_head", "model.layers.0.block_sparse_moe.gate"}
    (group,) = settings["config_groups"].values()
    assert group["targets"] == ["Linear"]


def test_all_that_is_not_rounded_is_copied_also_the_part_that_sees(tmp_path: Path) -> None:
    make(CASE["qwen3.5"], tmp_path / "floats")

    main(["quantize", str(tmp_path / "floats"), "-o", str(tmp_path / "codes"), "--format", "int4"])

    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("floats", "codes"))
    rounded = {name for name in before if f"{name}_packed" in after}
    assert len(rounded) == 3 * 3 + 4 + 4 * 3, "three delta rules without gates, attention, four feed-forwards"
    assert all(np.array_equal(before[name], after[name]) for name in before.keys() - rounded)
    ignored = json.loads((tmp_path / "codes/config.json").read_text())["quantization_config"]["ignore"]
    assert "model.visual.blocks.0.attn.qkv" in ignored, "or vLLM would look for its codes"


@pytest.mark.parametrize("format", ["int4", "gguf-Q4_0"])
def test_a_disk_that_is_full_is_told_and_keeps_no_part_of_a_model(format: str, tmp_path: Path) -> None:
    folder = tmp_path / "codes"
    most = 100_000  # bytes of one file: less than the weights take

    done = subprocess.run(
        [sys.executable, "-m", "forearm", "quantize", "-o", str(folder), "--format", format, "--quality-tokens", "0"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"forearm quantize: --output {folder}: File too large; nothing is left there"
    )
    assert not folder.exists()


@pytest.mark.parametrize("format", ["int4", "gguf-Q4_0"])
def test_only_a_new_folder_is_written(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, full = tmp_path / "model.gguf", tmp_path / "full"
    full.mkdir()
    for one in (file, full / "notes.txt"):
        one.write_text("kept")

    assert main(["quantize", "-o", str(file), "--format", format]) == 78
    assert f"--output {file}: it is a file; name a new folder" in capsys.readouterr().err
    assert main(["quantize", "-o", str(full), "--format", format]) == 78
    assert f"{full} has files; name a new folder" in capsys.readouterr().err
    assert main(["quantize", "-o", "/proc/model", "--format", format]) == 1
    assert "--output /proc/model: No such file or directory; nothing is left there" in capsys.readouterr().err
    assert (file.read_text(), (full / "notes.txt").read_text()) == ("kept", "kept")
