"""forearm run-batch as a user runs it: whole batches, broken lines, interruptions, a killed engine."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.e2e.served import READY_TIMEOUT_S, free_port, wait_until


def chat(number: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"What is a number like {number}?"}], "max_tokens": 6, **fields}
    return {"custom_id": f"chat-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(number: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": f"A thing of {number}", "max_tokens": 4, "temperature": 0, **fields}
    return {"custom_id": f"completion-{number}", "method": "POST", "url": "/v1/completions", "body": body}


BROKEN: list[tuple[Any, int, str]] = [  # a line, the status of its error, and what that says
    ("{broken", 400, "is not JSON"),
    ([1, 2], 400, "is not a JSON object"),
    ({"method": "POST", "url": "/v1/completions", "body": {}}, 400, "custom_id is missing"),
    ({**completion(1), "url": "/v1/audio/speech"}, 400, "url is"),
    ({**completion(2), "method": "GET"}, 400, "it must be POST"),
    ({**completion(3), "body": None}, 400, "body is missing"),
    (completion(4, stream=True), 400, "leave stream out of the body"),
    (completion(5, temperature=-1), 400, "temperature"),
    (completion(6, prompt="long " * 3000), 400, "maximum context length"),
    (completion(7, model="nobody"), 404, "`nobody` does not exist"),
    (chat(8, messages="no list"), 400, "messages"),
]


def write(path: Path, lines: list[Any]) -> None:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def command(folder: Path, *flags: str) -> list[str]:
    files = ("-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"))
    return [sys.executable, "-m", "forearm", "run-batch", *files, *flags]


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *flags), capture_output=True, text=True, timeout=3 * READY_TIMEOUT_S)


@contextlib.contextmanager
def running(folder: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command(folder, *flags), stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)


def partial(folder: Path) -> list[bytes]:
    """Lines of what is not finished yet."""
    return [line for path in folder.glob("out.jsonl.*.partial") for line in path.read_bytes().splitlines()]


def test_every_line_is_answered_in_its_place_the_broken_ones_with_an_error(tmp_path: Path) -> None:
    good: list[Any] = [chat(i) if i % 2 else completion(i) for i in range(120)]
    lines: list[Any] = []
    for number, line in enumerate(good):
        lines.append(line)
        if number % 10 == 0 and number // 10 < len(BROKEN):
            lines.append(BROKEN[number // 10][0])
    write(tmp_path / "in.jsonl", lines)

    done = run(tmp_path, "--served-model-name", "demo", "--max-inflight", "50")

    assert done.returncode == 1, done.stderr
    first = next(answer for answer in read(tmp_path / "out.jsonl") if answer["error"])["error"]["error"]["message"]
    assert f"11 of 131 lines are errors in {tmp_path / 'out.jsonl'}, the first " in done.stderr
    assert f": {first}" in done.stderr or f"the first {first}" in done.stderr
    answers = read(tmp_path / "out.jsonl")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.jsonl", "out.jsonl"]
    assert len(answers) == len(lines) == 131
    for line, answer in zip(lines, answers, strict=True):
        assert list(answer) == ["id", "custom_id", "response", "error"]
        assert list(answer["response"]) == ["status_code", "request_id", "body"]
        if any(line is broken for broken, _, _ in BROKEN):
            _, status, message = next(entry for entry in BROKEN if entry[0] is line)
            assert (answer["response"]["status_code"], answer["response"]["body"]) == (status, None)
            assert message in answer["error"]["error"]["message"]
        else:
            assert (answer["custom_id"], answer["error"]) == (line["custom_id"], None)
            body = answer["response"]["body"]
            assert body["object"] == ("chat.completion" if "chat" in line["url"] else "text_completion")
            assert body["usage"]["completion_tokens"] <= line["body"]["max_tokens"]
    assert len({answer["id"] for answer in answers}) == 131


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_batch_that_was_stopped_goes_on_where_it_was(tmp_path: Path, how: signal.Signals) -> None:
    lines = [completion(i, max_tokens=4 if i < 30 else 300, ignore_eos=True, seed=1) for i in range(150)]
    write(tmp_path / "in.jsonl", lines)  # the long ones are seconds of work

    with running(tmp_path, "--max-inflight", "4") as process:
        wait_until(lambda: len(partial(tmp_path)) > 20, READY_TIMEOUT_S, (tmp_path / "log").read_text)
        process.send_signal(how)
        assert process.wait(60) == (130 if how == signal.SIGINT else -signal.SIGKILL)
    before = partial(tmp_path)
    assert 20 < len(before) < 150
    assert not (tmp_path / "out.jsonl").exists()
    done = run(tmp_path, "--max-inflight", "64")

    assert done.returncode == 0, done.stderr
    assert "of 150 lines, which an earlier run has answered" in done.stderr
    answers = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert answers[: len(before) - 1] == before[:-1]  # the last one may have been cut
    assert [json.loads(line)["custom_id"] for line in answers] == [f"completion-{i}" for i in range(150)]
    assert all(json.loads(line)["error"] is None for line in answers)


def test_what_an_engine_took_with_it_is_asked_again(tmp_path: Path) -> None:
    lines = [completion(i, max_tokens=4 if i < 20 else 1900, ignore_eos=True) for i in range(50)]
    write(tmp_path / "in.jsonl", lines)  # the long ones are seconds of work

    with running(tmp_path, "--max-inflight", "50") as process:
        wait_until(lambda: len(partial(tmp_path)) > 10, READY_TIMEOUT_S, (tmp_path / "log").read_text)
        children = psutil.Process(process.pid).children(recursive=True)
        next(child for child in children if "forearm.engine.process" in child.cmdline()).kill()
        assert process.wait(3 * READY_TIMEOUT_S) == 0, (tmp_path / "log").read_text()

    answers = read(tmp_path / "out.jsonl")
    assert len(answers) == 50
    assert all(answer["error"] is None for answer in answers)
    assert "engine died" in (tmp_path / "log").read_text()


def test_more_at_a_time_than_the_engine_takes_is_waited_out(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [completion(i, max_tokens=16, ignore_eos=True) for i in range(40)])

    done = run(tmp_path, "--max-num-seqs", "2", "--max-num-queued-reqs", "2", "--max-inflight", "20")

    assert done.returncode == 0, done.stderr
    assert [answer["error"] for answer in read(tmp_path / "out.jsonl")] == [None] * 40


def test_metrics_are_there_meanwhile_and_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [completion(i, max_tokens=4 if i < 4 else 1900, ignore_eos=True) for i in range(60)]
    write(tmp_path / "in.jsonl", lines)  # the long ones are seconds of work
    port = free_port()

    flags = (
        "--enable-metrics",
        "--url",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-inflight",
        "4",
    )
    monkeypatch.setenv("VLLM_API_KEY", "sesame")  # a key that the private server does not ask for
    with running(tmp_path, *flags) as process:
        wait_until(lambda: bool(partial(tmp_path)), READY_TIMEOUT_S, (tmp_path / "log").read_text)
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60)
        models = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=60)
        process.send_signal(signal.SIGTERM)
        process.wait(30)

    assert metrics.status_code == 200
    assert "vllm:generation_tokens_total" in metrics.text
    assert models.status_code == 404


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-inflight", "0"), "--max-inflight 0: it must be at least 1"),
        (("--no-such",), "unknown flag --no-such"),
        (("--model", "/no/such"), "model '/no/such'"),
    ],
)
def test_a_wrong_flag_ends_it_with_its_reason(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    write(tmp_path / "in.jsonl", [completion(1)])

    done = run(tmp_path, *flags)

    assert done.returncode == 78
    assert message in done.stderr


def test_vectors_scores_and_responses_are_asked_for_too(tmp_path: Path) -> None:
    def post(url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": url, "method": "POST", "url": url, "body": body}

    pooled = [
        post("/v1/embeddings", input="What is ice?"),
        post("/score", text_1="ice", text_2=["snow", "fire"]),
        post("/v1/rerank", query="ice", documents=["snow", "fire"]),
    ]
    generated = [post("/v1/responses", input="What is ice?", max_output_tokens=16), pooled[0]]

    write(tmp_path / "in.jsonl", pooled)
    assert run(tmp_path, "--runner", "pooling").returncode == 0
    embedding, scores, ranks = (answer["response"]["body"] for answer in read(tmp_path / "out.jsonl"))
    write(tmp_path / "in.jsonl", generated)
    assert run(tmp_path).returncode == 1
    response, refusal = read(tmp_path / "out.jsonl")

    assert len(embedding["data"][0]["embedding"]) == 256
    assert len(scores["data"]) == len(ranks["results"]) == 2
    assert response["response"]["body"]["output"][0]["content"][0]["text"]
    assert (refusal["response"]["status_code"], refusal["response"]["body"]) == (400, None)


def test_an_empty_batch_is_done_at_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n")

    assert run(tmp_path).returncode == 0
    assert (tmp_path / "out.jsonl").read_text() == ""
