"""`forearm complete`: a running server goes on from what is typed, each time from nothing else."""

from __future__ import annotations

from typing import Any

from forearm.cli.client import Client, lines, printed


def complete(client: Client, quick: str | None, max_tokens: int | None, stats: bool = False) -> int:
    """Complete what the user types until there is nothing more; with `quick`, that alone. Returns: the exit status.

    max_tokens: of each completion; absent: the server's default, 16.
    Raises: InvalidRequest, EngineUnavailable or ForearmError with what the server said.
    """
    limit: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    for prompt in [quick] if quick else lines():
        stream = client.stream("completions", {"prompt": prompt, **limit})
        printed(stream, lambda choice: choice["text"], stats)
    return 0
