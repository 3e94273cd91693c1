"""`forearm quantize` measures what it has written; a start tells it, and chooses the activations by it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import CASES
from tests.model.made_cases import make
from tests.model.run_native import Run, compute

from forearm.cli.main import main
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.quality_report import TextModel
from forearm.model.quantization.quality import FILE, MOST_RISE, Loss, QualityReport, log_loss, read_report

LOSS = Loss(perplexity_rise=0.02, standard_error=0.001, divergence=0.02, same_best_token=0.9)
REPORT = QualityReport(perplexity=20.0, predictions=100, int8_activations=LOSS, float_activations=LOSS)


def test_the_report_has_the_loss_of_the_model_that_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "codes"

    assert main(["quantize", "-o", str(folder), "--format", "int4", "--quality-tokens", "64"]) == 0

    report = read_report(folder)
    assert report is not None
    assert report.predictions == 5 * 63
    assert 1 < report.perplexity < 10_000
    assert 0.001 < report.float_activations.divergence < 0.3, "int4 rounds, and the demonstration model bears it"
    assert 0.5 < report.float_activations.same_best_token < 1
    assert report.text in (folder / "README.md").read_text()
    assert report.text in capsys.readouterr().out


def test_a_model_without_a_tokenizer_is_written_without_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(next(case for case in CASES if case.name == "qwen2"), tmp_path / "floats")

    assert main(["quantize", str(tmp_path / "floats"), "-o", str(tmp_path / "codes"), "--format", "int8"]) == 0

    assert read_report(tmp_path / "codes") is None
    assert "no quality report" in capsys.readouterr().err
    compute(Run(str(tmp_path / "codes"), [1, 2, 3], 16))


def test_a_text_is_computed_where_layers_keep_states_too(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "lfm2")
    make(case, tmp_path)
    right, _ = compute(Run(str(tmp_path), case.tokens(), 0, max_model_len=64))

    found = TextModel(open_checkpoint(tmp_path, max_model_len=64), 2).logits(case.tokens())

    assert np.array_equal(found, right)


@pytest.mark.parametrize(("int8", "wide"), [(0.029, False), (0.031, True)])  # without int8 activations it is 0.02
def test_auto_leaves_activations_float_where_the_report_says_so(int8: float, wide: bool, tmp_path: Path) -> None:
    folder = tmp_path / "codes"
    assert main(["quantize", "-o", str(folder), "--format", "int4-fast", "--quality-tokens", "0"]) == 0
    assert not (folder / FILE).exists()

    replace(REPORT, int8_activations=replace(LOSS, divergence=int8)).write(folder)

    downs = [format for name, format in open_checkpoint(folder).formats.items() if name.endswith("down")]
    assert downs
    assert all(format.wide == wide for format in downs)


def test_a_start_warns_of_a_report_beyond_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replace(REPORT, int8_activations=replace(LOSS, perplexity_rise=MOST_RISE + 0.01)).write(tmp_path)

    log_loss(tmp_path, wide=True)
    log_loss(tmp_path, wide=False)

    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    assert "raised the perplexity by 11.00 %" in caplog.messages[1]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({"perplexity": 1, "predictions": 1, "int8_activations": 3})]
)
def test_another_file_of_this_name_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)

    with pytest.raises(ConfigError, match="not a report of forearm quantize"):
        read_report(tmp_path)
