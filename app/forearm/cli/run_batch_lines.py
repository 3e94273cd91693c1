"""The lines of a batch in vLLM's and OpenAI's format: one request a line in, one answer a line out.

In:  {"custom_id": …, "method": "POST", "url": …, "body": {…}}
Out: {"id": …, "custom_id": …, "response": {"status_code": …, "request_id": …, "body": …}, "error": …}

`body` is the server's answer, `error` null, where the status is 200; else `body` is null and `error` is the server's
error object, {"error": {"message", "type", "param", "code"}}. A line that is no request gets an error of the same form,
status 400, and custom_id null where it has none.
"""

from __future__ import annotations

import uuid
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from forearm.errors import InvalidRequest

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
URL_ENDS = ("/score", "/rerank")  # /score, /v1/score, /rerank, /v1/rerank, /v2/rerank


@dataclass(frozen=True)
class BatchRequest:
    """A request to POST, with the `custom_id` of its answer."""

    custom_id: str
    url: str
    body: bytes


class NoRequest(InvalidRequest):
    """A line that cannot be sent. `custom_id`: the line's own, where that can be read."""

    def __init__(self, message: str, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message, param)
        self.custom_id = custom_id


def lines(path: Path, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of a file, from 1, without blank ones and the byte order mark of Windows' tools.

    Too long ones are cut to `most_bytes` + 1.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(most_bytes + 2):
            number += 1
            cut = line.removeprefix(BOM_UTF8 if number == 1 else b"")[: most_bytes + 1].strip()
            while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
                pass  # the rest of a line that is too long
            if cut:
                yield number, cut


def parsed(line: bytes, number: int, most_bytes: int) -> BatchRequest:
    """Read one line.

    Raises: NoRequest naming the line, the field and the remedy.
    """
    if len(line) > most_bytes:
        raise NoRequest(f"line {number} is longer than {most_bytes} bytes (FOREARM_MAX_BODY_BYTES)")
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoRequest(f"line {number} is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise NoRequest(f"line {number} is not a JSON object with custom_id, method, url and body")
    custom_id, url, body = entry.get("custom_id"), entry.get("url"), entry.get("body")
    if not isinstance(custom_id, str):
        raise NoRequest(f"line {number}: custom_id is {_shown(custom_id)}; it must be a string", "custom_id")
    wrong, why = "", ""
    if entry.get("method") != "POST":
        wrong, why = "method", f"method is {_shown(entry.get('method'))}; it must be POST"
    elif not isinstance(url, str) or not (url in URLS or (url.startswith("/") and url.endswith(URL_ENDS))):
        wrong, why = "url", f"url is {_shown(url)}; there are {', '.join((*URLS, *URL_ENDS))}"
    elif not isinstance(body, dict):
        wrong, why = "body", f"body is {_shown(body)}; it must be an object, the request itself"
    elif wrong := next((name for name in ("stream", "background") if body.get(name)), ""):
        why = f"a batch waits for whole answers; leave {wrong} out of the body"
    if wrong:
        raise NoRequest(f"line {number}: {why}", wrong, custom_id)
    return BatchRequest(custom_id, str(url), msgspec.json.encode(body))


def _shown(value: Any) -> str:
    return f"{msgspec.json.encode(value).decode()[:100]}" if value is not None else "missing"


def answered(custom_id: str, status: int, request_id: str, content: bytes) -> bytes:
    """Return the line for the server's answer: its JSON unchanged, or its text where it is no JSON."""
    body: Any
    try:
        msgspec.json.decode(content)
        body = msgspec.Raw(content.replace(b"\n", b" "))  # between values: within strings JSON has no newlines
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = content.decode(errors="replace")
    return _line(custom_id, status, request_id, body if status == 200 else None, None if status == 200 else body)


def reason(line: bytes) -> str:
    """Return the message of a line of the output that is an error, after its custom_id."""
    entry = msgspec.json.decode(line, type=dict[str, Any])
    custom_id, error = entry["custom_id"], entry["error"]
    while isinstance(error, dict):
        error = error.get("error", error.get("message", ""))
    return f"{'' if custom_id is None else f'{custom_id}: '}{str(error)[:300]}"


def refused(error: NoRequest) -> bytes:
    """Return the line for a request that was not sent."""
    return failed(error.custom_id, error.status, error.kind, str(error), error.param)


def failed(custom_id: str | None, status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """Return the line for an error that is not the server's own."""
    shown = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    return _line(custom_id, status, f"batch-{uuid.uuid4().hex}", None, shown)


def _line(custom_id: str | None, status: int, request_id: str, body: Any, error: Any) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": body}
    line = {"id": f"forearm-{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"
