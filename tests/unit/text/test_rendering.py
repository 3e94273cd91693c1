"""Conversations are rendered as transformers' apply_chat_template renders them."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2.exceptions import SecurityError
from pydantic import BaseModel
from tests.api.letters import TEMPLATE
from tests.unit.text.test_bounded_template import ORDINARY
from transformers.utils.chat_template_utils import render_jinja_template

from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.templates.rendering import plain_data, render

CHATML = (
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- for tool in tools %}\n        {{- '\\n' }}\n"
    "        {{- tool | tojson }}\n    {%- endfor %}\n    {{- '<|im_end|>\\n' }}\n{%- endif %}\n"
    "{% set ns = namespace(last=messages|length - 1, seen=false) %}\n"
    "{% for message in messages %}\n"
    "    {% if message.role == 'user' and not ns.seen %}{% set ns.seen = true %}{% endif %}\n"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.reasoning_content is string %}<think>{{ message.reasoning_content | trim }}</think>{% endif %}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif %}"
    "{% for call in message.tool_calls %}{{ call.function.arguments | tojson(indent=2) }}{% endfor %}"
    "{{ '<|im_end|>' + '\\n' }}{% if loop.last and ns.last > 0 %}{% break %}{% endif %}\n"
    "{% endfor %}\n{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)
TRIMMED = "{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}[end]\n{% endfor %}"
HARMONY = "{% for m in messages %}{{ m.thinking or '-' }}|{{ m.reasoning_content or '-' }}|{{ m.content }};{% endfor %}"
SETTINGS = (
    "{{ dict(a=1, b=messages|length) }}{{ dict.fromkeys(['a'], 2) }}{{ strftime_now('%Y') }}{{ bos_token }}{{ x }}"
)
BLOCKS = (
    "{% generation %}{% set a = 1 %}{{ messages[0].role }}{% endgeneration %}{{ a is defined }}{{ loop is defined }}"
)
JSON = (
    '{{ messages[0] | tojson(separators=(",", ":"), sort_keys=true) }}{{ "<é>" | tojson }}'
    '{{ "é" | tojson(ensure_ascii=true) }}'
)
DEMO = json.loads((Path(DEMO_MODEL) / "tokenizer_config.json").read_text())["chat_template"]
TEMPLATES = [TEMPLATE, CHATML, TRIMMED, HARMONY, SETTINGS, BLOCKS, JSON, DEMO, *ORDINARY]

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " What is <ice>? "}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b  "},
    ],
    [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}],
        },
        {
            "role": "assistant",
            "content": "x",
            "reasoning": "why",
            "tool_calls": [{"function": {"arguments": {"ä": [1.5]}}}],
        },
        {"role": "assistant", "thinking": "so", "content": "y"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def outcome(make: Any) -> tuple[str, str]:
    try:
        return "text", make()
    except Exception as error:
        return "error", str(error) if "TemplateError" in type(error).__name__ else ""


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS, ids=["one", "three", "parts"])
@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "tools": TOOLS, "bos_token": "<s>", "x": {"y": (1, None)}},
        {"continue_final_message": True},
    ],
    ids=["ask", "tools", "continue"],
)
def test_a_conversation_is_rendered_as_transformers_renders_it(
    template: str, chat: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    ours = outcome(lambda: render(chat, chat_template=template, **options))
    theirs = outcome(lambda: render_jinja_template([chat], chat_template=template, **options)[0][0])

    assert ours == theirs


class Colour(str, enum.Enum):
    RED = "red"


@dataclass
class Part:
    text: str
    sizes: tuple[int, ...]


class Message(BaseModel):
    role: str = "user"
    content: str = "hello"


class Sly:
    def write(self) -> str:
        return "anything"


def test_a_template_sees_plain_data_alone() -> None:
    given = {
        "a": Colour.RED,
        "b": np.float32(1.5),
        "c": Part("t", (1,)),
        "d": Message(),
        "e": Sly(),
        "f": np.bool_(False),
    }

    plain = plain_data(given)

    assert plain == {
        "a": "red",
        "b": 1.5,
        "c": {"text": "t", "sizes": (1,)},
        "d": {"role": "user", "content": "hello"},
        "e": "<Sly>",
        "f": False,
    }
    assert {type(value) for value in plain.values()} == {str, float, dict, bool}


@pytest.mark.parametrize(
    "source", ["{% set n = namespace(__class__=1) %}", "{% set n = namespace() %}{% set n._a = 1 %}"]
)
def test_a_namespace_has_no_hidden_names(source: str) -> None:
    with pytest.raises(SecurityError, match="must not begin with an underscore"):
        render(CHATS[0], chat_template=source)


@pytest.mark.parametrize(
    ("chat", "template", "words"),
    [
        ([], TRIMMED, "the conversation is empty"),
        ([{"role": "user"}], TRIMMED, "has no content to continue"),
        (CHATS[0], "{{ messages[0].role }}", "does not use the content"),
        (CHATS[0], "{% if false %}{{ messages[0].content }}{% endif %}", "leaves out or changes the final message"),
        ([{"role": "user", "content": [{"type": "image"}]}], TRIMMED, "has no text to continue"),
    ],
)
def test_what_cannot_be_continued_is_told(chat: list[dict[str, Any]], template: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        render(chat, chat_template=template, continue_final_message=True)
