"""Results of bench/'s measurements: ratios, shares, shapes, and the files it writes for the peers."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from bench import compare, table
from bench.counters import parsed
from bench.ggml import rounded
from bench.kernels import kernels
from bench.peers import compressed
from bench.peers.at_once import over_http, waited
from bench.peers.contestants import Missing
from bench.peers.driven import Driven, prefill_s, step_s
from bench.quality.llama_rows import LlamaModel
from bench.shapes import SHAPES, Shape, vocabulary, write_model
from gguf import GGUFWriter
from tests.unit.bench.raw_server import chunked, plain, raw_server

from forearm.bench.load import LoadRun
from forearm.bench.statistics import RequestOutcome
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.shards import Files
from forearm.model.gguf.gguf_codes import decode_rows
from forearm.model.quantization.codes import CodedMatrix
from forearm.text.tokenizer.tokenizer import load_tokenizer

TINY = Shape("qwen2", 600, 64, 96, 2, 4, 2, 1e4, tied=True)


def test_a_ratio_is_the_median_of_the_rounds_and_less_is_better_for_waiting() -> None:
    ours = {"rounds": {"decode_1": [10.0, 30.0, 20.0]}, "start_s": 2.0, "width": 4}
    peer = {"rounds": {"decode_1": [5.0, 10.0, 20.0]}, "start_s": 6.0, "width": 4}

    assert table.ratio(ours, peer, "decode_1") == 2.0
    assert table.ratio(ours, peer, "start_s") == 3.0


def test_the_best_peer_of_the_same_width_is_the_one_that_is_hardest_to_beat() -> None:
    rows = {
        "forearm int4": {"rounds": {"decode_1": [30.0]}, "width": 4},
        "a": {"rounds": {"decode_1": [10.0]}, "width": 4},
        "b": {"rounds": {"decode_1": [20.0]}, "width": 4},
        "c": {"rounds": {"decode_1": [90.0]}, "width": 8},
        "broken": {"failed": "why", "width": 4},
    }

    assert list(table.against_best(rows, 4)) == [("decode_1", "b", 1.5)]


def test_the_table_says_why_a_peer_has_no_figures() -> None:
    rows = {
        "forearm int4": {"rounds": {"decode_1": [30.0]}, "width": 4, "gb_read": 0.5},
        "a": {"failed": "gone", "width": 4},
    }

    text = table.markdown({"s": {"machine": {"read_gb_s": 30.0}, "disturbed": 2, "rows": rows}})

    assert "- a: gone" in text
    assert "| forearm int4 | 30.0 | 0.50 |" in text
    assert "disturbed 2 answers" in text


def test_what_compare_found_has_the_form_of_the_results() -> None:
    rows = {
        "forearm int8": {"rounds": {"decode_1": [30.0, 50.0]}, "width": 8, "start_s": 1.0, "packing_start_s": 4.0},
        "vllm w8a8": {"rounds": {"decode_1": [10.0, 25.0]}, "width": 8, "start_s": 80.0},
        "llama Q8_0": {"failed": "gone", "width": 8},
    }

    found = table.figures_of({"s": {"machine": {"read_gb_s": 30.0}, "rows": rows}})

    assert {(one.peer, one.row, one.quantity): (one.format, one.value, one.ratio) for one in found} == {
        ("", "machine", "read_gb_s"): ("", 30.0, None),
        ("", "decode_1", "tokens_s"): ("int8", 40.0, None),
        ("", "start", "start_s"): ("int8", 1.0, None),
        ("", "start", "packing_start_s"): ("int8", 4.0, None),
        ("vLLM w8a8", "decode_1", "tokens_s"): ("int8", 17.5, 2.5),
        ("vLLM w8a8", "start", "start_s"): ("int8", 80.0, 80.0),
    }
    assert next(one for one in found if one.row == "decode_1").rounds == [30.0, 50.0]


def test_a_peer_is_also_compared_with_forearm_reading_the_same_file() -> None:
    speeds = {"forearm int4": 30.0, "forearm Q4_0": 20.0, "llama Q4_0": 10.0, "openvino int4": 15.0}
    rows = {name: {"rounds": {"decode_1": [speed]}, "width": 4} for name, speed in speeds.items()}

    found = table.figures_of({"s": {"machine": {}, "rows": rows}})

    assert {(one.format, one.peer): one.ratio for one in found} == {
        ("int4", ""): None,
        ("Q4_0", ""): None,
        ("int4", "llama.cpp Q4_0"): 3.0,
        ("Q4_0", "llama.cpp Q4_0"): 2.0,
        ("int4", "OpenVINO int4"): 2.0,
    }


def test_without_forearm_a_peer_is_compared_with_nothing() -> None:
    rows = {"llama Q4_0": {"rounds": {"decode_1": [10.0]}, "width": 4}}

    [one] = table.figures_of({"s": {"machine": {}, "rows": rows}})

    assert (one.format, one.peer, one.ratio) == ("Q4_0", "llama.cpp Q4_0", None)


def test_llama_cpp_s_logits_become_log_probabilities(tmp_path: Path) -> None:
    path, steps = tmp_path / "model.gguf", tmp_path / "llama-steps"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((3, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    steps.write_text(f"""#!{sys.executable}
