"""gpt-oss with the experts that its published files have: MXFP4, on every tier, against transformers' floats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import CASES, Case
from tests.model.kept_weights import wait_until_kept
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run, Stepper
from tests.model.stored_codes import mxfp4
from tests.unit.model.published import PUBLISHED
from tests.unit.model.stored import write
from transformers import AutoModelForCausalLM

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.weights import load_native

(PLAIN,) = (case for case in CASES if case.name == "gpt-oss")
CASE = replace(PLAIN, settings={**PLAIN.settings, "hidden_size": 96, "intermediate_size": 160}, prompt=70, greedy=64)


@dataclass(frozen=True)
class Made:
    """The MXFP4 checkpoint, transformers' one of the same numbers, and transformers' model."""

    stored: Path
    floats: Path

    @cache  # noqa: B019  (two checkpoints' paths; every tier chooses the same tokens)
    def theirs(self, tokens: tuple[int, ...]) -> np.ndarray:
        """transformers' logits after every token."""
        model = AutoModelForCausalLM.from_pretrained(self.floats, attn_implementation="eager", dtype=torch.float32)
        with torch.no_grad():
            found: np.ndarray = model.eval()(torch.tensor([tokens])).logits[0].numpy()
        return found

    @cache  # noqa: B019
    def exact(self, tokens: tuple[int, ...]) -> np.ndarray:
        """Float64 logits."""
        return logits(*load_weights(self.floats, dtype="float32"), list(tokens))

    @cache  # noqa: B019
    def allowed(self, tokens: tuple[int, ...]) -> float:
        """Return the largest error of a logit by float32 sums of codes of 16 bits.

        These err by 2^-16 of the largest of 32 values: at most sqrt(32) times their root mean square.
        """
        config, weights = load_weights(self.floats, dtype="float32")
        sums = Rounding(sums=2.0**-24)
        roundings = (sums, replace(sums, operands=2.0**-16 * 32**0.5))
        return sum(tolerance(config, weights, list(tokens), one, self.exact(tokens)) for one in roundings)

    @cache  # noqa: B019
    def noise(self, tokens: tuple[int, ...]) -> np.ndarray:
        """Return errors of logits by activations of 8 bits, in one random experiment."""
        config, weights = load_weights(self.floats, dtype="float32")
        return np.abs(logits(config, weights, list(tokens), Rounding(int8="noise", group=32)) - self.exact(tokens))


def quantize(plain: Path, into: Path) -> Made:
    """Round the experts of transformers' checkpoint: columns of gate and up alternate, the files have rows."""
    made, format = Made(into / "stored", into / "floats"), mxfp4()
    stored, floats = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        stored[name] = floats[name] = tensor
        if tensor.dim() != 3:
            continue
        experts, k, rows = tensor.shape
        flat = tensor.transpose(1, 2).reshape(-1, k)
        encoded = format.encode(flat.double().numpy())
        decoded = torch.from_numpy(format.decode(encoded, (experts * rows, k))).float()
        floats[name] = decoded.reshape(experts, rows, k).transpose(1, 2).contiguous()
        del stored[name]
        for end, part in encoded.items():
            stored[f"{name}{end.removeprefix('weight')}"] = part.reshape(experts, rows, *part.shape[1:]).contiguous()
    config = json.loads((plain / "config.json").read_text())
    settings = PUBLISHED["gpt-oss-20b"]["quantization_config"]
    for folder, tensors, more in ((made.stored, stored, {"quantization_config": settings}), (made.floats, floats, {})):
        shutil.copytree(plain, folder)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config | more))
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    plain = tmp_path_factory.mktemp("plain")
    make(CASE, plain)
    return quantize(plain, tmp_path_factory.mktemp("quantized"))


