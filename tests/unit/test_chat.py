"""The terminal clients, chat and complete, against a tiny server that speaks the protocol."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forearm.cli import main, servers
from forearm.cli.answer import printed
from forearm.cli.chat import Chat
from forearm.cli.chat_commands import obey
from forearm.cli.client import Client
from forearm.cli.markdown import GrowingMarkdown
from forearm.cli.servers import RunningServer
from forearm.errors import ConfigError, InvalidRequest


class TinyServer(ThreadingHTTPServer):
    """Answers with the last message or the prompt in capitals, a letter a chunk; can want the key `sesame`.

    busy: how many requests get a 503 first. A message that contains the name of a tool is answered with a call of it.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.bodies: list[dict[str, Any]] = []
        self.key: str | None = None
        self.breaks = False
        self.busy = 0
        self.thought = ""
        self.models = json.dumps({"data": [{"id": "tiny"}, {"id": "small"}]})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def tiny_server() -> Iterator[TinyServer]:
    with TinyServer() as tiny:
        thread = threading.Thread(target=tiny.serve_forever, args=(0.01,))
        thread.start()
        yield tiny
        tiny.shutdown()
        thread.join()


class Answers(BaseHTTPRequestHandler):
    server: TinyServer

    def do_GET(self) -> None:
        self.reply(200, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.reply(401, json.dumps({"error": {"message": "the API key is wrong"}}))
            return
        if self.server.busy:
            self.server.busy -= 1
            self.reply(503, json.dumps({"error": {"message": "no engine answers"}}))
            return
        said = (body["prompt"] if "prompt" in body else body["messages"][-1]["content"]).upper()
        chunks: list[dict[str, Any]] = [
            {"choices": [{"text": letter} if "prompt" in body else {"delta": {"content": letter}}]} for letter in said
        ]
        for name in (tool["function"]["name"] for tool in body.get("tools", ())):
            if name.upper() in said:
                call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": '{"of": '}}
                more = {"index": 0, "function": {"arguments": "1}"}}
                chunks = [{"choices": [{"delta": {"tool_calls": [delta]}}]} for delta in (call, more)]
        if self.server.thought:
            chunks = [{"choices": [{"delta": {"reasoning": self.server.thought}}]}, *chunks]
        if self.server.breaks:
            chunks = [*chunks[:1], {"error": {"message": "the engine went away"}}]
        chunks.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(said)}})
        events = ["data: " + json.dumps(chunk) for chunk in chunks]
        self.reply(200, "\n\n".join([": keep-alive", *events, "data: [DONE]", ""]))

    def reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as tiny:
        yield tiny


