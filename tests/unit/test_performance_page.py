"""The performance page's choice among the figures of several runs."""

from __future__ import annotations

from pathlib import Path

from bench.records import Figure, Run, figure, record
from tools.measured import Measured
from tools.performance_page import SHAPE, llama_table, peer_rows, pivot

COLUMN = ("decode_1", "tokens_s")


def decode(rounds: list[float], peer: str = "", ratio: float | None = None) -> Figure:
    return figure("qwen2.5-0.5b", "int8", *COLUMN, rounds, peer, ratio)


def measured(folder: Path, *runs: list[Figure]) -> Measured:
    for number, figures in enumerate(runs):
        record(folder / "compare" / "machine.json", Run(str(number), "2026-01-01", "abc", "scalar", 2, figures))
    return Measured(folder)


def test_the_run_with_the_most_rounds_counts_and_of_those_the_latest(tmp_path: Path) -> None:
    found = measured(tmp_path, [decode([1.0, 2.0])], [decode([5.0, 6.0])], [decode([9.0])])

    best = found.find("machine", "qwen2.5-0.5b", "int8", COLUMN)

    assert best is not None
    assert best.rounds == [5.0, 6.0]


def test_of_runs_with_three_rounds_or_more_the_latest_counts(tmp_path: Path) -> None:
    found = measured(tmp_path, [decode([1.0] * 5)], [decode([7.0] * 3)], [decode([9.0] * 2)])

    best = found.find("machine", "qwen2.5-0.5b", "int8", COLUMN)

    assert best is not None
    assert best.rounds == [7.0] * 3


def test_the_ratio_to_an_engine_is_that_of_its_format_that_is_hardest_to_beat(tmp_path: Path) -> None:
    peers = [decode([1.0], "llama.cpp BF16", 3.0), decode([2.0], "llama.cpp F16", 1.5), decode([3.0], "vLLM W8A8", 1.0)]
    found = measured(tmp_path, [decode([3.0]), *peers])

    assert found.hardest("machine", "qwen2.5-0.5b", "int8", COLUMN, "llama.cpp") == 1.5
    assert found.hardest("machine", "qwen2.5-0.5b", "int8", COLUMN, "OpenVINO") is None


def test_forearm_s_line_has_speeds_and_a_peer_s_has_ratios(tmp_path: Path) -> None:
    found = measured(tmp_path, [decode([300.0]), decode([100.0], "vLLM W8A8", 3.0)])

    ours, peer = peer_rows(found, "machine", "qwen2.5-0.5b", "int8")

    assert ours[1:3] == ["**forearm int8**", "–"]
    assert (ours[5], peer[1], peer[5]) == ("300", "vLLM W8A8", "3.00x")


def test_a_row_beside_llama_cpp_has_what_rounding_costs_both_and_one_is_of_the_same_file(tmp_path: Path) -> None:
    pairs = [("int8", "", 4.0), ("int8", "llama.cpp Q8_0", 1.0), ("Q8_0", "", 3.0), ("Q8_0", "llama.cpp Q8_0", 1.0)]
    speeds = [figure(SHAPE, own, *COLUMN, value, peer, 2.0 if peer else None) for own, peer, value in pairs]
    losses = {("int8", ""): 0.001, ("Q8_0", ""): 0.004, ("Q8_0", "llama.cpp Q8_0"): 0.005}
    quality = [
        figure("small", own, "9 predictions", quantity, value, peer)
        for (own, peer), value in losses.items()
        for quantity in ("perplexity_rise", "divergence")
    ]
    record(tmp_path / "quality" / "machine.json", Run("", "2026-01-01", "abc", "scalar", 2, quality))

    lines = llama_table(measured(tmp_path, speeds)).splitlines()[2:]

    assert [(cells[2], cells[-2]) for cells in ([c.strip() for c in line.split("|")] for line in lines)] == [
        ("int8 / Q8_0", "+0.1 %, 0.001 / +0.5 %, 0.005"),
        ("the same file / Q8_0", "+0.4 %, 0.004 / +0.5 %, 0.005"),
    ]


def test_figures_of_one_quantity_are_a_line_a_format() -> None:
    errors = [figure("tiny", "int8", kind, "layer_error", 0.5) for kind in ("normal", "long_tails")]

    assert pivot(errors).splitlines()[::2] == [
        "| Weights | tiny, normal | tiny, long tails |",
        "| int8 | 50 % | 50 % |",
    ]
