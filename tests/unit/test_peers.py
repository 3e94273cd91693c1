"""The judgement of another project's test results."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.peers import run
from tests.peers.judge import Result, read_judged, score, whole_files

LIST = """
# a comment line
no such model
  unit/test_text.py::test_words
  unit/test_pictures.py
another form
  unit/test_text.py::test_words[long]
  unit/test_text.py::test_agrees
"""


def test_results_are_passed_judged_or_unexpected() -> None:
    judged = read_judged(LIST)
    results = [
        Result("unit/test_text.py::test_words[short]", "failed"),
        Result("unit/test_text.py::test_words[long]", "failed"),
        Result("unit/test_text.py::test_agrees", "passed"),
        Result("unit/test_text.py::test_other", "failed", "500"),
        Result("unit/test_text.py::test_slow", "skipped"),
        Result("unit/test_text.py::test_words_of_another", "failed"),
    ]

    came = score(results, judged)

    assert [why for _, why in came.judged] == ["no such model", "another form"], "the longest prefix says why"
    assert came.unexpected == [results[3], results[5]], "a prefix ends where a name does"
    assert came.agreeing == ["unit/test_text.py::test_agrees"]
    assert str(came) == "1 of 5 pass, 2 judged differences, 2 unexpected, 1 skipped by themselves"
    assert whole_files(judged) == ["unit/test_pictures.py"]


@pytest.mark.parametrize(("text", "why"), [("  unit/a.py\n", "has no reason"), ("x\n  a\n  a\n", "stands twice")])
def test_a_list_that_says_too_little_or_too_much_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_judged(text)


def test_the_list_of_this_project_is_read() -> None:
    judged = read_judged((run.HERE / "judged.txt").read_text())

    assert all(prefix.startswith(("unit/", "tests/entrypoints/")) for prefix in judged)


@pytest.mark.parametrize(("outcome", "status"), [("passed", 0), ("failed", 1)])
def test_a_difference_that_is_not_judged_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: str, status: int
) -> None:
    found = [Result("t.py::a", "passed"), Result("t.py::b", outcome, "why it is")]
    monkeypatch.setattr(run, "PEERS", {"vllm": (lambda version, work: ("vllm-1", work, ["t.py"]), "plugin")})
    monkeypatch.setattr(run, "run", lambda *_args: found)
    monkeypatch.setattr("sys.argv", ["run", "vllm", "--work", str(tmp_path)])

    assert run.main() == status

    assert ("unexpected: t.py::b: why it is" in capsys.readouterr().out) == bool(status)
