"""Table and file of a run, which equal vLLM's to the letter."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from forearm.bench import plot, report, speculation
from forearm.cli import main
from forearm.errors import ConfigError

RESULT: dict[str, Any] = {
    "date": "20261120-120000",
    "backend": "openai",
    "label": None,
    "model_id": "org/model",
    "request_rate": 2.0,
    "max_concurrency": 8,
    "completed": 20,
    "failed": 1,
    "duration": 10.0,
    "total_input_tokens": 1000,
    "total_output_tokens": 400,
    "request_throughput": 2.0,
    "request_goodput": 1.5,
    "output_throughput": 40.0,
    "total_token_throughput": 140.0,
    "max_output_tokens_per_s": 61.0,
    "max_concurrent_requests": 8,
    "mean_ttft_ms": 12.345,
    "median_ttft_ms": 11.0,
    "std_ttft_ms": 1.0,
    "p99_ttft_ms": 30.0,
    "p99.9_ttft_ms": 31.0,
    "mean_tpot_ms": 5.0,
    "median_tpot_ms": 5.0,
    "std_tpot_ms": 0.0,
    "p99_tpot_ms": 5.0,
    "p99.9_tpot_ms": 5.0,
}
TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     20
Failed requests:                         1
Maximum request concurrency:             8
Request rate configured (RPS):           2.00
Benchmark duration (s):                  10.00
Total input tokens:                      1000
Total generated tokens:                  400
Request throughput (req/s):              2.00
Request goodput (req/s):                 1.50
Output token throughput (tok/s):         40.00
Peak output token throughput (tok/s):    61.00
Peak concurrent requests:                8.00
Total token throughput (tok/s):          140.00
---------------Time to First Token----------------
Mean TTFT (ms):                          12.35
Median TTFT (ms):                        11.00
P99 TTFT (ms):                           30.00
P99.9 TTFT (ms):                         31.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          5.00
Median TPOT (ms):                        5.00
P99 TPOT (ms):                           5.00
P99.9 TPOT (ms):                         5.00
=================================================="""


def test_the_table_is_vllms() -> None:
    assert [line.rstrip() for line in report.table(RESULT, [99, 99.9]).splitlines()] == TABLE.splitlines()


@pytest.mark.parametrize(
    ("changes", "rate", "name"),
    [
        ({}, 2.0, "openai-2.0qps-concurrency8-model-20261120-120000.json"),
        ({"label": "mine", "max_concurrency": None}, float("inf"), "mine-infqps-model-20261120-120000.json"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 4.0},
            float("inf"),
            "openai-ramp-up-linear-1qps-4qps-concurrency8-model-20261120-120000.json",
        ),
    ],
)
def test_files_are_named_as_vllm_names_them(changes: dict[str, Any], rate: float, name: str) -> None:
    assert report.file_name({**RESULT, **changes}, rate) == name


def test_results_are_saved_appended_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    report.save({"a": 1}, path, append=False)
    report.save({"a": 2}, path, append=True)

    assert path.read_text() == '{"a": 1}\n{"a": 2}'
    assert report.load(path) == [{"a": 1}, {"a": 2}]
    path.write_text(json.dumps({"a": 3}, indent=4))
    assert report.load(path) == [{"a": 3}]


METRICS = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1e9
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} %d
vllm:num_requests_running{engine="0"} 5
"""


def test_what_speculation_gained_is_the_difference_of_the_counters() -> None:
    before, after = (speculation.counts(METRICS % numbers) for numbers in ((1, 2, 1, 1, 0), (11, 22, 16, 10, 6)))

    assert speculation.gained(before, after) == {
        "spec_decode_acceptance_rate": 75.0,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 10,
        "spec_decode_draft_tokens": 20,
        "spec_decode_accepted_tokens": 15,
        "spec_decode_per_position_acceptance_rates": [0.9, 0.6],
    }
    assert speculation.gained(after, after) == {}
    assert speculation.counts("vllm:num_requests_running 1\n") == {}
    table = report.table({**RESULT, **speculation.gained(before, after)}, [99, 99.9])
    assert "Acceptance rate (%):                     75.00" in table
    assert "  Position 1:                            60.00" in table


def results(label: str, ttfts: list[float]) -> list[dict[str, Any]]:
    return [
        {**RESULT, "label": label, "request_rate": rate, "mean_ttft_ms": ttft, "total_token_throughput": 50.0 * rate}
        for rate, ttft in zip([0.5, 2.0, 1.0], ttfts, strict=True)
    ]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_figure_has_a_line_for_each_label_and_every_rate_beside_its_point() -> None:
    svg = plot.svg(results("ours <1>", [10, 30, 20]) + results("theirs", [20, 60, 40]))

    root = ET.fromstring(svg)
    lines = [line.attrib["points"].split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(line) for line in lines] == [3, 3, 3, 3]  # two labels in two panels
    for line in lines:  # by rate, not as they came
        assert [float(point.split(",")[0]) for point in line] == sorted(float(point.split(",")[0]) for point in line)
    shown = texts(svg)
    assert {"0.5", "1", "2", "ours <1>", "theirs"} <= set(shown)
    assert shown.count("ours <1>") == 1
    assert any("mean TTFT (ms)" in text for text in shown)
    assert any("mean TPOT (ms)" in text for text in shown)


def test_a_point_lies_where_its_axes_say() -> None:
    linear = plot.Axis(0, 10, False, 100, 200)
    logarithmic = plot.Axis(1, 100, True, 100, 200)

    assert linear.at(5) == 150
    assert logarithmic.at(10) == pytest.approx(150)
    assert linear.ticks() == [0, 2, 4, 6, 8, 10]
    assert logarithmic.ticks() == [1, 2, 5, 10, 20, 50, 100]


def test_times_far_apart_get_a_logarithmic_axis() -> None:
    assert {"10", "100", "1000"} <= set(texts(plot.svg(results("a", [5, 5000, 100]))))


def test_plot_reads_files_of_vllm_and_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, result in enumerate(results("a", [1, 2, 3])):
        report.save(result, tmp_path / f"{number}.json", append=False)
    names = [str(path) for path in sorted(tmp_path.glob("*.json"))]

    assert main.main(["bench", "plot", *names, "--out", str(tmp_path / "f.svg")]) == 0
    assert "mean TTFT" in (tmp_path / "f.svg").read_text()
    assert main.main(["bench", "plot", str(tmp_path / "f.svg"), "--out", str(tmp_path / "g.svg")]) == 78
    assert "f.svg" in capsys.readouterr().err


def test_a_result_without_the_metrics_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match="--percentile-metrics"):
        plot.svg([{**RESULT, "mean_ttft_ms": 1.0, "mean_tpot_ms": 1.0}, {"label": "x"}])
