"""Hostile HTTP: every endpoint, bytes that are no HTTP, bombs; the same workers and engine answer afterwards."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.e2e.served import Served, serve, wait_until

KEY, CANARY = "canary-key-of-this-test", "canary-of-the-environment"
CASES_A_PATH = 60
WORDS = (
    "",
    "x",
    "user",
    "auto",
    "text",
    "json_schema",
    "demo_model",
    "\x00",
    "🙂",
    "../../etc/passwd",
    "{{ 7*7 }}",
    "a" * 3000,
)
KEYS = ("model", "messages", "prompt", "input", "role", "content", "type", "tools", "stream", "tokens", "text", "id")
RULES = "start: r0\n" + "".join(f"r{i}:r{i + 1}\n" for i in range(4500)) + 'r4500:"a"'
LINKS = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(5000)}
REFERENCES = {"$ref": "#/$defs/a0", "$defs": {**LINKS, "a5000": {"type": "string"}}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    env = {"AWS_SECRET_ACCESS_KEY": CANARY, "HF_TOKEN": CANARY}
    with serve(tmp_path_factory.mktemp("hostile"), "--api-key", KEY, key=KEY, env=env) as running:
        before = (running.engine().pid, {worker.pid for worker in running.workers()})
        yield running
        wait_until(lambda: running.running() == 0, 30)
        assert running.chat(max_tokens=3).status_code == 200
        assert (running.engine().pid, {worker.pid for worker in running.workers()}) == before
        assert KEY not in running.log.read_text()
        assert CANARY not in running.log.read_text()


def value(dice: random.Random, depth: int = 3) -> Any:
    """JSON at random."""
    kind = dice.randrange(7 if depth else 4)
    if kind < 4:
        return (dice.choice(WORDS), dice.choice((0, -1, 3, 1 << 70, 0.5, -1e308)), dice.choice((None, True)), 1)[kind]
    if kind == 4:
        return [value(dice, depth - 1) for _ in range(dice.randrange(4))]
    return {dice.choice(KEYS): value(dice, depth - 1) for _ in range(dice.randrange(5))}


def fields(dice: random.Random) -> dict[str, Any]:
    """An object with names that endpoints know."""
    return {name: value(dice) for name in dice.sample(KEYS[1:], 4)}


def check_refusal(reply: httpx.Response) -> None:
    assert reply.status_code < 500, (reply.request.content[:500], reply.text)
    assert "Traceback" not in reply.text
    assert 'File "' not in reply.text
    assert KEY not in reply.text
    assert CANARY not in reply.text


def test_the_openapi_document_refers_to_nothing_that_is_not_there(served: Served) -> None:
    document = served.http.get("/openapi.json").json()

    for reference in set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document))):
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["messages"]["items"]["properties"]["role"]["type"] == "string"


def test_any_json_at_every_endpoint(served: Served) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    posts = sorted(path for path, of_path in paths.items() if "post" in of_path)
    assert "/v1/chat/completions" in posts
    dice = random.Random(3)
    asked = [
        (path.replace("{response_id}", "resp_x"), json.dumps(value(dice, 4) if i % 2 else fields(dice)))
        for path in posts
        for i in range(CASES_A_PATH)
    ]

    def ask(one: tuple[str, str]) -> httpx.Response:
        return served.http.post(one[0], content=one[1], headers={"Content-Type": "application/json"})

    with ThreadPoolExecutor(4) as pool:
        for reply in pool.map(ask, asked):
            check_refusal(reply)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": REFERENCES}}},
        {"structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}b"}},
        {"structured_outputs": {"grammar": RULES}},
    ],
    ids=["references", "quantifiers", "rules"],
)
def test_a_bomb_ends_no_process(served: Served, fields: dict[str, Any]) -> None:
    check_refusal(served.chat(max_tokens=2, **fields))


def test_grammars_that_never_compile_hold_up_no_other(served: Served) -> None:
    def plain(number: int) -> float:
        schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"}}}
        asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        begun = time.monotonic()
        assert served.chat(max_tokens=2, response_format=asked).status_code == 200
        return time.monotonic() - begun

    plain(0)  # every worker's process for grammars takes its time to begin
    plain(1)
    alone = max(plain(number) for number in range(2, 5))
    bombs = [f'// {number}\nstart: {"x* " * 20_000}\nx: "a" | "b" x\n' for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(served.chat, max_tokens=2, structured_outputs={"grammar": bomb}) for bomb in bombs]
        time.sleep(1)
        beside = max(plain(number) for number in range(5, 10))
        refused = [one.result() for one in asked]

    assert beside < alone + 5  # held up, they would wait 10 s for each bomb
    assert {reply.status_code for reply in refused} == {400}
    assert all("simplify it" in reply.json()["error"]["message"] for reply in refused)


@pytest.mark.parametrize(
    "path",
    [
        *("/playground/..%2f..%2f..%2fconfig.py", "/playground/%2e%2e/app.py", "/playground/../../config.py"),
        *("/v1/models/../../../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/responses/..%2f..%2fetc"),
    ],
)
def test_no_path_leads_out(served: Served, path: str) -> None:
    reply = served.http.get(path)

    assert reply.status_code == 404
    assert "root:" not in reply.text


def raw(served: Served, sent: bytes, timeout_s: float = 60.0, ends: bool = True) -> bytes:
    """Return the answer to these bytes. ends: the client says that it sends no more."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        got = b""
        try:
            connection.sendall(sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                got += part
        except OSError:
            pass
        return got


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\x16\x03\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"b" * 1_000_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 50_000 + b"\r\n",
        HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
        HEAD + JSON + b"Content-Length: -5\r\n\r\n{}",
        HEAD + JSON + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        HEAD + JSON + b"Content-Length: 10\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + JSON + b"Content-Length: 100\r\n\r\n{",
        HEAD + JSON + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request(served: Served, sent: bytes) -> None:
    got = raw(served, sent)

    assert b" 500 " not in got[:20]
    assert b" 200 " not in got[:20] or sent.startswith(b"GET /health")
    assert b"Traceback" not in got
    assert KEY.encode() not in got


@pytest.mark.parametrize(("head", "count"), [(b"", 0), (b"Host: a\r\nhost: b\r\n", 2)], ids=["none", "two"])
def test_a_request_has_one_host(served: Served, head: bytes, count: int) -> None:
    got = raw(served, b"GET /livez HTTP/1.1\r\n" + head + b"\r\n")

    assert got.startswith(b"HTTP/1.1 400 ")
    assert f"{count} Host headers".encode() in got
    assert raw(served, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(served, b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (b"FOO /livez HTTP/1.1\r\nHost: x\r\n\r\n", 400, b"Invalid HTTP request received."),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, b"longer than 65536 bytes"),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405, b"this server is none"),
    ],
    ids=["method", "long address", "tunnel"],
)
def test_a_refused_head_is_told_why(served: Served, sent: bytes, status: int, reason: bytes) -> None:
    got = raw(served, sent)

    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert reason in got
    assert b"Host headers" not in got


