"""Files of measured figures: what is added is read again, and the same run takes the place of its earlier self."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.records import Run, figure, line_of, read, record, run_of

DECODE = figure("tiny", "int8", "decode_1", "tokens_s", [10.0, 30.0, 20.0])


def test_a_figure_is_the_median_of_its_rounds() -> None:
    assert (DECODE.value, DECODE.unit, DECODE.rounds) == (20.0, "tokens/s", [10.0, 30.0, 20.0])
    assert figure("tiny", "int8", "decode_1", "share_of_read", 1 / 3).value == 0.33333


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "compare" / "machine.json"
    beside = figure("tiny", "int8", "decode_1", "tokens_s", 5.0, "llama.cpp Q8_0", 4.0)

    record(path, Run("python a.py", "2026-01-01", "abc", "scalar", 2, [DECODE, beside], {"llama.cpp": "1"}, ["Busy."]))
    record(path, Run("python b.py", "2026-01-01", "abc", "scalar", 2, [DECODE]))
    record(path, Run("python a.py", "2026-01-01", "abc", "scalar", 1, [beside]))

    results = read(path)
    assert [(run.command, run.threads, run.figures) for run in results.runs] == [
        ("python b.py", 2, [DECODE]),
        ("python a.py", 1, [beside]),
    ]
    assert results.machine.endswith("cores")
    assert len(path.read_text().splitlines()) == 11  # one figure per line


def test_a_run_has_its_command_date_and_commit() -> None:
    run = run_of([DECODE], threads=2, tier="scalar")

    assert run.command.startswith("python ")
    assert len(run.date) == len("2026-01-01")
    assert len(run.commit) >= 7


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"machine": "x", "runs": [{"command": "y"}]}')

    with pytest.raises(msgspec.ValidationError, match="date"):
        read(tmp_path / "x.json")


def test_a_terminal_shows_the_unit_and_the_peer() -> None:
    assert line_of(DECODE) == "tiny int8 decode_1: speed 20 tokens/s"
    share = figure("tiny", "int4", "decode_1", "share_of_read", 0.875, "vLLM W4A16", 2.0)
    assert line_of(share) == "tiny int4 decode_1 vLLM W4A16: of the bandwidth 87.5 % (2.00x)"
