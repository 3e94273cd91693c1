"""Answers drawn as Markdown at a terminal while they arrive.

What ends with a blank line is drawn once and stays; the block that still grows is drawn again ten times a second, so
that a token costs the same at the end of a long answer as at its beginning.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from forearm.cli.answer import StreamedAnswer

# The mark of a fence, and the words behind it, which only a fence that opens has.
_FENCE = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})(.*)$")
_FRAMES_S = 10


class GrowingMarkdown:
    """The text of an answer: whole blocks can be taken from its beginning, the rest draws itself."""

    def __init__(self) -> None:
        self.rest = ""

    def add(self, text: str) -> Iterator[str]:
        """Add text, and yield the blocks that are whole now; a blank line within a fence does not end one.

        As in CommonMark a fence ends at its own mark, as long or longer, with nothing behind it.
        """
        self.rest += text
        if "\n" not in text:
            return
        fence, begin, at = "", 0, 0
        for line in self.rest.splitlines(keepends=True):
            at += len(line)
            mark, words = found.groups() if (found := _FENCE.match(line.rstrip())) else ("", "")
            if mark and not fence:
                fence = mark
            elif mark.startswith(fence) and mark and not words:
                fence = ""
            elif not line.strip() and not fence and line.endswith("\n"):
                if block := self.rest[begin:at].strip("\n"):
                    yield block
                begin = at
        self.rest = self.rest[begin:]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Draw the end of the rest, as far as the screen has lines."""
        lines = console.render_lines(Markdown(self.rest), options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def drawn(stream: Iterable[dict[str, Any]], stats: bool, interactive: bool) -> StreamedAnswer:
    """Draw an answer as it arrives; reasoning is dim; with `stats`, figures follow.

    interactive: Ctrl-C stops the answer alone.
    Raises: as `Client.stream`; KeyboardInterrupt.
    """
    console, answer, growing, thinks = Console(highlight=False), StreamedAnswer(), GrowingMarkdown(), False
    with contextlib.ExitStack() as stack:
        # What has come is shown also where an exception ends the answer, after Live has cleared its lines.
        stack.callback(lambda: console.print(Markdown(growing.rest)) if growing.rest.strip() else None)
        live = Live(growing, console=console, refresh_per_second=_FRAMES_S, transient=True)
        stack.callback(live.stop)
        if interactive:
            stack.enter_context(contextlib.suppress(KeyboardInterrupt))
            answer.stopped = True
        for thought, text in answer.pieces(stream):
            if thought:
                console.print(Text(thought, style="dim"), end="")
                thinks = True
            if text and not live.is_started:
                console.print("\n" * thinks, end="")
                live.start()
            for block in growing.add(text):
                console.print(Markdown(block), "")
        answer.stopped = False
    for call in answer.calls:
        console.print(Text(f"{call['function']['name']}({call['function']['arguments']})", style="yellow"))
    if answer.stopped:
        console.print("[dim]stopped[/]")
    elif stats:
        console.print(Text(answer.figures(), style="dim"))
    return answer
