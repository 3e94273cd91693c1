"""Who watches the tokens of a request go by: its key's account, its trace, the log of outputs.

The edge names the watchers of a request before the handler runs; `EngineClient.submit` tells them what the handler
submits, and the Generation what comes back. A watcher must not fail and must not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from forearm import wire

Message = TypeVar("Message", wire.Submit, wire.Embed)
_LONGEST_ADDRESS = 64  # a proxy that is trusted may write anything


class Watcher(Protocol):
    """Sees one HTTP request's work in the engine."""

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """These token ids are on their way to the engine; `params` None: to be embedded."""

    def tokens(self, message: wire.Tokens) -> None:
        """New tokens."""

    def over(self) -> None:
        """Nothing more comes. Told once."""


watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())


@dataclass(frozen=True)
class Sender:
    """Who sent a request.

    address   of the client; "" for a Unix socket
    key_name  of its API key, "" where there is none
    priority  what the key is worth in the queue: lower goes first; None: as the request says
    """

    address: str = ""
    key_name: str = ""
    priority: int | None = None

    def sign(self, message: Message) -> Message:
        """The message with whose it is, and with its priority: a request may step back behind its key's place in the
        queue, not before it.
        """
        client = self.key_name or self.address[:_LONGEST_ADDRESS]
        priority = message.priority if self.priority is None else max(message.priority, self.priority)
        return msgspec.structs.replace(message, priority=priority, client=client)


sender: ContextVar[Sender] = ContextVar("sender", default=Sender())  # noqa: B039 (frozen)
# The path that a request came to.
path: ContextVar[str] = ContextVar("path", default="")


def request_type() -> str:
    """What vLLM's metrics call the kind of a request: chat_completions, responses or other."""
    kind = path.get().rpartition("/v1/")[2].partition("/")[0]
    return {"chat": "chat_completions", "responses": "responses"}.get(kind, "other")
