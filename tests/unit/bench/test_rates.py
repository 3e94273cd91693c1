"""Recorded rate curves, as bench/serving/rates.py makes figures of them and tools/rate_pictures.py draws them."""

from __future__ import annotations

import argparse

from bench.records import figure
from bench.serving.rates import chosen
from tools.rate_pictures import points

from forearm.bench.plot import svg


def test_figures_become_a_line_for_each_engine_with_a_point_for_each_rate() -> None:
    measured = {"ttft_s": 0.5, "tpot_s": 0.02, "tokens_s": 100.0}
    figures = [
        figure("qwen2.5-0.5b", "int8", f"rate_{rate:g}", quantity, value * rate, peer)
        for peer in ("", "llama.cpp Q8_0")
        for rate in (0.5, 2.0)
        for quantity, value in measured.items()
    ]

    found = points(figures)

    assert found[1] == {
        "label": "forearm int8, qwen2.5-0.5b",
        "request_rate": 2.0,
        "mean_ttft_ms": 1000.0,
        "mean_tpot_ms": 40.0,
        "total_token_throughput": 200.0,
    }
    drawn = svg(found)
    assert drawn.count("<polyline") == 4  # two engines in two panels
    assert drawn.count("<circle") == 8
    assert "llama.cpp Q8_0, qwen2.5-0.5b" in drawn


def test_peers_are_asked_in_weights_of_the_same_width() -> None:
    args = argparse.Namespace(format="int8", engines="forearm,llama,vllm")

    assert [one.name for one in chosen(args)] == ["forearm int8", "llama Q8_0", "vllm w8a8"]
