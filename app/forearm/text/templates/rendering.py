"""Render a conversation with a chat template, as transformers does, on Jinja alone.

Templates are written for the environment of `apply_chat_template` (transformers.utils.chat_template_utils): its
sandbox, its filters and globals, and the names under which it passes a message's reasoning.
tests/unit/text/test_rendering.py compares the two. transformers itself takes 0.4 s and 30 MiB to import.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.utils import Namespace

from forearm.text.templates.bounded_template import bounded_environment

# It ends with a space, so that a template which strips the message is told from one which does not.
_CONTINUED = "FOREARM_CONTINUES_HERE "
_REASONING = ("reasoning_content", "thinking", "reasoning")


def render(
    conversation: Sequence[Mapping[str, Any]],
    /,
    *,
    chat_template: str,
    continue_final_message: bool = False,
    **variables: Any,
) -> str:
    """Return the text that the template makes of a conversation.

    continue_final_message: the text ends with the last message's content, so that the model goes on from there.
    variables: names that the template may use (tools, documents, add_generation_prompt, bos_token, …)

    Raises: ValueError if the last message cannot be continued; what the template raises.
    """
    messages = plain_data(conversation)
    for number, message in enumerate(messages):
        reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
        if reasoning is not None:  # under both names that templates read; gpt-oss reads `thinking`
            messages[number] = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if not continue_final_message:
        return _compiled(chat_template).render(messages=messages, **plain_data(variables))
    content = _mark_end(messages, chat_template)
    text = _compiled(chat_template).render(messages=messages, **plain_data(variables))
    if content.strip() not in text or _CONTINUED.strip() not in text:
        raise ValueError("continue_final_message: the template leaves out or changes the final message")
    end = text.rindex(_CONTINUED.strip())
    return text[:end] if text.startswith(_CONTINUED, end) else text[:end].rstrip()


def _mark_end(messages: list[dict[str, Any]], source: str) -> str:
    """Append a marker to the last message's text, in place. Returns: the text before."""
    if not messages:
        raise ValueError("continue_final_message: the conversation is empty")
    last = messages[-1]
    content = last.get("content")
    if content is None:
        raise ValueError("continue_final_message: the final message has no content to continue")
    if "content" not in source:
        raise ValueError("continue_final_message: the template does not use the content of messages")
    if isinstance(content, str):
        last["content"] = content + _CONTINUED
        return content
    part = next((part for part in reversed(content) if "text" in part), None)
    if part is None:
        raise ValueError("continue_final_message: the final message has no text to continue")
    text = str(part["text"])
    part["text"] = text + _CONTINUED
    return text


def plain_data(value: Any) -> Any:
    """Return a copy made of None, bool, int, float, str, list, tuple and dict alone.

    Objects of other types have methods that the sandbox does not know to be dangerous. NumPy's numbers, dataclasses
    and pydantic models are converted; any other object becomes the name of its type, as in transformers.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    if isinstance(value, Mapping):
        return {plain_data(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items: Iterable[Any] = map(plain_data, value)
        return list(items) if isinstance(value, list) else tuple(items)
    numpy = sys.modules.get("numpy")  # where it is not imported, the value is none of its numbers
    if numpy is not None and isinstance(value, numpy.generic):
        return plain_data(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)):
        return plain_data(value.model_dump())
    return f"<{type(value).__name__}>"


class _GenerationBlocks(Extension):
    """`{% generation %}` … `{% endgeneration %}`, which mark an assistant's words for training; a scope here."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _TemplateDict:
    """The `dict` of templates: a type would lead them to its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _TemplateNamespace(Namespace):
    """The `namespace` of templates, without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # `self` may be one of the names
        named = dict(*rest, **kwargs)
        for name in named:
            _check_name(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}: names must not begin with an underscore")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON; Jinja's own filter would escape what HTML reserves."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


_ENVIRONMENT = bounded_environment(
    filters={"tojson": _tojson},
    globals={
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _TemplateDict(),
        "namespace": _TemplateNamespace,
    },
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_GenerationBlocks, loopcontrols],
)


@lru_cache(16)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)
