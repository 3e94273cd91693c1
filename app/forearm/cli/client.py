"""A client of a running server for `forearm chat` and `forearm complete`: one streamed request at a time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

import httpx

from forearm.config.environment import client_api_key
from forearm.descriptors import check_text
from forearm.errors import EngineUnavailable, ForearmError, InvalidRequest

_BUSY, _BUSY_S = (429, 503), 120.0  # statuses that pass, and how long to ask again


class Client:
    """A connection to a server: its address, the model and the key."""

    def __init__(
        self,
        url: str,
        model: str | None,
        api_key: str | None,
        trusting: bool = False,
        remedy: str = "is `forearm serve` running there? (--url)",
    ) -> None:
        """Open it. Defaults: `model` is the server's first one, `api_key` that of the environment.

        url: with or without http:// and /v1, or unix:PATH. trusting: take any certificate, as of one's own server.
        remedy: what an error says where no server answers.
        Raises: InvalidRequest if `url` is no address.
        """
        key = api_key or client_api_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        schemed = url if "://" in url else f"http://{url}"  # localhost:8000, as OLLAMA_HOST is written
        root = "http://localhost" if socket else schemed.rstrip("/").removesuffix("/v1")
        # A busy server may take long between two tokens, but connecting is quick or fails.
        try:
            # To read the certificates of authorities takes 20 ms: where HTTPS is spoken alone.
            verify = not trusting and httpx.URL(root).scheme != "http"
            self._http = httpx.Client(
                base_url=f"{root}/v1/",
                headers=headers,
                timeout=httpx.Timeout(600, connect=10),
                transport=httpx.HTTPTransport(uds=socket, verify=verify),
            )
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"--url {url}: {error}; write it as http://HOST:PORT") from None
        self._model, self._remedy = model, remedy

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

    def stream(self, path: str, fields: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the chunks of an answer, the last one with usage. A server that is busy is asked again until it is not.

        Raises: InvalidRequest, EngineUnavailable or ForearmError with the server's message.
        """
        asked = {"model": self.model(), **fields, "stream": True, "stream_options": {"include_usage": True}}
        body = check_text("the message", json.dumps(asked, ensure_ascii=False)).encode()
        headers = {"Content-Type": "application/json"}
        until, told = time.monotonic() + _BUSY_S, False
        try:
            while True:
                with self._http.stream("POST", path, content=body, headers=headers) as reply:
                    if not reply.is_error:
                        yield from chunks(reply.iter_lines())
                        return
                    reply.read()
                if reply.status_code not in _BUSY or time.monotonic() > until:
                    raise refusal(reply)
                if not told:
                    print(f"{refusal(reply)}; waiting", file=sys.stderr)
                told = True
                time.sleep(pause_s(reply))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def model(self) -> str:
        """Return the model to name in requests.

        Raises: as `stream`.
        """
        if self._model is None:
            self._model = self.models()[0]
        return self._model

    def models(self) -> list[str]:
        """Return the names of the server's models.

        Raises: as `stream`.
        """
        try:
            reply = self._http.get("models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if reply.is_error:
            raise refusal(reply)
        try:
            names = [str(model["id"]) for model in reply.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if not names:
            raise InvalidRequest(f"{reply.url} answers without a list of models; is it the address of another program?")
        return names

    def choose(self, model: str) -> None:
        """Name another model in requests.

        Raises: InvalidRequest if the server does not have it; as `stream`.
        """
        if model not in (known := self.models()):
            raise InvalidRequest(f"the server has no model {model}; it has {', '.join(known)}")
        self._model = model

    def _unreachable(self, error: httpx.HTTPError) -> EngineUnavailable:
        remedy = self._remedy
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            remedy = "name the file of the certificate, or of its authority, in the variable SSL_CERT_FILE"
        return EngineUnavailable(f"{self._http.base_url}: {error or type(error).__name__}; {remedy}")


def lines() -> Iterator[str]:
    """Yield the lines that the user types, until an empty one or the end of input."""
    prompt = "> " if sys.stdin.isatty() else ""  # a script's output has the answers alone
    while True:
        try:
            said = input(prompt).strip()
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


def pause_s(reply: httpx.Response) -> float:
    """Return the time after which to ask a busy server again, as it says: a second to ten."""
    try:
        return min(max(float(reply.headers.get("Retry-After", 1)), 1.0), 10.0)
    except ValueError:  # a date
        return 10.0


def refusal(reply: httpx.Response) -> ForearmError:
    """Make an exception of the server's error reply."""
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text
    kind = EngineUnavailable if reply.status_code == EngineUnavailable.status else InvalidRequest
    return kind(f"the server says {reply.status_code}: {message}")
