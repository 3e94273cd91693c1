"""Commands within a conversation at the terminal: /help, /clear, /set and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forearm.cli.chat import Chat
from forearm.errors import InvalidRequest


def obey(chat: Chat, said: str) -> str:
    """Carry out a command, such as "/set temperature 0". Returns: the text to show.

    Raises: InvalidRequest for an unknown command or a wrong value; as `Client.stream`.
    """
    from difflib import get_close_matches

    name, _, rest = said.partition(" ")
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        raise InvalidRequest(f"there is no command {name}{f'; did you mean {near[0]}?' if near else '; see /help'}")
    return COMMANDS[name][1](chat, rest.strip())


def _help(_: Chat, __: str) -> str:
    told = "\n".join(f"  {usage}" for usage, _ in COMMANDS.values())
    keys = "Enter sends; Esc Enter, or \\ before Enter, begins another line; Ctrl-C stops an answer; Ctrl-D ends."
    return f"{told}\n{keys}"


def _clear(chat: Chat, _: str) -> str:
    chat.messages = [message for message in chat.messages if message["role"] == "system"]
    return "the conversation begins anew"


def _system(chat: Chat, text: str) -> str:
    if text:
        chat.system("" if text == "none" else text)
    said = [message.get("content") for message in chat.messages if message["role"] == "system"]
    return f"system message: {said[0]}" if said else "there is no system message"


def _set(chat: Chat, text: str) -> str:
    name, _, value = text.partition(" ")
    if value:
        try:
            chat.fields[name] = json.loads(value)
        except ValueError:
            chat.fields[name] = value  # a text without quotes
    elif name:
        chat.fields.pop(name, None)
    shown = {key: value for key, value in chat.fields.items() if key != "tools"}
    return "\n".join(f"{key} {json.dumps(value)}" for key, value in shown.items()) or "nothing is set"


def _save(chat: Chat, text: str) -> str:
    content = {"model": chat.client.model(), "messages": chat.messages, **chat.fields}
    try:
        _path(text, "/save").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"/save {text}: {error.strerror}") from None
    return f"saved {len(chat.messages)} messages"


def _load(chat: Chat, text: str) -> str:
    content = _json(text, "/load")
    messages = content.pop("messages", None) if isinstance(content, dict) else content
    if not isinstance(messages, list) or not all(
        isinstance(one, dict) and "role" in one and one.keys() & {"content", "tool_calls"} for one in messages
    ):
        raise InvalidRequest(f"/load {text}: it has no messages; name a file that /save wrote, or a list of messages")
    if isinstance(content, dict):
        content.pop("model", None)  # the conversation goes on with the model of now
        _check_tools(content.get("tools", []), f"/load {text}")
        chat.fields = content
    chat.messages = messages
    return f"loaded {len(messages)} messages"


def _model(chat: Chat, name: str) -> str:
    if name:
        chat.client.choose(name)
    others = ", ".join(chat.client.models())
    return f"{chat.client.model()} (the server has {others})"


def _tools(chat: Chat, text: str) -> str:
    if text == "none":
        chat.fields.pop("tools", None)
    elif text:
        tools = _json(text, "/tools")
        _check_tools(tools, f"/tools {text}")
        chat.fields["tools"] = tools
    names = [str(tool["function"].get("name")) for tool in chat.fields.get("tools", [])]
    return f"tools: {', '.join(names) or 'none'}"


def _check_tools(tools: Any, command: str) -> None:
    """Check that `tools` is a list of tools.

    Raises: InvalidRequest if it is not.
    """
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    ):
        raise InvalidRequest(f"{command}: write a JSON list of tools, as a chat's `tools` field has it")


def _image(chat: Chat, _: str) -> str:
    raise InvalidRequest(f"{chat.client.model()} takes text alone: forearm serves the text part of models that see")


def _bye(_: Chat, __: str) -> str:
    raise AssertionError("the terminal ends the conversation itself")


def _path(text: str, command: str) -> Path:
    if not text:
        raise InvalidRequest(f"name a file: {command} FILE")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InvalidRequest(f"{command} {text}: there is no such user") from None


def _json(text: str, command: str) -> Any:
    try:
        return json.loads(_path(text, command).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{command} {text}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{command} {text}: it is not JSON: {error}") from None


# The name, its line of /help, and the function: of the conversation and the words behind the name.
COMMANDS: dict[str, tuple[str, Callable[[Chat, str], str]]] = {
    "/help": ("/help                this list", _help),
    "/clear": ("/clear               forget the conversation, but not the system message", _clear),
    "/system": ("/system [TEXT]       show or set the system message; none takes it away", _system),
    "/set": ("/set [NAME [VALUE]]  show, set or unset a field of requests: /set temperature 0.7", _set),
    "/save": ("/save FILE           write the conversation and what is set", _save),
    "/load": ("/load FILE           go on with a saved conversation", _load),
    "/model": ("/model [NAME]        show or choose the model", _model),
    "/tools": ("/tools [FILE]        show tools, or read them from a JSON list; none takes them away", _tools),
    "/image": ("/image FILE          for models that see: forearm serves none yet", _image),
    "/bye": ("/bye                 end the conversation", _bye),
}
