"""Who watches the tokens of a request go by: its key's account, its trace, the log of outputs.

The edge names the watchers of a request before the handler runs; `EngineClient.submit` tells them what the handler
submits, and the Generation what comes back. A watcher must not fail and must not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from forearm import wire


class Watcher(Protocol):
    """Sees one HTTP request's work in the engine."""

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """These token ids are on their way to the engine; `params` None: to be embedded."""

    def tokens(self, message: wire.Tokens) -> None:
        """New tokens."""

    def over(self) -> None:
        """Nothing more comes. Told once."""


watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
# What the key of a request is worth in the queue: lower goes first. None: as the request says.
least_priority: ContextVar[int | None] = ContextVar("least_priority", default=None)
# The name of the request's key in the keys file; "" where there is none.
key_name: ContextVar[str] = ContextVar("key_name", default="")


# The path that a request came to.
path: ContextVar[str] = ContextVar("path", default="")


def request_type() -> str:
    """What vLLM's metrics call the kind of a request: chat_completions, responses or other."""
    kind = path.get().rpartition("/v1/")[2].partition("/")[0]
    return {"chat": "chat_completions", "responses": "responses"}.get(kind, "other")


def priority_of(asked: int) -> int:
    """A request may step back behind its key's place in the queue, not before it."""
    least = least_priority.get()
    return asked if least is None else max(asked, least)
