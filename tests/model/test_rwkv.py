"""RWKV-7, which transformers has no class of: the executor on every tier against numpy float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run, Stepper, compute
from tests.model.rwkv_models import TINY, convert_rwkv, save_rwkv

from forearm import _native
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.quantization.quantization import Asked

FLOAT32 = Rounding(sums=2.0**-24)
PROMPT = np.random.default_rng(1).integers(0, TINY["vocab_size"], 77).tolist()  # three chunks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rwkv7")
    save_rwkv(made)
    return made


@pytest.mark.parametrize("tier", _native.tier_names())
def test_float32_logits_and_greedy_tokens_are_those_of_float64(tier: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps([asdict(Run(str(folder), PROMPT, 24, "float32"))]))
    environment = os.environ | {"FOREARM_TIER": tier, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tests.model.run_native", str(tmp_path / "job.json"), str(tmp_path / "out.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    out = np.load(tmp_path / "out.npz")

    chosen = out["chosen0"].tolist()
    model = load_weights(folder, dtype="float32")
    exact = logits(*model, [*PROMPT, *chosen])
    allowed = tolerance(*model, [*PROMPT, *chosen], FLOAT32, exact)
    worst = float(np.abs(out["logits0"] - exact).max())
    assert 0 < worst <= allowed, f"off by {worst:.3g}, allowed {allowed:.3g}"
    assert allowed < 1e-4 * np.abs(exact).max(), "a tolerance this wide would pass anything"
    assert chosen == exact[len(PROMPT) - 1 : -1].argmax(axis=-1).tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_weights_give_the_logits_of_float64_sums(dtype: str, folder: Path) -> None:
    ours, _ = compute(Run(str(folder), PROMPT, 0, dtype))

    model = load_weights(folder, dtype="float32")  # weights are rounded, too: as much again
    exact = logits(*model, PROMPT)
    rounding = Rounding(sums=2.0**-24, operands=2.0 ** (-8 if dtype == "bfloat16" else -11))
    worst, allowed = float(np.abs(ours - exact).max()), 2 * tolerance(*model, PROMPT, rounding, exact)
    assert 0 < worst <= allowed, f"off by {worst:.3g}, allowed {allowed:.3g}"
    assert allowed < 0.5 * np.abs(exact).max()


def rounded(w: np.ndarray, steps: int, group: int) -> np.ndarray:
    """Rows to the nearest of 2 * steps + 1 numbers, by the largest of each group."""
    pieces = [w[:, first : first + group] for first in range(0, w.shape[1], group or w.shape[1])]
    units = [np.abs(piece).max(axis=1, keepdims=True) / steps for piece in pieces]
    return np.hstack([np.rint(piece / unit) * unit for piece, unit in zip(pieces, units, strict=True)])


@pytest.mark.parametrize(("quantization", "steps"), [("int8", 127), ("int4", 7)])
def test_quantized_weights_err_as_their_codes_do(quantization: str, steps: int, folder: Path) -> None:
    run = Run(str(folder), PROMPT, 0, "float32", quantization=quantization, activations="float", embeddings="float32")
    ours, _ = compute(run)

    checkpoint = open_checkpoint(folder, dtype="float32", quantization=Asked(quantization, "float32", "float"))
    config, weights = load_weights(folder, dtype="float32")
    formats = {name: one for name, one in checkpoint.formats.items() if one.is_quantized}
    assert {name.rpartition("_")[2] for name in formats if "rwkv" in name} == {"r", "k", "v", "out"}
    coded = {name: rounded(weights[name], steps, one.group) for name, one in formats.items()}
    exact = logits(config, weights, PROMPT)
    error, wanted = (float(np.sqrt(((one - exact) ** 2).mean())) for one in (
        ours, logits(config, weights | coded, PROMPT)
    ))  # fmt: skip
    assert 0.5 * wanted < error < 1.2 * wanted  # 4 bits try several scales


def test_low_rank_matrices_stay_floats(folder: Path) -> None:
    for quantization in ("int8", "int4", "fp8"):
        formats = open_checkpoint(folder, dtype="bfloat16", quantization=Asked(quantization)).formats
        few = {one.dtype for name, one in formats.items() if "rwkv" in name and name.endswith(("_down", "_up"))}
        assert few == {"bfloat16"}
        assert formats["layers.1.rwkv_v"].is_quantized


def test_rows_of_the_last_layer_are_the_same_for_some_of_them_and_alone(folder: Path) -> None:
    """The last layer's feed-forward reads the token before, which may need no logits."""
    run = Run(str(folder), PROMPT[:33], 0, "bfloat16", quantization="int8")
    whole = Stepper(run).step(run.prompt)

    assert np.array_equal(Stepper(run).step(run.prompt, [3, 17, 32]), whole[[3, 17, 32]])
    alone = Stepper(run)
    assert np.array_equal(np.concatenate([alone.step([token]) for token in run.prompt]), whole)


def test_a_converted_file_computes_what_the_folder_does(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = convert_rwkv(folder)
    caplog.clear()

    ours, theirs = (compute(Run(str(place), PROMPT, 0, "float32"))[0] for place in (path, folder))

    assert np.array_equal(ours, theirs)
    assert not caplog.messages


def test_mixes_of_a_layer_may_be_one_tensor(folder: Path, tmp_path: Path) -> None:
    save_rwkv(tmp_path, joint=True)

    ours, theirs = (compute(Run(str(place), PROMPT, 0, "float32"))[0] for place in (tmp_path, folder))

    assert np.array_equal(ours, theirs)


def test_heads_may_end_inside_panels(tmp_path: Path) -> None:
    save_rwkv(tmp_path, hidden_size=100, head_dim=None, num_heads=4, value_dim=100)
    ours, _ = compute(Run(str(tmp_path), PROMPT, 0, "float32"))

    model = load_weights(tmp_path, dtype="float32")
    exact = logits(*model, PROMPT)
    assert np.abs(ours - exact).max() <= tolerance(*model, PROMPT, FLOAT32, exact)
