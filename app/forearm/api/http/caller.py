"""The sender of one HTTP request, and the observers of its tokens: its key's quota, its trace, the log of outputs.

The outermost middleware makes the Caller and leaves it in the ASGI scope; handlers hand on what the engine client needs
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from forearm import wire
from forearm.api.generation.response_bodies import ErrorBody, ErrorReply, encoder

_LONGEST_ADDRESS = 64  # a proxy that is trusted may write anything


class Observer(Protocol):
    """Sees one HTTP request's work in the engine. It must not fail and must not wait."""

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """These token ids are on their way to the engine; `params` None: to be embedded."""

    def tokens(self, message: wire.Tokens) -> None:
        """New tokens."""

    def over(self) -> None:
        """Nothing more comes. Told once."""


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

    request_id  the client's own id for the request, or one made here; stands in log lines and in the answer's headers
    address     of the client; "" for a Unix socket
    key_name    of its API key, "" where there is none
    priority    of its API key in the queue: lower goes first; None: as the request says
    """

    request_id: str = ""
    address: str = ""
    key_name: str = ""
    priority: int | None = None
    observers: tuple[Observer, ...] = ()
    api: ApiConventions = ApiConventions()

    @property
    def client(self) -> str:
        """The name under which the engine gives each client its fair share: the key's, else the address."""
        return self.key_name or self.address[:_LONGEST_ADDRESS]

    def priority_of(self, asked: int) -> int:
        """Return a request's priority: it may step back behind its key's place in the queue, not before it."""
        return asked if self.priority is None else max(asked, self.priority)


def caller_of(scope: Scope) -> Caller:
    """Return the sender of the request that this scope belongs to."""
    caller: Caller = scope["caller"]
    return caller
