"""A client of a running server for `forearm chat` and `forearm complete`: one streamed request at a time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx

from forearm.config import configs
from forearm.errors import EngineUnavailable, ForearmError, InvalidRequest


class Client:
    """A connection to a server: its address, the model and the key."""

    def __init__(self, url: str, model: str | None, api_key: str | None, trusting: bool = False) -> None:
        """Open it. Defaults: `model` is the server's first one, `api_key` that of the environment.

        url: with or without /v1, or unix:PATH. trusting: take any certificate, as of a server on this machine.
        """
        key = api_key or configs.client_api_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        root = "http://localhost" if socket else url.rstrip("/").removesuffix("/v1")
        # A busy server may take long between two tokens, but connecting is quick or fails.
        self._http = httpx.Client(
            base_url=f"{root}/v1/",
            headers=headers,
            timeout=httpx.Timeout(600, connect=10),
            transport=httpx.HTTPTransport(uds=socket, verify=not trusting),
        )
        self._model = model

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Return whether the server takes requests."""
        try:
            return self._http.get(self._http.base_url.join("../readyz")).status_code == 200
        except httpx.TransportError:
            return False

    def stream(self, path: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an answer, the last one with usage.

        Raises: InvalidRequest, EngineUnavailable or ForearmError with the server's message.
        """
        body = {"model": self.model(), **fields, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._http.stream("POST", path, json=body) as reply:
                if reply.is_error:
                    reply.read()
                    raise refusal(reply)
                yield from chunks(reply.iter_lines())
        except httpx.HTTPError as error:
            raise unreachable(self._http.base_url, error) from None

    def model(self) -> str:
        """Return the model to name in requests.

        Raises: as `stream`.
        """
        if self._model is None:
            try:
                reply = self._http.get("models")
            except httpx.HTTPError as error:
                raise unreachable(self._http.base_url, error) from None
            if reply.is_error:
                raise refusal(reply)
            self._model = str(reply.json()["data"][0]["id"])
        return self._model


# The text of one choice of a chunk.
TextOf = Callable[[dict[str, Any]], str | None]


def printed(
    stream: Iterable[dict[str, Any]], text_of: TextOf, stats: bool = False, thought_of: TextOf = lambda _: None
) -> str:
    """Print an answer as it arrives; with `stats`, its statistics on standard error. Returns: the whole answer.

    thought_of: gives the reasoning of a choice, which is printed on standard error.
    Raises: as `Client.stream`.
    """
    started = time.monotonic()
    pieces: list[str] = []
    usage: dict[str, int] = {}
    first_s, thinks = 0.0, False
    for chunk in stream:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece, thought = text_of(choice) or "", thought_of(choice) or ""
            first_s = first_s or time.monotonic() - started
            if thought:
                print(thought, end="", flush=True, file=sys.stderr)
                thinks = True
            elif piece and thinks:
                print("\n", file=sys.stderr)
                thinks = False
            print(piece, end="", flush=True)
            pieces.append(piece)
    print()
    if stats:
        print(figures(usage, first_s, time.monotonic() - started), file=sys.stderr)
    return "".join(pieces)


def lines() -> Iterator[str]:
    """Yield the lines that the user types, until an empty one or the end of input."""
    while True:
        try:
            said = input("> ").strip()
        except EOFError:
            return
        if not said:
            return
        yield said


def chunks(events: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events.

    Raises: ForearmError with the message of an error event.
    """
    for event in events:
        if not event.startswith("data: ") or event == "data: [DONE]":
            continue
        chunk = json.loads(event[len("data: ") :])
        if "error" in chunk:
            raise ForearmError(chunk["error"]["message"])
        yield chunk


def refusal(reply: httpx.Response) -> ForearmError:
    """Make an exception of the server's error reply."""
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text
    kind = EngineUnavailable if reply.status_code == EngineUnavailable.status else InvalidRequest
    return kind(f"the server says {reply.status_code}: {message}")


def unreachable(url: httpx.URL, error: httpx.HTTPError) -> EngineUnavailable:
    """Make the exception for a server that does not answer."""
    return EngineUnavailable(f"{url}: {error or type(error).__name__}; is `forearm serve` running there? (--url)")


def figures(usage: dict[str, int], first_s: float, whole_s: float) -> str:
    """Describe an answer's tokens, time to first token, and rate after it."""
    prompt, answer = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    rate = (answer - 1) / (whole_s - first_s) if answer > 1 and whole_s > first_s else 0.0
    return f"[{prompt} prompt tokens, first token after {first_s:.2f} s, {answer} tokens, {rate:.1f} tokens/s]"
