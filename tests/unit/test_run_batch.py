"""The lines and files of a batch."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from forearm.cli import run_batch_files
from forearm.cli.run_batch import MOST_TRIES, ask
from forearm.cli.run_batch_files import BatchOutput, check_apart, local_input, shown, surveyed
from forearm.cli.run_batch_lines import BatchRequest, NoRequest, answered, failed, lines, parsed, reason, refused
from forearm.errors import ConfigError, ForearmError

MOST = 1000
GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def encoded(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_lines_are_numbered_as_editors_number_them(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_bytes(b"one\r\n\n  \n" + b"x" * 50 + b"\nlast")

    assert list(lines(path, 10)) == [(1, b"one"), (4, b"x" * 11), (5, b"last")]


@pytest.mark.parametrize("size", [9, 10, 11, 12, 30, 3_000_000])
def test_a_line_of_any_length_leaves_the_next_one_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "i"
    path.write_bytes(b"x" * size + b"\nnext\n")

    first, second = lines(path, 10)

    assert first == (1, b"x" * min(size, 11))
    assert second == (2, b"next")


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/score", "/v2/rerank"])
def test_a_request_is_read(url: str) -> None:
    assert parsed(encoded(url=url), 1, MOST) == BatchRequest("a", url, b'{"prompt":"x"}')


@pytest.mark.parametrize(
    ("line", "param", "custom_id", "message"),
    [
        (b"{", None, None, "line 7 is not JSON"),
        (b"\xff\xfe", None, None, "line 7 is not JSON"),
        (b"[" * 900, None, None, "line 7 is not JSON"),
        (b"[1]", None, None, "line 7 is not a JSON object"),
        (b"x" * 2000, None, None, "line 7 is longer than 1000 bytes"),
        (encoded(custom_id=3), "custom_id", None, "custom_id is 3; it must be a string"),
        (encoded(custom_id=None), "custom_id", None, "custom_id is missing"),
        (encoded(method="GET"), "method", "a", 'method is "GET"; it must be POST'),
        (encoded(url="/v1/audio/speech"), "url", "a", 'url is "/v1/audio/speech"; there are /v1/chat/completions'),
        (encoded(url="http://evil/score"), "url", "a", "url is"),
        (encoded(url=None), "url", "a", "url is missing"),
        (encoded(body=[1]), "body", "a", "body is [1]; it must be an object"),
        (encoded(body={"stream": True}), "stream", "a", "leave stream out of the body"),
        (encoded(body={"background": True}), "background", "a", "leave background out of the body"),
    ],
)
def test_a_line_that_is_no_request_becomes_an_error_that_names_it(
    line: bytes, param: str | None, custom_id: str | None, message: str
) -> None:
    with pytest.raises(NoRequest) as error:
        parsed(line, 7, MOST)

    shown = json.loads(refused(error.value))
    assert (shown["custom_id"], shown["response"]["status_code"], shown["response"]["body"]) == (custom_id, 400, None)
    assert message in shown["error"]["error"]["message"]
    assert (shown["error"]["error"]["param"], shown["error"]["error"]["code"]) == (param, 400)


def test_an_answer_has_vllms_keys_and_the_servers_own_body() -> None:
    line = answered("a", 200, "r-1", b'{"number": 1.10, "text": "two\\nlines"}\n')

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b'"number": 1.10' in line  # as the server sent it
    shown = json.loads(line)
    assert list(shown) == ["id", "custom_id", "response", "error"]
    assert shown["response"] == {
        "status_code": 200,
        "request_id": "r-1",
        "body": {"number": 1.1, "text": "two\nlines"},
    }
    assert shown["error"] is None


def test_a_refusal_is_in_error_and_what_is_no_json_is_text() -> None:
    refusal = json.loads(answered("a", 404, "r", b'{"error": {"code": 404}}'))
    broken = json.loads(answered("a", 502, "r", b"<html>\xff"))

    assert (refusal["response"]["body"], refusal["error"]) == (None, {"error": {"code": 404}})
    assert broken["error"] == "<html>\ufffd"


def test_the_reason_of_an_error_has_its_custom_id() -> None:
    refusal = b'{"error": {"message": "The model `x` does not exist.", "code": 404}}'

    assert reason(answered("a", 404, "r", refusal)) == "a: The model `x` does not exist."
    assert reason(answered("a", 502, "r", b"<html>")) == "a: <html>"
    assert reason(refused(NoRequest("line 3 is not JSON"))) == "line 3 is not JSON"


def test_the_byte_order_mark_of_windows_tools_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\xef\xbb\xbf{}\n')

    assert list(lines(tmp_path / "in", 100)) == [(1, b'{"a": 1}'), (2, b"\xef\xbb\xbf{}")]


def test_lines_are_written_in_the_order_of_the_input(tmp_path: Path) -> None:
    output = BatchOutput(str(tmp_path / "o.jsonl"), "d", None)
    for number in (2, 0, 3, 1):
        output.put(number, b"%d\n" % number)
    assert not (tmp_path / "o.jsonl").exists()

    output.publish()

    assert (tmp_path / "o.jsonl").read_bytes() == b"0\n1\n2\n3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["o.jsonl"]


def test_what_was_stopped_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    first = BatchOutput(str(tmp_path / "o"), "d", None)
    first.put(0, b"0\n")
    first.put(2, b"2\n")  # Retry-After of 1 s, then a second attempt
    first.close()
    with next(tmp_path.glob("o.d.partial")).open("ab") as file:
        file.write(b'{"half')

    again, other = BatchOutput(str(tmp_path / "o"), "d", None), BatchOutput(str(tmp_path / "o"), "other", None)
    assert (again.written, other.written) == (1, 0)
    again.put(1, b"1\n")
    again.publish()
    other.close()

    assert (tmp_path / "o").read_bytes() == b"0\n1\n"


def test_another_input_or_other_settings_do_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_bytes(b"a\n\nb\n")
    count, digest = surveyed(path, MOST, "settings")
    path.write_bytes(b"a\nb")

    assert count == 2
    assert surveyed(path, MOST, "settings") == (2, digest)
    assert surveyed(path, MOST, "others")[1] != digest
    path.write_bytes(b"a\nc")
    assert surveyed(path, MOST, "settings")[1] != digest


class Store(ThreadingHTTPServer):
    """Keeps what is PUT, after refusing the first `refusals` times."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Stored)
        self.refusals = 0
        self.content = b""

    @property
    def url(self) -> str:
        return f"http://user:secret@127.0.0.1:{self.server_address[1]}/o.jsonl?signature=secret"


