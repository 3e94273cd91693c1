"""`forearm chat`: a conversation with a running server at the terminal, streamed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

from forearm import config
from forearm.errors import EngineUnavailable, ForearmError, InvalidRequest

Message = dict[str, str]


class Chat:
    """One conversation; `messages` is what has been said so far."""

    def __init__(
        self, url: str, model: str | None, api_key: str | None, max_tokens: int | None, stats: bool = False
    ) -> None:
        """`model`: the server's first one when absent. `api_key`: from the environment when absent."""
        self.messages: list[Message] = []
        key = api_key or config.client_api_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Between two tokens a busy server may take long; connecting is quick or does not happen.
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/", headers=headers, timeout=httpx.Timeout(600, connect=10)
        )
        self._model = model
        self._max_tokens = max_tokens
        self._stats = stats

    def run(self, system_prompt: str | None, quick: str | None) -> int:
        """Converse until the user has nothing more to say; with `quick`, one message only. Returns: the exit status."""
        if system_prompt:
            self.messages.append({"role": "system", "content": system_prompt})
        with self._http:
            for said in [quick] if quick else lines():
                self.messages.append({"role": "user", "content": said})
                self.answer()
        return 0

    def answer(self) -> str:
        """Ask, and print the answer as it comes.

        Raises: InvalidRequest, EngineUnavailable or ForearmError with what the server said.
        """
        started = time.monotonic()
        pieces: list[str] = []
        usage: dict[str, int] = {}
        first_s = 0.0
        for chunk in self._stream():
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                first_s = first_s or time.monotonic() - started
                print(piece, end="", flush=True)
                pieces.append(piece)
        print()
        if self._stats:
            print(figures(usage, first_s, time.monotonic() - started), file=sys.stderr)
        said = "".join(pieces)
        self.messages.append({"role": "assistant", "content": said})
        return said

    def _stream(self) -> Iterator[dict[str, Any]]:
        body = {
            "model": self._model or self._first_model(),
            "messages": self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        try:
            with self._http.stream("POST", "chat/completions", json=body) as reply:
                if reply.is_error:
                    reply.read()
                    raise refusal(reply)
                yield from chunks(reply.iter_lines())
        except httpx.HTTPError as error:
            raise unreachable(self._http.base_url, error) from None

    def _first_model(self) -> str:
        try:
            reply = self._http.get("models")
        except httpx.HTTPError as error:
            raise unreachable(self._http.base_url, error) from None
        if reply.is_error:
            raise refusal(reply)
        self._model = str(reply.json()["data"][0]["id"])
        return self._model


def lines() -> Iterator[str]:
    """What the user types, until an empty line or the end."""
    while True:
        try:
            said = input("> ").strip()
        except EOFError:
            return
        if not said:
            return
        yield said


def chunks(events: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events.

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
    """The server's error, as it words it."""
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text
    kind = EngineUnavailable if reply.status_code == EngineUnavailable.status else InvalidRequest
    return kind(f"the server says {reply.status_code}: {message}")


def unreachable(url: httpx.URL, error: httpx.HTTPError) -> EngineUnavailable:
    """No server, or one that went away."""
    return EngineUnavailable(f"{url}: {error or type(error).__name__}; is `forearm serve` running there? (--url)")


def figures(usage: dict[str, int], first_s: float, whole_s: float) -> str:
    """Tokens, time to the first one, and the rate of those after it."""
    prompt, answer = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    rate = (answer - 1) / (whole_s - first_s) if answer > 1 and whole_s > first_s else 0.0
    return f"[{prompt} prompt tokens, first token after {first_s:.2f} s, {answer} tokens, {rate:.1f} tokens/s]"
