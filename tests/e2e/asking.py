"""Clients of each API that tell how a request ended: with its answer, an error, a cut connection, or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import httpx

SILENCE_S = 45.0  # without a byte: the client hangs

End = Literal["answer", "refused", "error event", "cut", "no connection", "hung", "wrong"]
_SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 999}},
    "required": ["word", "count"],
    "additionalProperties": False,
}
_MESSAGES = [{"role": "user", "content": "What is a glacier?"}]
_GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 48}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "w", "schema": _SCHEMA}}

# What is asked, by a name: path and body. All are greedy: an answer is the same each time.
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat stream": ("/v1/chat/completions", {"messages": _MESSAGES, "stream": True, **_GREEDY, "ignore_eos": True}),
    "chat": ("/v1/chat/completions", {"messages": _MESSAGES, **_GREEDY, "logprobs": True, "top_logprobs": 2}),
    "schema": ("/v1/chat/completions", {"messages": _MESSAGES, **_GREEDY, "response_format": _FORMAT}),
    "completion": ("/v1/completions", {"prompt": ["A glacier is", "A river is"], **_GREEDY}),
    "completion stream": ("/v1/completions", {"prompt": "A hill is", "stream": True, "ignore_eos": True, **_GREEDY}),
    "messages stream": ("/v1/messages", {"model": "", "messages": _MESSAGES, "stream": True, **_GREEDY}),
    "responses": (
        "/v1/responses",
        {"input": "What is a glacier?", "store": True, "temperature": 0, "max_output_tokens": 48},
    ),
    "responses stream": (
        "/v1/responses",
        {"input": "What is a lake?", "stream": True, "temperature": 0, "max_output_tokens": 48},
    ),
    "long prompt": ("/v1/completions", {"prompt": "the water of the lake " * 250, **_GREEDY, "max_tokens": 8}),
}


@dataclass(frozen=True)
class Reply:
    """The outcome of a request. `text`: that of the answer, or the fault of its end."""

    end: End
    text: str
    status: int = 0


def ask(url: str, name: str, model: str, *, key: str = "none") -> Reply:
    """Send one of ASKS on a connection of its own and read what comes to its end."""
    path, body = ASKS[name]
    if "model" in body:
        body = {**body, "model": model}
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    try:
        with (
            # No HTTPS: to read the certificates of authorities takes 20 ms, longer than most answers.
            httpx.Client(timeout=httpx.Timeout(SILENCE_S), verify=False) as client,
            client.stream("POST", f"{url}{path}", json=body, headers=headers) as reply,
        ):
            try:
                content = b"".join(reply.iter_bytes())
            except (httpx.ReadError, httpx.RemoteProtocolError):
                return Reply("cut", "within the answer", reply.status_code)
            return _read(reply.status_code, reply.headers.get("content-type", ""), content, body.get("stream", False))
    except httpx.TimeoutException:
        return Reply("hung", f"nothing came for {SILENCE_S:g} s")
    except httpx.ConnectError as error:
        return Reply("no connection", str(error))
    except httpx.TransportError as error:
        return Reply("cut", f"before the answer: {error!r}")


def _read(status: int, content_type: str, content: bytes, stream: bool) -> Reply:
    """Return the outcome of a complete answer."""
    if status == 200 and stream:
        return _read_stream(content)
    try:
        whole = json.loads(content)
    except ValueError:
        return Reply("wrong", f"status {status}, {content_type}: {content[:200]!r}", status)
    if status == 200:
        if whole.get("status") == "failed":
            return Reply("error event", str(whole.get("error")), status)
        return Reply("answer", _text(whole), status)
    error = whole.get("error")
    if not isinstance(error, dict) or not error.get("message"):
        return Reply("wrong", f"status {status} without an error object: {content[:200]!r}", status)
    return Reply("refused", str(error["message"]), status)


def _read_stream(content: bytes) -> Reply:
    """Return the outcome of a stream: its end, an error, or cut if it has neither."""
    lines = [line[6:] for line in content.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    for event in events:
        if isinstance(event.get("error"), dict) or event.get("type") in ("error", "response.failed"):
            return Reply("error event", json.dumps(event)[:300], 200)
    ended = lines[-1:] == ["[DONE]"] or any(
        event.get("type") in ("message_stop", "response.completed", "response.incomplete") for event in events
    )
    if not ended:
        return Reply("cut", f"a stream of {len(lines)} events without an end", 200)
    return Reply("answer", "".join(map(_text, events)), 200)


def _text(part: dict[str, Any]) -> str:
    """Return the generated text of an answer, or of one event of a stream."""
    if part.get("type") == "response.output_text.delta":
        return str(part["delta"])
    if part.get("type") == "content_block_delta":
        return str(part["delta"].get("text", ""))
    if part.get("object") == "response":
        return "".join(piece["text"] for item in part["output"] for piece in item.get("content", ()))
    found = ""
    for choice in part.get("choices", ()):
        message = choice.get("delta") or choice.get("message") or choice
        found += message.get("content") or message.get("text") or ""
    return found
