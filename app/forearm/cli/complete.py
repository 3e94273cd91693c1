"""`forearm complete`: a running server continues each text that is typed, independently of the others."""

from __future__ import annotations

from typing import Any

from forearm.cli.answer import printed
from forearm.cli.client import Client, lines


def complete(client: Client, quick: str | None, max_tokens: int | None, stats: bool = False) -> int:
    """Complete the lines that the user types until an empty one, or `quick` alone. Returns: the exit status.

    max_tokens: most tokens of each completion; None: the server's default, 16.
    Raises: InvalidRequest, EngineUnavailable or ForearmError with the server's message.
    """
    limit: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    for prompt in lines() if quick is None else [quick]:
        printed(client.stream("completions", {"prompt": prompt, **limit}), stats)
    return 0
