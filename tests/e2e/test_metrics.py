"""/metrics of a real server with two workers: vLLM's names, labels and buckets; what dashboard and alarms ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import prometheus_client.parser
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from tests.e2e.served import Served, serve

ROOT = Path(__file__).resolve().parents[2]
KEY = "key-of-the-tests"
CONTEXT = 2048
TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
LAT = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
TTFT = [
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
]
ITL = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
STEP = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
MANY = [1, 2, 5, 10, 20]

# vLLM 0.33, vllm/v1/metrics/loggers.py and beside it: name, kind, labels besides model_name and engine, with values
# that must be there.
GAUGES: dict[str, dict[str, set[str]]] = {
    "num_requests_running": {},
    "num_requests_waiting": {},
    "num_requests_waiting_by_reason": {"reason": {"capacity", "deferred"}},
    "kv_cache_usage_perc": {},
    "engine_sleep_state": {"sleep_state": {"awake", "weights_offloaded", "discard_all"}},
    "cache_config_info": {"block_size": {"32"}, "cache_dtype": set(), "num_gpu_blocks": set()},
    # Old names.
    "gpu_cache_usage_perc": {},
    "cpu_cache_usage_perc": {},
    "num_requests_swapped": {},
    "gpu_prefix_cache_hit_rate": {},
    "avg_prompt_throughput_toks_per_s": {},
    "avg_generation_throughput_toks_per_s": {},
}
SOURCES = {"local_compute", "local_cache_hit", "external_kv_transfer"}
COUNTERS: dict[str, dict[str, set[str]]] = {
    "prompt_tokens": {},
    "generation_tokens": {},
    "prompt_tokens_by_source": {"source": SOURCES},
    "prompt_tokens_cached": {},
    "prompt_tokens_cached_by_source": {"source": SOURCES - {"local_compute"}},
    "request_success": {"finished_reason": {"stop", "length", "abort", "error", "repetition"}},
    "num_preemptions": {},
    "prefix_cache_queries": {},
    "prefix_cache_hits": {},
    "external_prefix_cache_queries": {},
    "external_prefix_cache_hits": {},
    "mm_cache_queries": {},
    "mm_cache_hits": {},
    "admission_rejections": {"reason": {"Overloaded"}},
    "corrupted_requests": {},
    "watermark_requests": {},
    "spec_decode_num_drafts": {},
    "spec_decode_num_draft_tokens": {},
    "spec_decode_num_accepted_tokens": {},
    "spec_decode_num_accepted_tokens_per_pos": {"position": {"0"}},
    # Old names.
    "gpu_prefix_cache_queries": {},
    "gpu_prefix_cache_hits": {},
}
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": LAT,
    "request_queue_time_seconds": LAT,
    "request_inference_time_seconds": LAT,
    "request_prefill_time_seconds": LAT,
    "request_decode_time_seconds": LAT,
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_max_num_generation_tokens": TOKENS,
    "request_params_max_tokens": TOKENS,
    "request_prefill_kv_computed_tokens": TOKENS,
    "request_params_n": MANY,
    "request_num_preemptions": MANY,
    "iteration_tokens_total": STEP,
    # Old names.
    "time_per_output_token_seconds": ITL,
    "request_params_best_of": MANY,
}
HTTP = {"http_requests": "counter", "http_request_size_bytes": "summary", "http_response_size_bytes": "summary",
        "http_request_duration_seconds": "histogram", "http_request_duration_highr_seconds": "histogram",
        "process_resident_memory_bytes": "gauge", "process_cpu_seconds": "counter",
        "python_gc_collections": "counter"}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two workers, and keys of which one has used up its limit."""
    folder = tmp_path_factory.mktemp("metrics")
    keys = [{"name": "tests", "key": KEY}, {"name": "poor", "key": "poor-mans-key", "requests_per_minute": 1}]
    (folder / "keys.json").write_text(json.dumps(keys))
    flags = ("--api-server-count", "2", "--served-model-name", "demo", "--api-keys-file", str(folder / "keys.json"))
    with serve(folder, *flags, key=KEY) as running:
        running.chat(max_tokens=20, ignore_eos=True, n=2)
        for _ in range(2):
            poor = {"Authorization": "Bearer poor-mans-key"}
            httpx.post(
                f"{running.url}/v1/completions", json={"prompt": "ice", "max_tokens": 1}, headers=poor, timeout=60
            )
        yield running


@pytest.fixture(scope="module")
def families(served: Served) -> dict[str, Metric]:
    parsed = prometheus_client.parser.text_string_to_metric_families(served.http.get("/metrics").text)
    return {family.name: family for family in parsed}


@pytest.mark.parametrize(("name", "labels"), [*GAUGES.items(), *COUNTERS.items()])
def test_a_gauge_or_counter_of_vllm_is_there(
    families: dict[str, Metric], name: str, labels: dict[str, set[str]]
) -> None:
    family = families[f"vllm:{name}"]

    assert family.type == ("gauge" if name in GAUGES else "counter")
    assert family.samples
    for sample in family.samples:
        assert sample.name == f"vllm:{name}" + ("_total" if name in COUNTERS else "")
        assert (sample.labels["model_name"], sample.labels["engine"]) == ("demo", "0")
    for label, wanted in labels.items():
        assert wanted <= {sample.labels[label] for sample in family.samples}


