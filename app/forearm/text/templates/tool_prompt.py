"""Write tools as text, in the format of Hermes, for models whose chat template does not support tools.

The model was not trained for it, but most instruction-tuned ones follow it, and where a call is required a grammar
imposes its format. llama.cpp's server does the same ("generic" tool calls). Source of the prompt:
NousResearch/Hermes-Function-Calling, and the chat template of Qwen/Qwen2.5-7B-Instruct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forearm.json_types import Json

_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], role: str) -> list[Json]:
    """Return the conversation with tools, calls and results as text. role: its first message gets the tools."""
    told = _PROMPT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    plain = as_text(messages)
    for number, message in enumerate(plain):
        if message["role"] == role:
            plain[number] = _appended(message, told)
            return plain
    return [{"role": role, "content": told}, *plain]


def as_text(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the conversation with calls and results as text; consecutive results become one message."""
    plain: list[Json] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            told = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if after_result:
                plain[-1] = _appended(plain[-1], told)
            else:
                plain.append({"role": "user", "content": told})
        elif message.get("tool_calls"):
            told = "\n".join(_call(call) for call in message["tool_calls"])
            rest = {key: value for key, value in message.items() if key not in ("tool_calls", "content")}
            plain.append(_appended({**rest, "content": message.get("content")}, told))
        else:
            plain.append(dict(message))
        after_result = is_result
    return plain


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    body = {"name": function.get("name"), "arguments": function.get("arguments")}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def _appended(message: Mapping[str, Any], text: str) -> Json:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n{text}" if content else text}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""