class Stored(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        self.answer(200 if self.server.content else 404, self.server.content)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.refusals -= 1
        if self.server.refusals < 0:
            self.server.content = content
        self.answer(200 if self.server.refusals < 0 else 503, b"")

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_output_goes_to_a_url_with_more_tries(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_batch_files, "PAUSE_S", 0.0)
    store.refusals = 2
    output = BatchOutput(store.url, "d", str(tmp_path))
    output.put(0, b"0\n")
    output.publish()

    assert store.content == b"0\n"
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_fails_keeps_the_answers_and_no_secret_is_said(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_batch_files, "PAUSE_S", 0.0)
    store.refusals = 99
    output = BatchOutput(store.url, "d", str(tmp_path))
    output.put(0, b"0\n")

    with pytest.raises(ForearmError, match=r"HTTP 503; the answers are in .*o\.jsonl\.d\.partial") as error:
        output.publish()

    assert "secret" not in str(error.value)
    again = BatchOutput(store.url, "d", str(tmp_path))
    again.close()
    assert again.written == 1


def test_input_comes_from_a_url(store: Store, tmp_path: Path) -> None:
    store.content = b"a\nb\n"
    with local_input(store.url, str(tmp_path)) as path:
        assert path.read_bytes() == b"a\nb\n"
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_is_not_there_is_said(store: Store) -> None:
    for name, message in (("/no/such", "there is no such file"), (store.url, "HTTP 404")):
        with pytest.raises(ConfigError, match=message) as error, local_input(name, None):
            pass
        assert "secret" not in str(error.value)
    assert shown(store.url) == "http://127.0.0.1/o.jsonl"


def test_two_runs_do_not_write_the_same(tmp_path: Path) -> None:
    first = BatchOutput(str(tmp_path / "o"), "d", None)
    with pytest.raises(ConfigError, match="another run-batch writes it"):
        BatchOutput(str(tmp_path / "o"), "d", None)
    first.close()
    BatchOutput(str(tmp_path / "o"), "d", None).close()


def test_answers_never_replace_requests(tmp_path: Path) -> None:
    for output in (tmp_path / "i", tmp_path / "x" / ".." / "i", tmp_path):
        with pytest.raises(ConfigError, match="--output-file"):
            check_apart(str(tmp_path / "i"), str(output))
    check_apart(str(tmp_path / "i"), str(tmp_path / "o"))


async def test_refusals_while_the_next_engine_loads_are_no_deaths() -> None:
    loading, asked = iter(range(2 * MOST_TRIES)), list[bool]()

    def server(request: httpx.Request) -> httpx.Response:
        """The engine dies with the first request; the next one is there after some looks at /readyz."""
        if request.url.path == "/readyz":
            return httpx.Response(200 if next(loading, None) is None else 503)
        ready = next(loading, None) is None
        asked.append(ready)
        return httpx.Response(200, json={"id": "a"}) if ready else httpx.Response(503, headers={"retry-after": "0"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://forearm") as client:
        answer = json.loads(await ask(client, BatchRequest("a", "/v1/completions", b"{}")))

    assert (answer["error"], asked) == (None, [False, True])


def test_an_output_that_cannot_be_written_is_said() -> None:
    with pytest.raises(ConfigError, match="--output-file /proc/no/o"):
        BatchOutput("/proc/no/o", "d", None)


@pytest.mark.parametrize("name", ["pipe", "/dev/null", "/dev/stdout"])
def test_a_device_is_no_output(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match="would replace this device or pipe; name a file"):
        check_apart("in.jsonl", str(tmp_path / name))


def test_a_full_disk_is_told_with_the_remedy_and_the_next_run_goes_on(tmp_path: Path) -> None:
    good, bad = answered("x", 200, "id", b"{}"), failed("y", 503, "ServiceUnavailableError", "gone")
    output = BatchOutput(str(tmp_path / "out.jsonl"), "digest", None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) + len(bad) + 10, hard))
    try:
        output.put(0, good)
        output.put(1, bad)
        with pytest.raises(ForearmError, match=r"File too large; make room: the same command resumes"):
            output.put(2, good)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)

    again = BatchOutput(str(tmp_path / "out.jsonl"), "digest", None)
    assert (again.written, again.failed) == (2, 1)
    again.close()
