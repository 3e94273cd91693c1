"""An answer of a server as it arrives: its parts, and plain printing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StreamedAnswer:
    """The part of an answer that has arrived.

    calls: of tools, as messages have them. first_s, whole_s: since the request. stopped: by the user.
    """

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    first_s: float = 0.0
    whole_s: float = 0.0
    stopped: bool = False

    def pieces(self, stream: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield the reasoning and the text of each chunk of a chat or completion.

        Raises: as `Client.stream`.
        """
        started = time.monotonic()
        for chunk in stream:
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk["choices"]:
                delta = choice.get("delta", choice)
                for part in delta.get("tool_calls") or []:
                    if part["index"] == len(self.calls):
                        call = {"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}}
                        self.calls.append(call)
                    for key, more in part["function"].items():
                        self.calls[part["index"]]["function"][key] += more or ""
                thought, text = delta.get("reasoning") or "", delta.get("content") or delta.get("text") or ""
                self.text += text
                self.whole_s = time.monotonic() - started
                self.first_s = self.first_s or self.whole_s
                yield thought, text
        self.whole_s = time.monotonic() - started

    def message(self) -> dict[str, Any]:
        """Return it as a message of the conversation."""
        return {"role": "assistant", "content": self.text} | ({"tool_calls": self.calls} if self.calls else {})

    def figures(self) -> str:
        """Describe the tokens, the time to the first one, and the rate after it."""
        prompt, tokens = self.usage.get("prompt_tokens", 0), self.usage.get("completion_tokens", 0)
        rest_s = self.whole_s - self.first_s
        rate = (tokens - 1) / rest_s if tokens > 1 and rest_s > 0 else 0.0
        return f"[{prompt} prompt tokens, first token after {self.first_s:.2f} s, {tokens} tokens, {rate:.1f} tokens/s]"


def printed(stream: Iterable[dict[str, Any]], stats: bool = False) -> StreamedAnswer:
    """Print an answer as it arrives, as plain text; reasoning and, with `stats`, figures on standard error.

    Raises: as `Client.stream`.
    """
    answer, thinks = StreamedAnswer(), False
    for thought, text in answer.pieces(stream):
        if thought:
            print(thought, end="", flush=True, file=sys.stderr)
            thinks = True
        elif text and thinks:
            print("\n", file=sys.stderr)
            thinks = False
        print(text, end="", flush=True)
    for call in answer.calls:
        print(f"{call['function']['name']}({call['function']['arguments']})", end="")
    print()
    if stats:
        print(answer.figures(), file=sys.stderr)
    return answer
