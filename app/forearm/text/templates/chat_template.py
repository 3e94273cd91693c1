"""Render chat messages to a prompt with the model's Jinja template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from forearm.errors import ConfigError, InvalidRequest
from forearm.text.sandbox.fork_client import ForkClient
from forearm.text.templates.bounded_template import TooMuch
from forearm.text.templates.rendering import render

TemplateMessage = Mapping[str, Any]
# Renders one conversation with these variables; `chat_template` among them is the template's source.
Render = Callable[[list[dict[str, Any]], dict[str, Any]], str]
MAX_TEMPLATE_CHARACTERS = 64 << 10  # of a request's template; the longest one of known models has about 20,000
_MOST_SOURCE = 1 << 20  # characters of a model's template
_SHOWN_CHARACTERS = 1000  # of a template's error message
# Types of models that are published without a template: a file <type>.jinja beside this one.
_BUILT_IN = ("deepseek_v32", "deepseek_v4")
# Names that are not the template's: its input, its source (a field of its own) and transformers' argument.
_RESERVED = {"messages", "chat_template", "tokenize"}


class ChatTemplate:
    """A template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any], render: Render | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._render = render or rendered

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names in its code that are not attributes; none where it is malformed, which `render` reports."""
        return self._words[0]

    @cached_property
    def names(self) -> frozenset[str]:
        """The variables, and every attribute and string (`message.tools`, `message['tools']`)."""
        return self._words[0] | self._words[1]

    @property
    def shows_tools(self) -> bool:
        """True if it writes a request's tools into the prompt."""
        return "tools" in self.variables

    @property
    def shows_tools_of_messages(self) -> bool:
        """True if it writes a message's tools into the prompt, as Phi-4-mini's does."""
        return "tools" in self.names - self.variables

    @property
    def knows_calls(self) -> bool:
        """True if it writes earlier calls into the prompt."""
        return "tool_calls" in self.names

    @cached_property
    def _words(self) -> tuple[frozenset[str], frozenset[str]]:
        """The template's variables; its attributes and strings."""
        variables, keys, before = set(), set(), ""
        try:
            for _, kind, text in jinja2.Environment().lex(self.source):
                if kind == "string" or (kind == "name" and before == "."):
                    keys.add(text.strip("'\""))
                elif kind == "name":
                    variables.add(text)
                before = before if kind == "whitespace" else text
        except jinja2.TemplateSyntaxError:
            return frozenset(), frozenset()
        return frozenset(variables), frozenset(keys)

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of this conversation. It contains special tokens and is encoded without adding any.

        Raises: InvalidRequest for any error of the template or of the client's arguments for it.
        """
        for name in _RESERVED & (kwargs or {}).keys():
            raise InvalidRequest(f"chat_template_kwargs: {name!r} is reserved; leave it out", "chat_template_kwargs")
        # Clients send nulls ("tool_calls": null), but templates test whether a key is present. Beside tool calls the
        # content stays null, because some templates (DeepSeek's) recognize such messages by it.
        conversation = [
            {
                key: value
                for key, value in message.items()
                if value is not None or (key == "content" and message.get("tool_calls"))
            }
            for message in messages
        ]
        variables = {
            **self._special_tokens,
            **(kwargs or {}),
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None if documents is None else [dict(document) for document in documents],
            "chat_template": self.source,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        return self._render(conversation, variables)


def rendered(conversation: list[dict[str, Any]], variables: dict[str, Any]) -> str:
    """Render in this process.

    Raises: InvalidRequest; MemoryError, which the process with the memory limit handles.
    """
    try:
        return render(conversation, **variables)
    except MemoryError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise InvalidRequest(f"the chat template is malformed: {error}", "chat_template") from error
    except TooMuch as error:
        raise InvalidRequest(
            f"the chat template takes too much for these messages: {error}", "chat_template"
        ) from error
    except Exception as error:  # a template may raise anything on messages that it does not expect
        shown = f"{error}"[:_SHOWN_CHARACTERS]
        raise InvalidRequest(f"the chat template cannot render these messages: {shown}", "messages") from error


def check_rendering(template: ChatTemplate, given: bool, kwargs: Mapping[str, Any] | None = None) -> None:
    """Render a greeting, as a check of unknown files at the start.

    given: the operator chose this template, and not the model. kwargs: the operator's variables for it.
    Raises: ConfigError if even that exceeds the bounds, a variable is reserved, or a given template is malformed; a
    model's own leaves completions. Errors that the template raises are ignored: it may need more than a greeting.
    """
    try:
        template.render([{"role": "user", "content": "Hello."}], kwargs=kwargs)
    except InvalidRequest as refused:
        if refused.param == "chat_template_kwargs":
            raise ConfigError(f"--default-chat-template-kwargs: {str(refused).partition(': ')[2]}") from None
        if isinstance(refused.__cause__, TooMuch):
            raise ConfigError(f"{refused}; give another with --chat-template") from None
        if given and isinstance(refused.__cause__, jinja2.TemplateSyntaxError):
            raise ConfigError(f"--chat-template: {refused}") from None


class UntrustedTemplates:
    """Templates in requests, which anybody may have written: each runs in a fork with limits of time and memory.

    Methods may be called from any thread; rendering blocks it. The process starts with the first template.
    """

    def __init__(self, special_tokens: Mapping[str, Any]) -> None:
        self._special_tokens = dict(special_tokens)
        self._forked = ForkClient("forearm.text.templates.template_process", dict)

    def template(self, source: str) -> ChatTemplate:
        """Return the template that a request brings.

        Raises: InvalidRequest if it is too long.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidRequest(
                f"chat_template has {len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are taken",
                "chat_template",
            )
        return ChatTemplate(source, self._special_tokens, self._render)

    def _render(self, conversation: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        job = {"conversation": conversation, "variables": variables, "field": "chat_template"}
        answer: str = self._forked.start(json.dumps(job)).result()["text"]
        return answer


def find_chat_template(folder: Path, given: str | None, tokenizer_template: Any) -> str | None:
    """Return the template's source: the one given (a file or the source itself), the model folder's, the tokenizer's,
    or the one built in for the type of the model.

    `tokenizer_template` is `chat_template` of tokenizer_config.json: a string, or several by name ("default"
    counts).

    Raises: ConfigError if what was given is neither a file nor a template, or the template cannot be read.
    """
    jinja, in_json = folder / "chat_template.jinja", folder / "chat_template.json"
    if given is not None:
        if "{" not in given and "\n" not in given and not Path(given).is_file():
            raise ConfigError(
                f"--chat-template {given!r} is neither a file nor a template (which would contain a brace)"
            )
        found: Any = given if "{" in given or "\n" in given else _text_of(Path(given))
    elif jinja.is_file():
        found = _text_of(jinja)
    elif in_json.is_file():
        try:
            found = json.loads(_text_of(in_json))["chat_template"]
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise ConfigError(f"{in_json} has no chat_template: {problem!r:.200}") from None
        if not isinstance(found, str):
            raise ConfigError(f"{in_json}: chat_template is {found!r:.200}; it must be a string")
    else:
        named = isinstance(tokenizer_template, Mapping)
        found = tokenizer_template.get("default") if named else tokenizer_template
        found = _built_in(folder) if found is None else found
    if not isinstance(found, str):
        return None
    if len(found) > _MOST_SOURCE:
        raise ConfigError(f"the chat template of {folder} has {len(found)} characters; at most {_MOST_SOURCE} are read")
    try:
        found.encode()
    except UnicodeEncodeError as problem:  # JSON can write half a surrogate pair, but no tokenizer reads it
        at, shown = problem.start, ascii(found[problem.start : problem.end])
        raise ConfigError(
            f"the chat template of {folder} has {shown}, half a surrogate pair, at character {at}"
        ) from None
    return found


def _built_in(folder: Path) -> str | None:
    """Return the template for a type that is published without one. A config.json that is no JSON has no type."""
    config = folder / "config.json"
    try:
        kind = json.loads(_text_of(config)).get("model_type") if config.is_file() else None
    except (ConfigError, ValueError, AttributeError, RecursionError):
        return None
    return _text_of(Path(__file__).with_name(f"{kind}.jinja")) if kind in _BUILT_IN else None


def find_tool_template(folder: Path, given: str | None, tokenizer_template: Any) -> str | None:
    """Return the template for requests with tools, where the model has a separate one (Hermes 2 and 3, Command R)."""
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    if given is not None:
        return None
    if file.is_file():
        return _text_of(file)
    found = tokenizer_template.get("tool_use") if isinstance(tokenizer_template, Mapping) else None
    return found if isinstance(found, str) else None


def _text_of(file: Path) -> str:
    """Return the file's text.

    Raises: ConfigError.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} can't be read: {problem}") from None
