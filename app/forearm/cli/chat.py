"""`forearm chat`: a conversation with a running server at the terminal, streamed."""

from __future__ import annotations

from forearm.cli.client import Client, lines, printed


class Chat:
    """One conversation with its messages so far."""

    def __init__(self, client: Client, max_tokens: int | None, stats: bool = False) -> None:
        self.messages: list[dict[str, str]] = []
        self._client = client
        self._limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        self._stats = stats

    def run(self, system_prompt: str | None, quick: str | None) -> int:
        """Converse until an empty line; with `quick`, send that message alone. Returns: the exit status."""
        if system_prompt:
            self.messages.append({"role": "system", "content": system_prompt})
        for said in [quick] if quick else lines():
            self.messages.append({"role": "user", "content": said})
            self.answer()
        return 0

    def answer(self) -> str:
        """Send the conversation and print the answer as it arrives.

        Raises: InvalidRequest, EngineUnavailable or ForearmError with the server's message.
        """
        stream = self._client.stream("chat/completions", {"messages": self.messages, **self._limit})
        said = printed(
            stream,
            lambda choice: choice["delta"].get("content"),
            self._stats,
            lambda choice: choice["delta"].get("reasoning"),
        )
        self.messages.append({"role": "assistant", "content": said})
        return said
