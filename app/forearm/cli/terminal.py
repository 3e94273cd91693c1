"""A conversation at a terminal: line editing, history, several lines, and commands that begin with a slash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

from forearm.cli.chat import Chat, Show
from forearm.cli.chat_commands import COMMANDS, obey
from forearm.config.environment import state_folder
from forearm.errors import ConfigError, ForearmError

_HINT = "Ctrl-D or /bye ends the conversation, /help tells more"


class _History(FileHistory):
    """A history in a file, which goes on in memory alone where the disk is full."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


def converse(chat: Chat, show: Show) -> int:
    """Read questions and show answers until Ctrl-D or /bye. Errors do not end it. Returns: the exit status."""
    console = Console(highlight=False)
    session = make_session()
    console.print(f"[dim]{_HINT}[/]")
    while True:
        try:
            said = session.prompt("> ").strip()
        except KeyboardInterrupt:
            console.print(f"[dim]{_HINT}[/]")
            continue
        except EOFError:
            return 0
        if said in ("/bye", "/exit", "/quit"):
            return 0
        try:
            if said.startswith("/"):
                console.print(Text(obey(chat, said)))
            elif said:
                answer(chat, said, show, session.prompt)
        except (KeyboardInterrupt, EOFError):
            console.print("[dim]stopped[/]")
        except ForearmError as error:
            console.print(Text(str(error), style="red"))


def answer(chat: Chat, said: str, show: Show, ask: Callable[[str], str]) -> None:
    """Send a question and show the answer. The results of tools that the model calls are asked of the user.

    A question whose calls have no results leaves nothing in the conversation: servers refuse calls without results.
    Raises: ForearmError with the server's message; KeyboardInterrupt or EOFError if the user gives a result up.
    """
    before = len(chat.messages)
    calls = chat.say({"role": "user", "content": said}, show).calls
    try:
        while calls:
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": ask(f"result of {call['function']['name']}: ")}
                for call in calls
            ]
            chat.messages += results[:-1]
            calls = chat.say(results[-1], show).calls
    except (ForearmError, KeyboardInterrupt, EOFError):
        del chat.messages[before:]
        raise


def make_session() -> PromptSession[str]:
    """Return the prompt, with this user's history, if the state folder can be written.

    Enter sends; Esc Enter, or a \\ before Enter, begins another line; what is pasted keeps its lines.
    """
    history: History = InMemoryHistory()
    with contextlib.suppress(ConfigError, OSError):
        file = state_folder() / "chat_history"
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        history = _History(file)
    keys = KeyBindings()
    keys.add("enter")(send)
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    return PromptSession(
        history=history,
        key_bindings=keys,
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation="  ",
    )


def send(event: KeyPressEvent) -> None:
    """Take what is typed as the question, or begin another line behind a \\."""
    buffer = event.current_buffer
    if buffer.document.text_before_cursor.endswith("\\"):
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()
