"""Translation of a /v1/messages request to a chat."""

from __future__ import annotations

import json
from typing import Any

from forearm.api.anthropic.request_bodies import CountRequest, MessagesRequest, MessagesToolChoice
from forearm.api.generation.translation import BoundedChat, chat_request
from forearm.api.generation.unsupported import ClientWarnings
from forearm.api.responses.input_items import reasoning_text, refuse, type_of
from forearm.json_types import Json

# The chat's name and the messages API's name of the same field.
NAMES = {
    "most_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}
# Prefixes of the tools that Anthropic runs, and of the blocks of their calls.
_RUN_ELSEWHERE = (
    *("web_search_", "web_fetch_", "code_execution_", "bash_code_execution_", "text_editor_code_execution_"),
    *("tool_search_tool_", "mcp_"),
)
# Tools that clients run, whose input Anthropic's models know without a schema; other models need this description.
_RUN_BY_CLIENTS = {
    "bash_": "Run a command in a bash session that stays open. Input: command; or restart: true.",
    "text_editor_": "View and edit files. Input: command, which is view, create, str_replace or insert, and path; "
    "view_range; file_text; old_str and new_str; insert_line, and insert_text or new_str.",
    "memory_": "Keep notes in files under /memories. Input: command, which is view, create, str_replace, insert, "
    "delete or rename, and path; view_range; file_text; old_str and new_str; insert_line and insert_text; old_path and "
    "new_path.",
    "computer_": "Use a computer by its screen, mouse and keyboard. Input: action, such as screenshot, left_click, "
    "type or key; coordinate; text.",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Claude Code begins its system prompt with a block of this kind, which changes with each request, so that prompts
# would never share a prefix. It is left out: it has no meaning for the model.
_BILLING = "x-anthropic-billing-header:"


class MessagesConversation:
    """Builds the messages of a chat from Anthropic's messages. Consecutive messages of one role are joined."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._names: dict[str, str] = {}  # tool names by the id of the call

    def system(self, given: str | list[Json]) -> None:
        """Add the system prompt. Raises: InvalidRequest."""
        parts = [part for part in _texts("system", given) if not part["text"].startswith(_BILLING)]
        if parts:
            self.messages.append({"role": "system", "content": _plain(parts)})

    def take(self, where: str, message: Json) -> None:
        """Add the next message; `where` names it in error messages.

        Raises: InvalidRequest.
        """
        role, content = message.get("role"), message.get("content")
        if role == "system":
            self.messages.append({"role": "system", "content": _plain(_texts(f"{where}.content", content))})
            return
        if role not in ("user", "assistant"):
            refuse(f"{where}.role: {str(role)[:100]!r} is not one of user, assistant, system", "messages")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            refuse(f"{where}.content: it must be a string or a list of blocks", "messages")
        for number, block in enumerate(blocks):
            place = f"{where}.content[{number}]"
            kind = type_of(place, block, "messages")
            if kind == "text":
                self._message(role)["content"].append(_text(place, block))
            elif kind == "tool_result" and role == "user":
                self._result(place, block)
            elif kind == "tool_use" and role == "assistant":
                self._call(place, block)
            elif kind == "thinking" and role == "assistant":
                thinking, signature = block.get("thinking"), block.get("signature")
                if not isinstance(thinking, str):
                    refuse(f"{place}.thinking: it must be a string", "messages")
                if not thinking and isinstance(signature, str) and signature.startswith("forearm-1:"):  # it was omitted
                    thinking = reasoning_text(place, {"encrypted_content": signature})
                self._message(role).setdefault("reasoning_content", []).append(thinking)
            elif kind == "redacted_thinking" and role == "assistant":
                pass  # only Anthropic can read it
            elif kind == "server_tool_use" or kind.startswith(_RUN_ELSEWHERE):
                pass  # Anthropic ran the tool in an earlier turn: the texts after it have the results
            else:
                refuse(
                    f"{place}: blocks of type {kind[:100]!r} are not supported in {role} messages; this model takes "
                    "text"
                )

    def end(self, kept_thinking: int | None) -> bool:
        """Convert contents to the form that templates expect, and keep thinking of `kept_thinking` turns (None: all).

        Returns: whether the last message is the model's own, which it is to continue.
        Raises: InvalidRequest.
        """
        if not self.messages:
            refuse("messages: at least one of them must have content", "messages")
        for message in self.messages:
            if isinstance(message["content"], list):
                message["content"] = _plain(message["content"])
        thoughtful = [message for message in self.messages if "reasoning_content" in message]
        for old, message in enumerate(reversed(thoughtful)):
            thoughts = message.pop("reasoning_content")
            if kept_thinking is None or old < kept_thinking:
                message["reasoning_content"] = "".join(thoughts)
        last = self.messages[-1]
        if last["role"] == "assistant" and "tool_calls" in last:
            refuse("messages: after tool_use must come tool_result", "messages")
        return bool(last["role"] == "assistant")

    def _message(self, role: str) -> Json:
        """Return the last message if it has this role, else a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        return self.messages[-1]

    def _call(self, where: str, block: Json) -> None:
        call_id, name, given = block.get("id"), block.get("name"), block.get("input")
        if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(given, dict | str):
            refuse(f"{where}: tool_use needs id and name as strings and input as an object", "messages")
        self._names[call_id] = name
        arguments = given if isinstance(given, str) else json.dumps(given)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._message("assistant").setdefault("tool_calls", []).append(call)

    def _result(self, where: str, block: Json) -> None:
        call_id = str(block.get("tool_use_id"))
        if call_id not in self._names:
            refuse(f"{where}.tool_use_id: no tool_use before it has the id {call_id[:100]!r}", "messages")
        content = block.get("content")
        text = _plain(_texts(f"{where}.content", "" if content is None else content))
        if block.get("is_error"):
            text = f"Error: {text}"
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": self._names[call_id], "content": text})


def chat_of(body: CountRequest, warnings: ClientWarnings, reads_reasoning: bool) -> BoundedChat:
    """Return the request as a chat. reads_reasoning: whether the model's reasoning is separated from its answer.

    Raises: InvalidRequest.
    """
    talk = MessagesConversation()
    if body.system:
        talk.system(body.system)
    for number, message in enumerate(body.messages):
        talk.take(f"messages[{number}]", message)
    prefilled = talk.end(body.kept_thinking)
    tools = _tools(body.tools or [], warnings)
    fields: Json = {
        **(body.model_extra or {}),
        "model": body.model,
        "n": 1,  # overrides the server's default
        "messages": talk.messages,
        "continue_final_message": True if prefilled else None,
        "add_generation_prompt": False if prefilled else None,
        "tools": tools or None,
        **_choice(body.tool_choice, tools),
        **_thinking(body, warnings, reads_reasoning),
        "response_format": _format(body),
    }
    if isinstance(body, MessagesRequest):
        fields |= {"most_tokens": body.max_tokens, "stop": body.stop_sequences}
        fields |= {"temperature": body.temperature, "top_k": body.top_k, "top_p": body.top_p}
    return chat_request({name: value for name, value in fields.items() if value is not None}, NAMES)


def _tools(given: list[Json], warnings: ClientWarnings) -> list[Json]:
    """Return the tools as functions of a chat, without those that Anthropic runs: agents offer these to any server.

    Raises: InvalidRequest for a tool of an unknown type, or without a name.
    """
    offered = [tool for tool in given if not str(tool.get("type")).startswith(_RUN_ELSEWHERE)]
    for other in sorted({str(tool["type"])[:100] for tool in given if tool not in offered}):
        warnings.once(f"messages: this server does not run tools of type {other}; they were left out")
    found = []
    for number, tool in enumerate(offered):
        kind, where = tool.get("type"), f"tools[{number}]"
        known = next((text for prefix, text in _RUN_BY_CLIENTS.items() if str(kind).startswith(prefix)), None)
        if known is not None:
            tool = {"description": known, "input_schema": {"type": "object"}, **tool}
        elif kind not in (None, "custom"):
            refuse(
                f"{where}: tools of type {str(kind)[:100]!r} are not supported; describe it as a custom one", "tools"
            )
        if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
            refuse(f"{where}: a tool needs a name and an input_schema", "tools")
        if tool.get("defer_loading"):
            refuse(f"{where}.defer_loading: this server has no tool search; leave it out", "tools")
        kept = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
        found.append({"type": "function", "function": {**kept, "parameters": tool["input_schema"]}})
    return found


def _choice(choice: MessagesToolChoice | None, tools: list[Json]) -> Json:
    """Return OpenAI's tool_choice of the same meaning. Raises: InvalidRequest."""
    if choice is None or (not tools and choice.type in ("auto", "none")):
        return {}
    parallel = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type != "tool":
        return {"tool_choice": _CHOICES[choice.type], **parallel}
    if choice.name not in [tool["function"]["name"] for tool in tools]:
        refuse(f"tool_choice.name: {str(choice.name)[:100]!r} is not one of tools", "tool_choice")
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **parallel}


def _thinking(body: CountRequest, warnings: ClientWarnings, reads_reasoning: bool) -> Json:
    """Return the chat's fields on thinking; none if it is left out or adaptive, so that the template decides."""
    effort = None if body.output_config is None else body.output_config.effort
    fields: Json = {} if effort is None else {"reasoning_effort": effort}
    if body.thinking is None or body.thinking.type == "adaptive":
        return fields
    enabled = body.thinking.type == "enabled"
    kwargs = (body.model_extra or {}).get("chat_template_kwargs")
    given = kwargs if isinstance(kwargs, dict) else {}
    fields["chat_template_kwargs"] = {"enable_thinking": enabled, "thinking": enabled, **given}
    if enabled and not reads_reasoning:
        # Agents enable thinking by the model's name alone, and have no setting to leave it out.
        warnings.once(
            "requests to /v1/messages enable thinking; this model has no known reasoning format (see "
            "--reasoning-parser), and answers without"
        )
        return fields
    if enabled:
        return fields | {"thinking_token_budget": body.thinking.budget_tokens}
    return fields | {"include_reasoning": False}  # in case the model thinks nevertheless


def _format(body: CountRequest) -> Json | None:
    """Return OpenAI's response_format of the same meaning. Raises: InvalidRequest."""
    given = None if body.output_config is None else body.output_config.format
    if given is None:
        return None
    if given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
        refuse("output_config.format: write {type: json_schema, schema: …}", "output_config")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given["schema"], "strict": True}}


def _texts(where: str, given: Any) -> list[Json]:
    """Return text blocks as parts of a chat message.

    Raises: InvalidRequest for any other block.
    """
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(blocks, list):
        refuse(f"{where}: it must be a string or a list of text blocks", "messages")
    return [_text(f"{where}[{number}]", block) for number, block in enumerate(blocks)]


def _text(place: str, block: Any) -> Json:
    """Return a text block as a part of a chat message. Raises: InvalidRequest for any other block."""
    kind = type_of(place, block, "messages")
    if kind != "text":
        refuse(f"{place}: blocks of type {kind[:100]!r} are not supported there; write text", "messages")
    if not isinstance(block.get("text"), str):
        refuse(f"{place}.text: it must be a string", "messages")
    return {"type": "text", "text": block["text"]}


def _plain(parts: list[Json]) -> str:
    return "\n".join(part["text"] for part in parts)
