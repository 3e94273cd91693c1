"""forearm bench as a user runs it: against a real server, and on this machine, with the demo model."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.served import Served, series, serve

# What `vllm bench serve` writes (vllm/benchmarks/serve.py); those of --save-detailed apart.
ABOUT = "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency"
FIGURES = """duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput total_token_throughput latencies queue_times max_output_tokens_per_s max_concurrent_requests rtfx"""
DETAILS = "input_lens output_lens start_times ttfts itls generated_texts errors"
RANDOM = ("--random-input-len", "24", "--random-output-len", "6")


def spread(metric: str, *percentiles: str) -> set[str]:
    return {f"{kind}_{metric}_ms" for kind in ("mean", "median", "std", *(f"p{p}" for p in percentiles))}


def bench(*argv: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forearm", "bench", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("bench"), "--served-model-name", "demo") as running:
        yield running


def profile_of(served: Served, traces: Path, *argv: str) -> list[dict[str, Any]]:
    """The events of the one trace that `bench serve --profile` leaves in this folder."""
    bench("serve", "--base-url", served.url, "--tokenizer", "demo_model", *RANDOM, "--num-prompts", "4",
          "--disable-tqdm", "--profile", *argv)  # fmt: skip
    [file] = traces.glob("forearm-0-*.trace.json")
    events: list[dict[str, Any]] = json.loads(file.read_text())
    return events


def ask(served: Served, folder: Path, *argv: str) -> list[dict[str, Any]]:
    """The results of a run, as saved."""
    file = folder / "result.json"
    bench("serve", "--base-url", served.url, "--tokenizer", "demo_model", *argv, "--append-result",
          "--result-filename", str(file), "--disable-tqdm")  # fmt: skip
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_result_has_vllms_keys_and_counts_what_the_server_did(served: Served, tmp_path: Path) -> None:
    before = series(served.http.get("/metrics").text)
    [result] = ask(served, tmp_path, *RANDOM, "--num-prompts", "12", "--request-rate", "40", "--metadata", "tp=1")
    after = series(served.http.get("/metrics").text)

    latencies = spread("ttft", "99") | spread("tpot", "99") | spread("itl", "99")
    assert set(result) == {*ABOUT.split(), *FIGURES.split(), "tp"} | latencies
    assert (result["completed"], result["failed"], result["model_id"]) == (12, 0, "demo")
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (12 * 24, 12 * 6)
    generated = {name: after[name] - before[name] for name in after if name.startswith("vllm:generation_tokens_total")}
    assert sum(generated.values()) == 12 * 6
    assert result["total_token_throughput"] == pytest.approx(12 * 30 / result["duration"])
    assert 0 < result["mean_ttft_ms"] < 1e3 * result["duration"]
    assert result["tp"] == "1"


def test_details_agree_with_one_another(served: Served, tmp_path: Path) -> None:
    [result] = ask(
        served, tmp_path, *RANDOM, "--num-prompts", "9", "--max-concurrency", "3", "--save-detailed",
        "--percentile-metrics", "ttft,tpot,itl,e2el,client_queue_time", "--metric-percentiles", "50,99.9",
        "--goodput", "ttft:60000", "e2el:60000", "--backend", "openai-chat", "--temperature", "0",
    )  # fmt: skip

    asked = [spread(name, "50", "99.9") for name in ("ttft", "tpot", "itl", "e2el", "client_queue_time")]
    assert set(result) == set().union({*ABOUT.split(), *FIGURES.split(), *DETAILS.split()}, *asked)
    assert result["max_concurrent_requests"] == 3
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["output_lens"] == [6] * 9
    assert min(result["input_lens"]) > 24  # the template's tokens come on top
    for ttft_s, itl_s, latency_s in zip(result["ttfts"], result["itls"], result["latencies"], strict=True):
        assert latency_s == pytest.approx(ttft_s + sum(itl_s))
    assert result["mean_e2el_ms"] == pytest.approx(1e3 * sum(result["latencies"]) / 9)
    assert result["p50_client_queue_time_ms"] > 0


def test_a_sweep_has_a_result_for_each_rate_and_a_figure(served: Served, tmp_path: Path) -> None:
    figure = tmp_path / "f.svg"
    results = ask(
        served, tmp_path, *RANDOM, "--num-prompts", "6", "--request-rate", "10", "20,inf", "--label", "demo",
        "--plot", str(figure),
    )  # fmt: skip

    assert [result["request_rate"] for result in results] == [10, 20, "inf"]
    assert results[0]["duration"] > 6 / 10  # when the last one is sent
    assert results[1]["duration"] > 6 / 20
    shown = [element.text for element in ET.parse(figure).iter("{http://www.w3.org/2000/svg}text")]
    assert {"10", "20", "inf", "demo"} <= set(shown)


def test_a_ramp_says_when_it_passed_each_rate(served: Served, tmp_path: Path) -> None:
    [result] = ask(
        served, tmp_path, *RANDOM, "--num-prompts", "12", "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "10",
        "--ramp-up-end-rps", "30",
    )  # fmt: skip

    assert (result["ramp_up_strategy"], result["ramp_up_start_rps"], result["ramp_up_end_rps"]) == ("linear", 10, 30)
    assert [change["rps"] for change in result["rps_change_events"]] == list(range(10, 31))


@pytest.mark.parametrize("dataset", ["sonnet", "custom", "prefix_repetition"])
def test_other_datasets_are_asked_too(served: Served, tmp_path: Path, dataset: str) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "What is a glacier?"}\n')
    path = ["--dataset-path", str(prompts)] if dataset == "custom" else []
    [result] = ask(served, tmp_path, "--dataset-name", dataset, *path, "--num-prompts", "4", "--output-len", "3",
                   "--prefix-repetition-num-prefixes", "2", "--ignore-eos")  # fmt: skip

    assert (result["completed"], result["total_output_tokens"]) == (4, 12)


def test_requests_that_fail_are_counted_said_and_the_status(served: Served) -> None:
    done = bench("serve", "--base-url", served.url, "--tokenizer", "demo_model", "--model", "nobody", *RANDOM,
                 "--num-prompts", "3", "--disable-tqdm", status=1)  # fmt: skip

    assert "Failed requests:                         3" in done.stdout
    assert "failed: HTTP 404: The model `nobody` does not exist." in done.stderr


def test_a_profile_of_a_server_that_makes_none_is_said(served: Served) -> None:
    done = bench("serve", "--base-url", served.url, "--tokenizer", "demo_model", *RANDOM, "--num-prompts", "1",
                 "--disable-tqdm", "--profile", status=1)  # fmt: skip

    assert "--profile: /start_profile: this server was started without --profiler-config" in done.stderr


def test_a_profile_has_each_step_of_the_run_and_its_parts(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    flags = ("--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir", str(traces))
    with serve(tmp_path, *flags) as served:
        events = profile_of(served, traces)
        served.chat(max_tokens=2)  # no longer recorded
        served.http.post("/start_profile")
        served.chat(max_tokens=2)

    first, second = (json.loads(file.read_text()) for file in sorted(traces.iterdir()))
    assert first == events
    steps = [event for event in events if event["name"] == "step"]
    assert sum(step["args"]["prompt_tokens"] for step in steps) == 4 * 24
    assert sum(step["args"]["tokens"] for step in steps) == 4 * (24 + 5)  # the last of 6 tokens is not computed
    assert {"schedule", "pack", "forward", "sample", "advance"} <= {event["name"] for event in events}
    assert any(event["name"] == "step" for event in second), "a server that stops ends its file"


def test_the_model_and_its_tokenizer_are_the_servers_own_and_a_unix_socket_will_do(tmp_path: Path) -> None:
    uds = str(tmp_path / "socket")
    with serve(tmp_path, "--uds", uds, transport=httpx.HTTPTransport(uds=uds)):
        done = bench("serve", "--base-url", f"unix:{uds}", *RANDOM, "--num-prompts", "2", "--disable-tqdm",
                     "--ready-check-timeout-sec", "10", "--num-warmups", "1")  # fmt: skip

    assert "Successful requests:                     2" in done.stdout


def test_vectors_are_measured_by_their_inputs(tmp_path: Path) -> None:
    with serve(tmp_path, "--runner", "pooling") as pooling:
        [result] = ask(
            pooling, tmp_path, "--backend", "openai-embeddings", "--random-input-len", "12", "--num-prompts", "10",
            "--random-batch-size", "4", "--metric-percentiles", "50",
        )  # fmt: skip

    figures = "duration completed failed total_input_tokens total_input_sequences request_throughput latencies"
    figures += " input_sequence_throughput total_token_throughput queue_times"
    assert set(result) == {*ABOUT.split(), *figures.split()} | spread("e2el", "50")
    assert (result["completed"], result["total_input_sequences"]) == (3, 10)
    assert result["total_input_tokens"] == 120


def test_what_speculation_gains_is_told(tmp_path: Path) -> None:
    ngrams = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
    with serve(tmp_path, "--speculative-config", ngrams) as speculating:
        [result] = ask(speculating, tmp_path, "--dataset-name", "sonnet", "--num-prompts", "3", "--ignore-eos",
                       "--sonnet-output-len", "60", "--temperature", "0")  # fmt: skip

    told = {name.removeprefix("spec_decode_"): value for name, value in result.items() if "spec_decode" in name}
    assert told["num_drafts"] > 0
    assert told["acceptance_rate"] == pytest.approx(100 * told["accepted_tokens"] / told["draft_tokens"])
    assert told["acceptance_length"] == pytest.approx(1 + told["accepted_tokens"] / told["num_drafts"])
    assert sum(told["per_position_acceptance_rates"]) == pytest.approx(told["acceptance_length"] - 1)


def test_throughput_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    done = bench("throughput", "--input-len", "16", "--output-len", "4", "--num-prompts", "10",
                 "--num-warmups", "2", "--output-json", str(file))  # fmt: skip

    result = json.loads(file.read_text())
    assert list(result) == [
        "model_id",
        "elapsed_time",
        "num_requests",
        "total_num_tokens",
        "requests_per_second",
        "tokens_per_second",
    ]
    assert (result["num_requests"], result["total_num_tokens"]) == (10, 200)
    assert result["tokens_per_second"] == pytest.approx(200 / result["elapsed_time"])
    assert "Total num prompt tokens:  160\nTotal num output tokens:  40\n" in done.stdout
    assert f"Throughput: {result['requests_per_second']:.2f} requests/s" in done.stdout


def test_throughput_of_chats_counts_the_templates_tokens(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    bench("throughput", "--backend", "vllm-chat", "--input-len", "16", "--output-len", "4", "--num-prompts", "3",
          "--output-json", str(file))  # fmt: skip

    assert json.loads(file.read_text())["total_num_tokens"] > 3 * (16 + 4)


def test_latency_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "l.json"
    done = bench("latency", "--input-len", "8", "--output-len", "4", "--batch-size", "2", "--num-iters-warmup", "1",
                 "--num-iters", "5", "--output-json", str(file))  # fmt: skip

    result = json.loads(file.read_text())
    assert list(result) == ["model_id", "avg_latency", "std_latency", "latencies", "percentiles"]
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert len(result["latencies"]) == 5
    assert result["percentiles"]["50"] == sorted(result["latencies"])[2]
    assert f"Avg latency: {result['avg_latency']} seconds" in done.stdout


def test_startup_cold_and_warm(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    done = bench("startup", "--num-iters-cold", "1", "--num-iters-warmup", "0", "--num-iters-warm", "2",
                 "--weight-cache", str(tmp_path / "cache"), "--output-json", str(file))  # fmt: skip

    result = json.loads(file.read_text())
    kinds = [f"{phase}_{what}" for phase in ("cold", "warm") for what in ("startup", "compilation")]
    assert set(result) == {
        name for kind in kinds for name in (f"avg_{kind}_time", f"{kind}_times", f"{kind}_percentiles")
    }
    assert (len(result["cold_startup_times"]), len(result["warm_startup_times"])) == (1, 2)
    assert 0 < result["warm_startup_percentiles"]["50"] < 60
    assert result["avg_warm_compilation_time"] == 0
    assert "COLD STARTUP:" in done.stdout


def test_a_model_that_does_not_start_is_said() -> None:
    done = bench("latency", "--max-model-len", "64", "--input-len", "100", status=1)

    assert "forearm bench: " in done.stderr
    assert "Traceback" not in done.stderr