def test_a_scanner_does_not_fill_the_log(served: Served) -> None:
    before = len(lines_of_refusals(served))

    for _ in range(50):
        got = raw(served, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert got.startswith(b"HTTP/1.1 400 ")
        assert b"received. It is TLS; this address speaks plain HTTP." in got

    lines = lines_of_refusals(served)
    assert len(lines) - before <= len(served.workers()) * 2  # a line in a minute, and the machine may be slow
    assert all(" INFO api: refused " in line and " of 127.0.0.1" in line for line in lines)
    assert "Invalid HTTP request received.\n" not in served.log.read_text().replace(" 400 Invalid HTTP request", "")


def lines_of_refusals(served: Served) -> list[str]:
    return [line for line in served.log.read_text().splitlines() if ": refused " in line]


# The last three headers are those that Java's HttpClient sends with every request.
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_offers_another_protocol_keeps_its_body(served: Served, chunked: bool) -> None:
    body = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}'
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    another = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    got = raw(served, HEAD + JSON + OFFER + length + b"\r\n\r\n" + sent + another, ends=False)

    assert got.count(b"HTTP/1.1 200 ") == got.count(b"HTTP/1.1 ") == 2
    assert b'"chat.completion"' in got


def test_a_body_behind_an_offer_is_no_request(served: Served) -> None:
    """Behind a proxy it would be another client's answer."""
    body = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    host, port = served.url.removeprefix("http://").split(":")

    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(HEAD + JSON + OFFER + b"Content-Length: %d\r\n\r\n" % len(body))
        time.sleep(0.2)  # the head is parsed before the body arrives
        connection.sendall(body)
        got = connection.recv(65536)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(65536)

    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"Invalid JSON" in got


def test_slow_senders_delay_no_other_request(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(200)]
    for connection in slow:
        connection.sendall(HEAD + JSON + b"Content-Length: 100\r\n\r\n{")
    begun = time.monotonic()

    assert served.chat(max_tokens=2).status_code == 200
    assert time.monotonic() - begun < 20
    for connection in slow:
        connection.close()