def test_one_quick_message_is_answered(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    status = main.main(
        ["chat", "--url", server.url, "-q", "hello", "--system-prompt", "be kind", "--max-tokens", "9", "--stats"]
    )

    out = capsys.readouterr()
    assert status == 0
    assert out.out == "HELLO\n"
    assert "7 prompt tokens" in out.err
    assert "5 tokens" in out.err
    assert server.bodies == [
        {
            "model": "tiny",
            "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 9,
        }
    ]


def test_an_answer_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def stream() -> Iterator[dict[str, Any]]:
        for word in ("one ", "two"):
            yield {"choices": [{"delta": {"content": word}}]}
            seen.append(capsys.readouterr().out)

    printed(stream())

    assert seen == ["one ", "two"]


def test_a_conversation_remembers_what_was_said(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["one", "two", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))

    assert main.main(["chat", "--url", server.url, "--model-name", "other"]) == 0

    assert capsys.readouterr().out == "ONE\nTWO\n"
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["one", "ONE", "two"]
    assert server.bodies[1]["model"] == "other"


def test_thought_is_shown_apart_from_the_answer(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.thought = "Hm."

    assert main.main(["chat", "--url", server.url, "-q", "hello"]) == 0

    out = capsys.readouterr()
    assert (out.out, out.err) == ("HELLO\n", "Hm.\n\n")


def test_complete_goes_on_from_one_text(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["complete", "--url", server.url, "-q", "hello", "--max-tokens", "9", "--stats"]) == 0

    out = capsys.readouterr()
    assert out.out == "HELLO\n"
    assert "5 tokens" in out.err
    assert server.bodies == [
        {
            "model": "tiny",
            "prompt": "hello",
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_complete_begins_anew_with_every_line(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["one", "two", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))

    assert main.main(["complete", "--url", server.url]) == 0

    assert capsys.readouterr().out == "ONE\nTWO\n"
    assert [body["prompt"] for body in server.bodies] == ["one", "two"]


def test_an_empty_message_is_one(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's variable may be empty: it would wait for its standard input."""
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("standard input was read"))

    assert main.main(["chat", "--url", server.url, "-q", ""]) == 0
    assert main.main(["complete", "--url", server.url, "-q", ""]) == 0

    assert server.bodies[0]["messages"] == [{"role": "user", "content": ""}]
    assert server.bodies[1]["prompt"] == ""


def test_an_output_that_is_piped_has_the_answers_alone(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))

    assert main.main(["chat", "--url", server.url]) == 0

    assert capsys.readouterr().out == "ONE\nTWO\n"


def test_the_key_goes_along(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "sesame"
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    assert main.main(["chat", "--url", server.url, "-q", "x"]) == 0


def test_what_the_server_refuses_is_said(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.key = "sesame"

    assert main.main(["chat", "--url", server.url, "-q", "x", "--api-key", "wrong"]) == 1
    assert capsys.readouterr().err == "forearm chat: the server says 401: the API key is wrong\n"


def test_a_stream_that_breaks_is_an_error(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.breaks = True

    assert main.main(["chat", "--url", server.url, "-q", "hello"]) == 1
    assert capsys.readouterr().err == "forearm chat: the engine went away\n"


def test_a_busy_server_is_asked_again(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.busy = 2

    assert main.main(["chat", "--url", server.url, "-q", "hello"]) == 0

    out = capsys.readouterr()
    assert out.out == "HELLO\n"
    assert out.err == "the server says 503: no engine answers; waiting\n"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("end", ["/v1", "/v1/", "", "/"])
def test_the_address_is_given_with_or_without_v1(
    end: str, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["chat", "--url", server.url.removesuffix("/v1") + end, "-q", "hello"]) == 0
    assert capsys.readouterr().out == "HELLO\n"


def test_whole_blocks_of_markdown_are_taken_as_they_end() -> None:
    answer = "# Title\n\nsome\ntext\n\n```py\na\n\nb\n```\n\n- x\n\nrest"
    growing = GrowingMarkdown()

    blocks = [block for letter in answer for block in growing.add(letter)]

    assert blocks == ["# Title", "some\ntext", "```py\na\n\nb\n```", "- x"]
    assert growing.rest == "rest"
    assert list(GrowingMarkdown().add(answer)) == blocks


def test_a_fence_ends_at_its_own_mark_alone() -> None:
    for inner in ("```py\n\na\n```", "~~~\n\na", "```\n\na\n```\n\nb"):
        block = f"````md\n{inner}\n````"
        assert list(GrowingMarkdown().add(f"{block}\n\nrest")) == [block]
    assert list(GrowingMarkdown().add("```py\n\n```js\n\n```\n\n`a` and\n\n")) == ["```py\n\n```js\n\n```", "`a` and"]


@pytest.mark.parametrize("body", ["<html>", "[]", '{"data": []}', '{"data": [1]}'])
def test_another_program_at_the_address_is_told_of(
    server: TinyServer, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    server.models = body
    assert main.main(["chat", "--url", server.url, "-q", "hello"]) == 1
    assert "answers without a list of models" in capsys.readouterr().err


def test_an_address_may_stand_without_http(server: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.models = "[]"
    assert main.main(["chat", "--url", server.url.removeprefix("http://"), "-q", "hello"]) == 1
    assert f"{server.url}/models answers without a list of models" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://[::", "http://ü ü/", "http://x:port"])
def test_what_is_no_address_is_told_of(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main.main(["chat", "--url", url, "-q", "hello"]) == 1
    assert "write it as http://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "[[",
        "5",
        '[{"role": "system"}]',
        '{"messages": [], "tools": 5}',
        '{"messages": [], "tools": [1]}',
        "[" * 9999,
    ],
)
def test_what_is_no_conversation_is_not_loaded(server: TinyServer, tmp_path: Path, text: str) -> None:
    file = tmp_path / "garbage"
    file.write_text(text)
    with Client(server.url, None, None) as client:
        chat = Chat(client, None)
        chat.system("Be kind.")
        with pytest.raises(InvalidRequest, match="/load"):
            obey(chat, f"/load {file}")
        assert obey(chat, "/system") == "system message: Be kind."
        assert obey(chat, "/tools") == "tools: none"


def test_a_conversation_is_saved_where_it_can_be(server: TinyServer, tmp_path: Path) -> None:
    with Client(server.url, None, None) as client:
        chat = Chat(client, None)
        chat.system("half of a pair: \ud83d")  # as a terminal that cuts a paste may send
        for place in ("~nobody-has-this-name/x", "/proc/x", str(tmp_path)):
            with pytest.raises(InvalidRequest, match="/save"):
                obey(chat, f"/save {place}")
        obey(chat, f"/save {tmp_path / 'saved'}")
        said = chat.messages
        obey(chat, "/load " + str(tmp_path / "saved"))
        assert chat.messages == said


def test_without_an_address_the_running_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (RunningServer(n, f"m{n}", f"/models/m{n}", f"http://127.0.0.1:{n}", Path()) for n in (9001, 9002))
    usual = RunningServer(3, "m3", "/models/m3", "http://127.0.0.1:8000", Path())

    def url(*running: RunningServer, model: str | None = None) -> str:
        monkeypatch.setattr(servers, "running_servers", lambda: list(running))
        return servers.server_url(model)

    assert url() == "http://localhost:8000"
    assert url(one) == url(one, model="an-alias") == one.url
    assert url(one, two, model="m9002") == url(one, two, model="hf.co/m9002") == two.url
    assert url(one, usual, two) == usual.url
    with pytest.raises(ConfigError, match=r"m9001 at http://127.0.0.1:9001, m9002 at .*choose one with --url"):
        url(one, two)


def test_no_server_is_said_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["chat", "--url", "http://127.0.0.1:9/v1", "-q", "x"]) == 1
    assert "is `forearm serve` running there? (--url)" in capsys.readouterr().err
