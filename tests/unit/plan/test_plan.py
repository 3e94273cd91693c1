"""`forearm plan` as people call it: the demo model, instance types, fleets, the sizing table, and a model on a hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model import stored
from tests.unit.model.header_hub import header_hub
from tests.unit.model.published import PUBLISHED

from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.plan.command import run
from forearm.plan.machines import machines
from forearm.plan.shapes import SHAPES, write_shape
from forearm.plan.work import AttentionWork, work_of

ROOT = Path(__file__).resolve().parents[3]
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def planned(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> dict[str, Any]:
    assert run([*argv, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def llama(tmp_path: Path) -> str:
    """Llama-3.1-8B's sizes: 16 GB of weights that take no disk."""
    return str(write_shape(SHAPES[LLAMA_8B], tmp_path))


def test_a_plan_says_what_is_needed_and_how_fast_it_would_be(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    assert run([llama, "--machine", "c8g.12xlarge", "--max-model-len", "8192", "--price-per-hour", "2.0"]) == 0

    text = capsys.readouterr().out
    assert "on c8g.12xlarge: Graviton4 (Neoverse V2), 48 cores, 96.00 GiB, 1 NUMA node; tier neon_mm" in text
    assert "weights:  14.96 GiB: bfloat16 14.96 GiB" in text
    assert "131072 bytes a token" in text
    assert "engine: 46 threads on CPUs 0-45\nAPI: CPUs 46-47\n-tp 1 -dp 1: one engine" in text
    assert "PREDICTED" in text
    assert "nothing here was measured on Graviton" in text
    assert "$ per 1M out" in text


def test_ranks_that_are_asked_for_make_one_engine_of_all_nodes(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    at = (llama, "--machine", "c8g.48xlarge", "--max-model-len", "8192")
    apart, together = planned(capsys, *at), planned(capsys, *at, "-tp", "2")
    assert run([*at, "-tp", "2"]) == 0

    assert (apart["placement"]["tensor_parallel"], apart["placement"]["data_parallel"]) == (1, 2)
    assert (together["placement"]["tensor_parallel"], together["placement"]["data_parallel"]) == (2, 1)
    text = capsys.readouterr().out
    assert "rank 1: 95 threads on CPUs 96-190, NUMA node 1" in text
    assert "-tp 2 -dp 1: one engine" in text


def test_quantization_and_kv_dtype_change_the_arithmetic(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    at = ("--machine", "c7g.8xlarge", "--max-model-len", "8192")
    plain = planned(capsys, llama, *at)
    small = planned(capsys, llama, *at, "--quantization", "int4", "--kv-cache-dtype", "int8")

    assert plain["memory"]["kv_bytes_per_token"] == 131072
    assert small["memory"]["kv_bytes_per_token"] == 65536 + 2048  # a float32 for each of 2 * 32 * 8 vectors
    assert small["memory"]["weights_bytes"] < 0.4 * plain["memory"]["weights_bytes"]
    assert small["memory"]["contexts"] > plain["memory"]["contexts"]
    assert small["batches"][0]["tpot_s"] < 0.5 * plain["batches"][0]["tpot_s"]


# Worked out by hand: bytes of keys and values a token, and weights that a step of one token is multiplied with.
BY_HAND = {
    "Qwen3-30B-A3B": (48 * 2 * 4 * 128 * 2, 3.04e9),
    "DeepSeek-V2-Lite": (27 * (512 + 64) * 2, 2.45e9),
    "Qwen3.5-35B-A3B, its text part alone": (10 * 2 * 2 * 256 * 2, 2.96e9),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_experts_are_held_and_only_some_are_read(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(write_shape(PUBLISHED[name], tmp_path))
    found = planned(capsys, folder, "--machine", "m8g.12xlarge", "--max-model-len", "8192")["memory"]

    kv_bytes, active = BY_HAND[name]
    assert found["kv_bytes_per_token"] == kv_bytes
    one, eight, many = found["read_bytes_by_tokens"].values()
    assert one == pytest.approx(2 * active, rel=0.02)
    assert 2 * one < eight < 8 * one
    assert eight < many < found["weights_bytes"]
    assert found["weights_bytes"] == pytest.approx(found["stored_bytes"], rel=0.01)


def test_attention_reads_the_chosen_keys_and_the_indexers_all(tmp_path: Path) -> None:
    kinds = {"indexer_types": ["full", "full", "full", "shared"], "mlp_layer_types": [*["dense"] * 3, "sparse"]}
    checkpoint = open_checkpoint(write_shape(PUBLISHED["GLM-5.2"] | kinds | {"num_hidden_layers": 4}, tmp_path))

    heads, indexers = work_of(checkpoint).attention

    assert heads == AttentionWork(2048, 4, 4 * 64 * (512 + 64), 4 * (512 + 64) * 2)
    assert indexers == AttentionWork(0, 3, 3 * 32 * 128 // 2, 3 * 128 * 2)  # the products of queries and keys alone


def test_compressed_attention_reads_a_window_entries_and_their_keys(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 4, "n_routed_experts": 8, "num_hash_layers": 1, "quantization_config": None}
    checkpoint = open_checkpoint(write_shape(PUBLISHED["DeepSeek-V4-Flash"] | sizes, tmp_path))

    every, window, chosen, scored = work_of(checkpoint).attention

    a_value = 2 * (4 * 512 + 8 / 32 * (512 + 128) + 512 / 32) / (4 * 512 + 640 / 4 + 512 / 128)  # one entry a block
    assert (every.window, window.window, chosen.window, scored.window) == (0, 128, 512 * 4, 0)
    assert [one.width for one in (every, window, chosen, scored)] == [
        64 * 512 // 128, 4 * 64 * 512, 64 * 512 // 4, 64 * 128 // 8,
    ]  # fmt: skip
    assert [one.kv_bytes for one in (every, window, chosen, scored)] == [
        round(a_value * kept) for kept in (4, 4 * 512, 128, 32)
    ]


def test_what_does_not_fit_is_said_with_the_arithmetic_and_what_would(
    capsys: pytest.CaptureFixture[str], llama: str
) -> None:
    assert run([llama, "--machine", "c8g.2xlarge", "--max-model-len", "4096"]) == 1

    text = capsys.readouterr().out
    assert "It does not fit: one sequence of 4096 tokens needs 0.50 GiB of KV cache" in text
    assert "It fits with --quantization int8 or int4." in text
    refused = planned(capsys, llama, "--machine", "c8g.large", "--max-model-len", "4096", status=1)
    assert refused["fits"] is False
    assert refused["fitting"] == []


def test_a_model_that_is_not_known_is_no_question_of_memory(tmp_path: Path) -> None:
    folder = write_shape(PUBLISHED["Qwen3-30B-A3B"], tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"qwen3_moe"', '"qwen4_moe"'))

    with pytest.raises(ConfigError, match=r'"qwen4_moe"; .*the nearest name is qwen3_moe'):
        run([str(folder), "--machine", "m8g.12xlarge"])


def test_two_nodes_get_an_engine_each_where_the_model_fits_one(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    found = planned(capsys, llama, "--machine", "c8g.48xlarge", "--max-model-len", "8192")

    assert found["placement"]["data_parallel"] == found["placement"]["engines"] == 2
    assert found["placement"]["threads"] == 94
    assert found["placement"]["cores"] == list(range(94))
    one = planned(capsys, llama, "--machine", "c8g.24xlarge", "--max-model-len", "8192")
    assert found["best_rate"]["requests_s"] == pytest.approx(2 * one["best_rate"]["requests_s"], rel=0.02)


def test_a_draft_model_takes_its_part(capsys: pytest.CaptureFixture[str]) -> None:
    alone = planned(capsys, "--machine", "c8g.large", "--kv-cache-memory-bytes", "1G")
    drafting = json.dumps({"method": "draft_model", "model": str(DEMO_MODEL)})
    both = planned(capsys, "--machine", "c8g.large", "--kv-cache-memory-bytes", "1G", "--speculative-config", drafting)

    assert both["memory"]["kv_bytes_per_token"] == 2 * alone["memory"]["kv_bytes_per_token"]
    # The demo model drafts for itself here.
    weights = alone["memory"]["weights_bytes"]
    assert weights < both["memory"]["draft_bytes"] < weights + 2 * both["memory"]["scratch_bytes"]
    more = both["memory"]["peak_bytes"] - alone["memory"]["peak_bytes"]
    assert more >= both["memory"]["draft_bytes"]
    assert alone["memory"]["draft_bytes"] == 0


def test_what_grammars_need_of_a_vocabulary_is_kept_for_them(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    box = [llama, "--machine", "r8g.2xlarge", "--max-model-len", "8192", "--quantization", "int4"]
    memory = planned(capsys, *box)["memory"]
    assert run(box) == 0

    assert memory["grammar_vocabulary_bytes"] == pytest.approx(128256 * 770, rel=0.15)
    held = sum(memory[name] for name in ("weights_bytes", "scratch_bytes", "grammar_vocabulary_bytes", "kv_bytes"))
    assert held <= memory["available_bytes"]
    assert "grammars: 0.10 GiB for the vocabulary, up to 0.50 GiB" in capsys.readouterr().out


def test_a_model_that_pools_is_planned_by_texts(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--machine", "c8g.4xlarge", "--runner", "pooling", "--input-len", "256")
    assert found["batches"] == []
    assert found["best_rate"]["requests_s"] > 1

    assert run(["--machine", "c8g.4xlarge", "--runner", "pooling"]) == 0
    assert re.search(r"Texts of 512 tokens: one alone .* texts/s", capsys.readouterr().out)


def test_this_machine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--input-len", "100", "--output-len", "20")

    assert found["machine"]["name"] == "this"
    assert found["limits"]["measured"] is True
    assert found["limits"]["read_gb_s"] > 1
    assert found["memory"]["weights_bytes"] == pytest.approx(
        (DEMO_MODEL / "model.safetensors").stat().st_size, rel=0.02
    )


def test_the_rate_asked_for_is_looked_at(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    at = (llama, "--machine", "c8g.24xlarge", "--max-model-len", "8192", "--slo-ttft", "2s", "--slo-tpot", "80ms")

    fits = planned(capsys, *at, "--rate", "0.5")
    assert fits["asked_rate"]["tpot_s"] < 0.08
    assert planned(capsys, *at, "--rate", "500")["asked_rate"] is None
    assert run([*at, "--rate", "500"]) == 0
    assert "500 requests/s are too many" in capsys.readouterr().out


def test_a_fleet_takes_prices_from_a_file_and_none_of_its_own(
    capsys: pytest.CaptureFixture[str], llama: str, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("c8g.12xlarge: 2\nc7g.16xlarge: 3.5\nc8g.xlarge: 0.1\nr8g.4xlarge:\n")
    at = (llama, "--fleet", "--prices", str(prices), "--max-model-len", "8192", "--slo-tpot", "0.2", "--slo-ttft", "5")

    found = planned(capsys, *at, "--rate", "8")

    rows = {row["name"]: row for row in found["fleet"]}
    assert set(rows) == {"c8g.12xlarge", "c7g.16xlarge", "c8g.xlarge"}
    first = found["fleet"][0]
    assert first["usd_an_hour"] == first["hosts"] * first["price"] <= found["fleet"][1]["usd_an_hour"]
    assert first["usd_per_million_output_tokens"] == pytest.approx(first["usd_an_hour"] / (8 * 128 * 3600) * 1e6)
    assert rows["c8g.xlarge"]["hosts"] is None
    assert "does not fit" in rows["c8g.xlarge"]["why"]
    twice = planned(capsys, *at, "--rate", "16")["fleet"][0]
    assert twice["hosts"] >= 2 * first["hosts"] - 1
    assert run([*at, "--rate", "8"]) == 0
    assert "$ per 1M out" in capsys.readouterr().out


def test_a_fleet_without_prices_has_no_dollars(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    found = planned(capsys, llama, "--fleet", "--rate", "1", "--max-model-len", "4096", "--quantization", "int8")

    assert len(found["fleet"]) > 10
    assert all(row["usd_an_hour"] is None for row in found["fleet"])


def test_the_price_template_lists_every_type_and_no_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--price-template"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip(":") for line in lines if not line.startswith("#")] == machines()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--machine", "x1.32xlarge"], "--machine x1.32xlarge: unknown"),
        (["--input-len", "0"], "'0' is not a number of tokens from 1"),
        (["--rate", "-1"], "'-1' is not a number above 0"),
        (["--slo-tpot", "fast"], "'fast' is not a time; write 2s or 500ms"),
        (["--fleet"], "--fleet: give the load with --rate"),
        (["--fleet", "--rate", "1", "--prices", "/no/such/file"], "No such file"),
        (["/no/such/folder"], "there is no such folder"),
        (["--no-such"], "unknown flag --no-such"),
    ],
)
def test_mistakes_are_named(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(argv)


@pytest.mark.parametrize("line", ["c8g.12xlarge: cheap", "c8g.12xlarge: -1", "p5.48xlarge: 3", "- c8g.12xlarge"])
def test_a_price_that_is_none_is_refused(line: str, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(line)

    with pytest.raises(ConfigError, match=r"prices|machine"):
        run(["--fleet", "--rate", "1", "--prices", str(prices)])


def test_the_sizing_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--sizing-table"]) == 0

    assert (ROOT / "docs" / "sizing.md").read_text() == capsys.readouterr().out, "run: forearm plan --sizing-table"


def test_a_model_on_the_hub_is_planned_without_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "vocab_size": 32000}
    stored.llama(folder, "BF16", **sizes, num_attention_heads=16, num_key_value_heads=16)
    own = {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    argv = [sys.executable, "-m", "forearm", "plan", "someone/large", "--machine", "c8g.4xlarge", "--json"]

    with header_hub({"someone/large": folder}) as hub:
        environment = os.environ | own | {"HF_ENDPOINT": hub.address}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["memory"]["stored_bytes"] > 5e9
    assert sum(hub.sent.values()) < 1 << 20