@pytest.mark.parametrize(("name", "bounds"), HISTOGRAMS.items())
def test_a_histogram_of_vllm_is_there_with_its_buckets(
    families: dict[str, Metric], name: str, bounds: list[float]
) -> None:
    family = families[f"vllm:{name}"]

    assert family.type == "histogram"
    found = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
    assert found == [*bounds, float("inf")]
    [count] = [s.value for s in family.samples if s.name.endswith("_count")]
    assert count > 0


@pytest.mark.parametrize(("name", "kind"), HTTP.items())
def test_https_numbers_and_the_process_are_there(families: dict[str, Metric], name: str, kind: str) -> None:
    assert families[name].type == kind


def test_tool_parsers_are_counted_from_zero(families: dict[str, Metric]) -> None:
    samples = families["vllm:tool_call_parser_invocations"].samples

    assert {(s.labels["mode"], s.labels["outcome"]) for s in samples} == {
        (mode, outcome) for mode in ("streaming", "non_streaming") for outcome in ("tool_call", "no_tool_call")
    }
    assert {s.labels["model_name"] for s in samples} == {"demo"}


def test_the_engine_says_nothing_that_is_on_no_list(families: dict[str, Metric]) -> None:
    known = {f"vllm:{name}" for name in (*GAUGES, *COUNTERS, *HISTOGRAMS, "tool_call_parser_invocations")}

    assert {name for name in families if name.startswith("vllm:")} == known


def test_old_names_say_what_the_new_ones_say(families: dict[str, Metric]) -> None:
    for old, new in (
        ("gpu_cache_usage_perc", "kv_cache_usage_perc"),
        ("time_per_output_token_seconds", "inter_token_latency_seconds"),
        ("gpu_prefix_cache_queries", "prefix_cache_queries"),
        ("request_params_best_of", "request_params_n"),
    ):
        values = [[(s.labels, s.value) for s in families[f"vllm:{name}"].samples] for name in (old, new)]
        assert values[0] == values[1]


def test_a_hundred_scrapes_of_two_workers_never_fall(served: Served) -> None:
    before: dict[str, float] = {}
    for number in range(100):
        if number % 10 == 0:
            served.chat(max_tokens=2)
        parsed = prometheus_client.parser.text_string_to_metric_families(served.http.get("/metrics").text)
        now = {
            f"{s.name}{sorted(s.labels.items())}": s.value
            for family in parsed
            if family.type in ("counter", "histogram", "summary")
            for s in family.samples
        }
        assert before.keys() <= now.keys()
        assert {name: (before[name], now[name]) for name in before if now[name] < before[name]} == {}
        before = now

    assert len(before) > 300


def names_in(queries: str) -> set[str]:
    """The metrics that PromQL asks for."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|\b(by|on|without) ?\([^)]*\)", " ", queries)
    return set(re.findall(r"(?<![\w:])(?:vllm:|forearm:|http_|process_)\w+", bare))


def test_the_dashboard_and_the_alarms_ask_for_what_is_there(served: Served) -> None:
    there = {
        line.split("{")[0].split(" ")[0] for line in served.http.get("/metrics").text.splitlines() if line[0] != "#"
    }
    dashboard = json.loads((ROOT / "docs/grafana/forearm.json").read_text())
    alarms = yaml.safe_load((ROOT / "docs/grafana/alarms.yml").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = [rule["expr"] for group in alarms["groups"] for rule in group["rules"]]
    assert len(queries) > 25

    asked = {name for query in (*queries, *rules) for name in names_in(query)}

    assert len(asked) > 25
    assert asked - there == set()
    assert all(names_in(query) for query in queries)


def test_the_figures_go_up_as_work_is_done(served: Served) -> None:
    def value(name: str) -> float:
        lines = served.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_by_source_total", "vllm:gpu_cache", "vllm:avg_gen")
    before = [value(name) for name in names]
    prompt = served.chat(max_tokens=30, ignore_eos=True).json()["usage"]["prompt_tokens"]
    after = [value(name) for name in names]

    assert after[0] - before[0] == 30
    assert after[1] - before[1] == prompt
    assert value('vllm:request_success_total{engine="0",finished_reason="length"') > 0
    assert after[3] > 0


def test_the_kv_cache_is_as_large_as_was_asked_for_and_not_what_sequences_fill(tmp_path: Path) -> None:
    with serve(tmp_path, "--max-num-seqs", "2", env={"VLLM_CPU_KVCACHE_SPACE": "0.25"}) as served:
        text = served.http.get("/metrics").text

        assert f'num_gpu_blocks="{(1 << 28) // (32 * 3072)}"' in text
        assert "KV cache 0.25 GiB of bfloat16 in 2730 blocks" in served.log.read_text()
