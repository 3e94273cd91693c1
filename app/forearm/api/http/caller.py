"""The sender of an HTTP request, and the observers of its tokens: its key's quota, its trace, the log of outputs.

The outermost middleware makes the Caller and stores it in the ASGI scope; handlers pass on what the engine client
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from forearm import wire
from forearm.api.generation.response_bodies import ErrorBody, ErrorReply, encoder

_LONGEST_ADDRESS = 64  # the header of a trusted proxy may contain anything


class Observer(Protocol):
    """An observer of one HTTP request's work in the engine. It must not fail and must not wait."""

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """Note token ids that are being submitted to the engine. params None: they are to be embedded."""

    def tokens(self, message: wire.Tokens) -> None:
        """Note new tokens."""

    def over(self) -> None:
        """Note the end of the request. Called once."""


def openai_error(error: ErrorBody, request_id: str) -> bytes:
    """Return the error body of OpenAI and vLLM, which does not name the request."""
    return encoder.encode(ErrorReply(error=error))


@dataclass(frozen=True)
class ApiConventions:
    """The error bodies of an API, made of an error and a request id; and the header its clients read the id from."""

    error_body: Callable[[ErrorBody, str], bytes] = openai_error
    id_header: str = "x-request-id"


@dataclass
class Caller:
    """The sender of one HTTP request.

    request_id  the client's own id for the request, or one made here; for log lines and the answer's headers
    address     the client's address; "" for a Unix socket
    key_name    the name of its API key; "" where there is none
    priority    its API key's priority in the queue: lower goes first; None: the request's own
    held_bytes  bytes of its body that count as held (body_memory.py)
    """

    request_id: str = ""
    address: str = ""
    key_name: str = ""
    priority: int | None = None
    observers: tuple[Observer, ...] = ()
    api: ApiConventions = ApiConventions()
    held_bytes: int = 0

    @property
    def client(self) -> str:
        """The name by which the engine shares capacity fairly among clients: the key's name, or the address."""
        return self.key_name or self.address[:_LONGEST_ADDRESS]

    def priority_of(self, asked: int) -> int:
        """Return a request's priority, which may be lower than its key's, but not higher."""
        return asked if self.priority is None else max(asked, self.priority)


def caller_of(scope: Scope) -> Caller:
    """Return the sender of this scope's request."""
    caller: Caller = scope["caller"]
    return caller
