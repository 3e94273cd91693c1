"""`forearm chat`: a conversation with a running server, streamed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from forearm.cli.answer import StreamedAnswer, printed
from forearm.cli.client import Client, lines
from forearm.errors import ForearmError

# Shows an answer as it arrives, and returns it.
Show = Callable[[Iterable[dict[str, Any]]], StreamedAnswer]


class Chat:
    """One conversation: its messages so far, and the fields that go with every request (temperature, tools ...)."""

    def __init__(self, client: Client, max_tokens: int | None, stats: bool = False) -> None:
        self.client = client
        self.messages: list[dict[str, Any]] = []
        self.fields: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
        self.stats = stats

    def run(self, system_prompt: str | None, quick: str | None) -> int:
        """Converse, or send `quick` alone. Returns: the exit status.

        Raises: InvalidRequest, EngineUnavailable or ForearmError with the server's message, but not at a terminal.
        """
        if system_prompt:
            self.system(system_prompt)
        show: Show = partial(printed, stats=self.stats)
        if sys.stdout.isatty():
            from forearm.cli.markdown import drawn

            show = partial(drawn, stats=self.stats or quick is None, interactive=quick is None)
        if quick is None and sys.stdin.isatty() and sys.stdout.isatty():
            from forearm.cli.terminal import converse

            return converse(self, show)
        for said in lines() if quick is None else [quick]:
            self.say({"role": "user", "content": said}, show)
        return 0

    def system(self, text: str) -> None:
        """Set the system message; "" takes it away."""
        others = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": text}] * bool(text) + others

    def say(self, message: dict[str, Any], show: Show) -> StreamedAnswer:
        """Send the conversation with one more message, and add the answer.

        Where no answer has come the message is taken back.
        Raises: as `run`; KeyboardInterrupt.
        """
        self.messages.append(message)
        try:
            fields = {"messages": self.messages, **self.fields}
            with contextlib.closing(self.client.stream("chat/completions", fields)) as stream:
                answer = show(stream)
        except (ForearmError, KeyboardInterrupt):
            self.messages.pop()
            raise
        if answer.stopped and not answer.text:
            self.messages.pop()
        else:
            self.messages.append(answer.message())
        return answer
