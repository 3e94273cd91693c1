"""A start says how far its quantized weights are from their floats, and warns of a model that loses too much."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.kept_weights import wait_until_kept
from tests.model.stored_codes import gptq
from tests.unit.model.test_formats import quantized
from tests.unit.model.test_weights import random_llama

from forearm.engine.metrics.engine_metrics import Meter
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.rounding_errors import MOST_OF_ONE, RoundingErrors
from forearm.model.checkpoint.weights import load_native
from forearm.model.quantization.quantization import Asked

AS_IT_IS = Asked()


def seen(folder: Path, asked: Asked = AS_IT_IS, cache: str = "") -> RoundingErrors:
    found: list[RoundingErrors] = []
    load_native(
        open_checkpoint(folder, quantization=asked), step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(),
        threads=1, progress=False, weight_cache=cache, rounded=found.append,
    )  # fmt: skip
    wait_until_kept()
    (errors,) = found
    return errors


# Normally distributed weights: a step of absmax / 127 and 3.2 sigma for absmax of some 500 values give 0.0073; fp8's
# steps are 1/8 to 1/16 of a value, over sqrt(12): 0.018 to 0.036; 4 bits in groups of 32: a step of about sigma / 3.7.
@pytest.mark.parametrize(("weights", "least", "most"), [("int8", 0.004, 0.011), ("fp8", 0.018, 0.036),
                                                        ("int4-g32", 0.05, 0.11)])  # fmt: skip
def test_errors_of_normal_weights_are_those_of_the_format(
    weights: str, least: float, most: float, tmp_path: Path
) -> None:
    errors = seen(random_llama(tmp_path, torch.float32), Asked(weights))

    assert errors.measured
    assert any(name.endswith("down") for name in errors.by_matrix)
    own = ".up" if weights == "fp8" else ""  # embedding and head are int8, as are fp8's other matrices
    found = [error for name, error in errors.by_matrix.items() if name.startswith("layers.") and name.endswith(own)]
    assert len(found) >= 2
    assert all(least < error < most for error in found), errors


def test_a_checkpoint_s_expected_error_is_near_the_measured_one(tmp_path: Path) -> None:
    errors = seen(quantized(tmp_path, gptq(4, 32, sym=True, act_order=False)))

    assert not errors.measured
    assert all(0.02 < error < 0.12 for error in errors.by_matrix.values()), errors


def test_a_model_of_floats_has_no_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    assert seen(random_llama(tmp_path, torch.float32)).by_matrix == {}
    assert "rounding error" not in caplog.text


def test_a_matrix_that_a_few_weights_spoil_is_told_before_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = random_llama(tmp_path, torch.float32) / "model.safetensors"
    tensors = load_file(path)
    # One of 16 weights is 15 times larger: half of the 4-bit steps, which follow it, are larger than its neighbours.
    tensors["model.layers.1.self_attn.o_proj.weight"][:, ::16] *= 15
    save_file(tensors, path)

    errors = seen(tmp_path, Asked("int4-fast"))

    assert errors.worst == "layers.1.o"
    told = [line for line in caplog.messages if line.startswith("weights: relative rounding error")]
    assert len(told) == 1
    assert f"{100 * errors.by_matrix['layers.1.o']:.2f} % at worst (layers.1.o), measured" in told[0]


def test_an_error_above_the_bound_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # an earlier test may have set another
    RoundingErrors({"layers.0.o": 0.01, "layers.0.down": MOST_OF_ONE}).log()
    assert not caplog.records

    RoundingErrors({"layers.0.o": 0.01, "layers.0.down": MOST_OF_ONE + 0.01}).log()

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "1 of 2 exceed" in record.getMessage()


@pytest.mark.parametrize(("weights", "warned"), [("int4-fast", True), ("int8", False), ("fp8", False)])
def test_int4_that_no_calibration_text_was_seen_by_is_a_warning_at_each_start(
    weights: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = random_llama(tmp_path, torch.float32)
    for _ in ("written to the cache", "read from it"):
        caplog.clear()
        seen(folder, Asked(weights), str(tmp_path / "cache"))

        told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert any("without calibration" in one and "--quantization int4" in one for one in told) == warned


def test_weights_from_the_cache_have_the_errors_they_were_made_with(tmp_path: Path) -> None:
    folder = random_llama(tmp_path, torch.float32)

    first = seen(folder, Asked("int8"), str(tmp_path / "cache"))

    assert first.by_matrix
    assert len(list((tmp_path / "cache").glob("*.weights"))) == 1
    assert seen(folder, Asked("int8"), str(tmp_path / "cache")) == first


def test_errors_are_metrics() -> None:
    meter = Meter("m", "0", "float32", 8, prefix_caching=True)
    assert 'forearm:weight_rounding_error{engine="0",model_name="m",of="worst"} 0.0' in meter.text()

    meter.rounding(RoundingErrors({"layers.0.o": 0.25, "layers.0.down": 0.75}))

    assert 'forearm:weight_rounding_error{engine="0",model_name="m",of="worst"} 0.75' in meter.text()
    assert 'forearm:weight_rounding_error{engine="0",model_name="m",of="mean"} 0.5' in meter.text()