import struct, sys
print("version", flush=True)
for line in sys.stdin:
    for token in line.split():
        sys.stdout.buffer.write(struct.pack("3f", int(token), 0, 0))
    sys.stdout.flush()
""")
    steps.chmod(0o755)

    model = LlamaModel(steps, path, 1)
    found = [model.log_probabilities(np.array(tokens, np.int32)) for tokens in ([1, 0, 2], [0, 1])]
    model.close()

    assert [len(rows) for rows in found] == [2, 1], "nothing is predicted after the last token"
    assert found[0][0] == pytest.approx(np.log(np.exp([1, 0, 0]) / (np.e + 2)), rel=1e-6)
    assert found[0][1] == pytest.approx(np.log([1 / 3] * 3), rel=1e-6)
    assert found[1] == pytest.approx(found[0][1:])


def test_a_line_of_kernel_bench_is_three_figures() -> None:
    lines = [
        "avx2, 2 threads",
        "  bf16 m=1   n=8960 k=1536    62.0 GB/s     62 GFLOP/s  = 102 % of the limit (61, 467)",
    ]

    found = kernels.figures(lines)

    assert [(one.shape, one.format, one.row) for one in found] == [("8960 x 1536", "bfloat16", "1 row")] * 3
    assert {one.quantity: one.value for one in found} == {"weights_gb_s": 62, "gflops": 62, "share_of_limit": 1.02}


def test_an_answer_that_other_guests_disturbed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([100.0] * compare.FIRST_LOOKS + [100.0, 50.0, 100.0, 95.0])
    monkeypatch.setattr(compare, "limits", lambda _: {"fma_gflops": next(speeds)})
    machine = compare.Machine(Namespace(calm=0.9))
    seeds: list[int] = []

    machine.asked(seeds.append, 7)

    assert seeds == [7, 7 + compare.SEEDS]
    assert machine.disturbed == 0
    assert machine.limits == {"fma_gflops": 100.0}


def test_an_engine_that_answers_no_first_prompt_is_left_out_with_the_reason() -> None:
    class Broken:
        def generate(self, prompts: list[list[int]], tokens: int) -> list[tuple[float, list[int]]]:
            raise Missing(f"no room for {len(prompts[0])} tokens")

    row: dict[str, object] = {}

    touched = compare.touch_memory(cast(Driven, Broken()), row, SHAPES["qwen2.5-0.5b"], Namespace(prefill=[8, 64]))

    assert not touched
    assert row == {"failed": "the first prompt: no room for 64 tokens"}


def test_decode_counts_only_steps_of_all_sequences() -> None:
    steps = [(1.0, [0]), (2.0, [0, 1]), (2.5, [0, 1]), (3.0, [0, 1]), (9.0, [1])]

    assert prefill_s(steps) == 1.0
    assert step_s(steps, 2) == 0.5


def test_requests_at_once_are_means_of_waits_and_tokens_of_all_together() -> None:
    outcomes = [
        RequestOutcome(3, ttft_s=first_s, latency_s=last_s, output_tokens=5)
        for first_s, last_s in ((1.0, 3.0), (2.0, 6.0))
    ]

    assert waited(LoadRun(outcomes, 6.0)) == {"ttft_s": 1.5, "tpot_s": 0.75, "tokens_s": 10 / 6}
    with pytest.raises(Missing, match="it broke"):
        waited(LoadRun([*outcomes, RequestOutcome(3, error="it broke")], 6.0))


def test_counters_that_are_not_supported_are_left_out() -> None:
    assert parsed("<not supported>,,cycles,0,100.00,,\n5432,,instructions:u,1,100.00,,\n") == {"instructions": 5432.0}


@pytest.mark.parametrize(("name", "millions"), [("qwen2.5-0.5b", 494), ("tinyllama-1.1b", 1034), ("llama-2-7b", 6607)])
def test_a_shape_multiplies_the_weights_that_its_model_has(name: str, millions: int) -> None:
    assert SHAPES[name].multiplied / 1e6 == pytest.approx(millions, abs=0.6)


def test_a_written_model_opens_and_its_tokens_are_all_different(tmp_path: Path) -> None:
    write_model(TINY, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    tokenizer = load_tokenizer(tmp_path)

    words, _ = vocabulary(TINY.vocab)
    assert len(set(words)) == TINY.vocab
    assert tokenizer.vocab_size == TINY.vocab
    assert checkpoint.config.hidden == TINY.hidden
    assert tokenizer.decode(tokenizer.encode("forearm's")) == "forearm's"


def test_written_weights_are_of_the_order_of_one_over_the_root_of_columns(tmp_path: Path) -> None:
    write_model(TINY, tmp_path)
    file = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(file[:8], "little")
    entry = json.loads(file[8 : 8 + length])["model.layers.1.mlp.down_proj.weight"]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    bits = np.frombuffer(file[begin:end], np.uint16).astype(np.uint32) << 16

    assert entry["shape"] == [TINY.hidden, TINY.intermediate]
    assert 0.9 < bits.view(np.float32).std() * TINY.intermediate**0.5 < 1.1


@pytest.mark.parametrize(("form", "dtype", "group"), [("w8a8", "int8", 0), ("w4a16", "int4", compressed.GROUP)])
def test_what_is_written_in_codes_is_read_as_such_weights(form: str, dtype: str, group: int, tmp_path: Path) -> None:
    shape = replace(TINY, hidden=256, intermediate=384)
    compressed.write_model(shape, tmp_path, form)

    checkpoint = open_checkpoint(tmp_path)
    matrices = [stored for _, stored in checkpoint.sources if isinstance(stored, CodedMatrix)]
    assert len(matrices) == 7 * shape.layers
    for matrix in matrices:
        codes = matrix.read(Files(), 0, matrix.shape[0])
        scales = np.repeat(codes.scales.astype(np.float64), matrix.shape[1] // codes.scales.shape[1], 1)
        values = codes.codes * scales * matrix.shape[1] ** 0.5
        assert (matrix.format.dtype, matrix.format.group, matrix.format.wide) == (dtype, group, form == "w4a16")
        assert abs(values.mean()) < 0.05
        assert 0.9 < values.std() < 1.1


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q5_K", "Q6_K"])
def test_small_weights_are_rounded_to_ggml_types_as_well_as_large_ones(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((16, 8192), np.float32)

    def error(scale: np.float32) -> float:
        codes = decode_rows(*rounded(values * scale, kind), values.shape[1])
        grouped = codes.codes.reshape(*codes.scales.shape, -1) * codes.scales[:, :, None]
        if codes.offsets is not None:
            grouped += codes.offsets[:, :, None]
        return float(np.linalg.norm(grouped.reshape(values.shape) / scale - values))

    # 2^-9: the scales of K types are below float16's normal numbers, where a step is 0.4 % of them.
    assert error(np.float32(2**-9)) <= 1.02 * error(np.float32(1))


async def test_token_ids_go_over_http_and_failures_are_told() -> None:
    choice = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]\n\n'

    async with raw_server(chunked(choice, choice, usage), plain("503 Busy", b"no")) as raw:
        done = await over_http(raw.address, [[300, 301, 302]], 2)
        refused = await over_http(raw.address, [[300]], 2)

    assert b'"prompt":[300,301,302]' in raw.requests[0][0]
    assert (done.outcomes[0].output_tokens, done.outcomes[0].prompt_tokens) == (2, 3)
    assert waited(done)["tpot_s"] > 0
    with pytest.raises(Missing, match="503"):
        waited(refused)