@pytest.mark.parametrize("tier", _native.tier_names())
def test_tokens_are_those_of_the_dequantized_experts(tier: str, made: Made, tmp_path: Path) -> None:
    job, out = tmp_path / "job.json", tmp_path / "out.npz"
    runs = [
        Run(str(made.stored), CASE.tokens(), CASE.greedy, "float32", "float32", activations=activations)
        for activations in ("float", "auto")
    ]
    job.write_text(json.dumps([asdict(run) for run in runs]))
    environment = os.environ | {"FOREARM_TIER": tier, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tests.model.run_native", str(job), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = np.load(out)

    for i, eight_bits in enumerate((False, True)):
        chosen = found[f"chosen{i}"].tolist()
        tokens = (*CASE.tokens(), *chosen)
        theirs = made.theirs(tokens)
        errors = np.abs(found[f"logits{i}"] - theirs)
        if not eight_bits:
            allowed = made.allowed(tokens)
            assert errors.max() <= allowed, f"off by {errors.max():.3g}, allowed {allowed:.3g}"
            assert chosen == theirs[CASE.prompt - 1 : -1].argmax(axis=-1).tolist()
            continue
        # The middle error: roundings choose another expert for a few tokens, in the experiment as in the executor.
        assert 0 < np.median(errors) <= 1.5 * np.median(made.noise(tokens)) < 0.1 * theirs.std()


def test_experts_are_kept_in_four_bits_with_a_scale_for_32(made: Made) -> None:
    checkpoint = open_checkpoint(made.stored)

    formats = {name.split(".", 2)[2]: format for name, format in checkpoint.formats.items() if "layers.1." in name}

    codes, floats = WeightFormat("fp4_e2m1", 32, "e8m0"), WeightFormat("float32")
    assert formats == {
        "qkv": floats, "o": floats, "router": floats, "experts.up": codes, "experts.down": codes,
    }  # fmt: skip


def stepper(checkpoint: Checkpoint, cache: str) -> _native.Executor:
    executor = load_native(
        checkpoint, step_tokens=33, step_sequences=1, step_logit_rows=33, cores=(), threads=2, progress=False,
        weight_cache=cache,
    )  # fmt: skip
    wait_until_kept()
    return executor


def test_kept_weights_give_the_same_bits(made: Made, tmp_path: Path) -> None:
    """Sinks and the experts' biases lie in the file, too."""
    found = []
    for kept in ("", str(tmp_path), str(tmp_path)):
        one = Stepper(Run(str(made.stored), CASE.tokens(), 0))
        one.executor = stepper(open_checkpoint(made.stored), kept)
        one.executor.allocate_kv(len(one.blocks))
        found.append(one.step(CASE.tokens()[:33]))
    assert len(list(tmp_path.iterdir())) >= 1
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floats_are_rounded_at_load(dtype: str, tmp_path: Path) -> None:
    """Four bits are farther from the floats than eight, and none is far."""
    case: Case = replace(CASE, dtype=dtype)
    make(case, tmp_path)
    tokens = case.tokens()[:33]
    exact = Stepper(Run(str(tmp_path), tokens, 0)).step(tokens)

    errors = []
    for quantization in ("int8", "fp8", "int4-g32"):
        got = Stepper(Run(str(tmp_path), tokens, 0, quantization=quantization)).step(tokens)
        errors.append(float(np.median(np.abs(got - exact)) / exact.std()))
    assert 0 < max(errors[:2]) < errors[2] < 0.4, errors


def test_the_published_20b_opens_and_is_planned(tmp_path: Path) -> None:
    """The published config.json and shapes stand for a model of 13 GiB, without its bytes."""
    config = dict(PUBLISHED["gpt-oss-20b"])
    del config["torch_dtype"]  # files without it have that of their first floats
    (tmp_path / "config.json").write_text(json.dumps(config))
    width, experts = 2880, 32
    floats = {"model.embed_tokens.weight": [201088, width], "model.norm.weight": [width]}
    floats["lm_head.weight"] = [201088, width]
    codes: dict[str, list[int]] = {}
    for i in range(24):
        at = f"model.layers.{i}."
        for name, rows, k in (("q", 4096, width), ("k", 512, width), ("v", 512, width), ("o", width, 4096)):
            floats |= {f"{at}self_attn.{name}_proj.weight": [rows, k], f"{at}self_attn.{name}_proj.bias": [rows]}
        floats |= {f"{at}self_attn.sinks": [64], f"{at}mlp.router.weight": [experts, width]}
        floats |= {f"{at}mlp.router.bias": [experts]}
        floats |= {f"{at}{norm}.weight": [width] for norm in ("input_layernorm", "post_attention_layernorm")}
        for name, rows in (("gate_up_proj", 2 * width), ("down_proj", width)):
            floats[f"{at}mlp.experts.{name}_bias"] = [experts, rows]
            codes[f"{at}mlp.experts.{name}_blocks"] = [experts, rows, width // 32, 16]
            codes[f"{at}mlp.experts.{name}_scales"] = [experts, rows, width // 32]
    write(tmp_path / "model-00001-of-00002.safetensors", floats, "BF16")
    write(tmp_path / "model-00002-of-00002.safetensors", codes, "U8")

    checkpoint = open_checkpoint(tmp_path)

    of_experts = 24 * experts * 3 * width * width
    rest = sum(int(np.prod(shape)) for shape in floats.values())
    expected = of_experts * (1 / 2 + 1 / 32) + 2 * rest
    assert checkpoint.max_model_len == 131072
    assert expected < checkpoint.packed_bytes < 1.01 * expected
