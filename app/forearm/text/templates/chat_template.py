"""Chat messages to a prompt: the model's Jinja template, run in transformers' sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2

from forearm.errors import ConfigError, InvalidRequest
from forearm.text.sandbox.forked import Forked
from forearm.text.templates.bounded_template import TooMuch, bounded

TemplateMessage = Mapping[str, Any]
# Renders one conversation with these variables, of which `chat_template` is the source.
Render = Callable[[list[dict[str, Any]], dict[str, Any]], str]
MAX_TEMPLATE_CHARACTERS = 64 << 10  # of a request's own; the longest of known models has some 20,000
_MOST_SOURCE = 1 << 20  # characters of a model's own
_SHOWN_CHARACTERS = 1000  # of what a template raises
# Names that rendering itself gives the template.
_TAKEN = {"messages", "conversations", "return_assistant_tokens_mask"}


class ChatTemplate:
    """One template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any], render: Render | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._render = render or rendered

    @cached_property
    def variables(self) -> frozenset[str]:
        """Every name in its code that is no attribute; none where it is malformed, which `render` says."""
        return self._words[0]

    @cached_property
    def names(self) -> frozenset[str]:
        """These, and every attribute and string (`message.tools`, `message['tools']`)."""
        return self._words[0] | self._words[1]

    @property
    def shows_tools(self) -> bool:
        """Whether it shows a request's tools to the model."""
        return "tools" in self.variables

    @property
    def shows_tools_of_messages(self) -> bool:
        """Whether it shows those that a message brings, as Phi-4-mini's does."""
        return "tools" in self.names - self.variables

    @property
    def knows_calls(self) -> bool:
        """Whether it shows calls that were made earlier."""
        return "tool_calls" in self.names

    @cached_property
    def _words(self) -> tuple[frozenset[str], frozenset[str]]:
        """Variables; attributes and strings."""
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
        """The prompt of this conversation; special tokens are in it, so it is encoded without adding any.

        Raises: InvalidRequest for whatever the template, or what the client asks of it, makes go wrong.
        """
        for name in _TAKEN & (kwargs or {}).keys():
            raise InvalidRequest(
                f"chat_template_kwargs: {name!r} is not the template's to be given", "chat_template_kwargs"
            )
        conversation = [_present(message) for message in messages]
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
    """Renders here and now.

    Raises: InvalidRequest; MemoryError, which is for who sets the limit.
    """
    try:
        return str(_renderer()([conversation], **variables)[0][0])
    except MemoryError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise InvalidRequest(f"the chat template is malformed: {error}", "chat_template") from error
    except TooMuch as error:
        raise InvalidRequest(
            f"the chat template takes too much for these messages: {error}", "chat_template"
        ) from error
    except Exception as error:  # a template is a program: it may raise anything on messages it did not expect
        shown = f"{error}"[:_SHOWN_CHARACTERS]
        raise InvalidRequest(f"the chat template cannot render these messages: {shown}", "messages") from error


@lru_cache(1)
def _renderer() -> Callable[..., Any]:
    """Return transformers' rendering, with bounds (bounded_template.py) for whatever it compiles.

    Here: importing transformers takes most of a second, and a start need not wait for it.
    """
    module: Any = import_module("transformers.utils.chat_template_utils")
    plain = module._compile_jinja_template.__wrapped__
    module._compile_jinja_template = lru_cache(lambda source: bounded(plain(""), source))
    render: Callable[..., Any] = module.render_jinja_template
    return render


def check_rendering(template: ChatTemplate) -> None:
    """Render a greeting, as a start with unknown files does.

    Raises: ConfigError if not even that stays within the bounds. What the template raises itself is for requests: it
    may want more than a greeting.
    """
    try:
        template.render([{"role": "user", "content": "Hello."}])
    except InvalidRequest as refused:
        if isinstance(refused.__cause__, TooMuch):
            raise ConfigError(f"{refused}; give another with --chat-template") from None


def prepare_rendering() -> None:
    """Import what the first rendering would."""
    _renderer()


class UntrustedTemplates:
    """Templates that requests bring: programs of anybody, each run in a fork with limits of time and memory.

    May be called from any thread; rendering blocks it. The process for it begins with the first one.
    """

    def __init__(self, special_tokens: Mapping[str, Any]) -> None:
        self._special_tokens = dict(special_tokens)
        self._forked = Forked("forearm.text.templates.template_process", dict)

    def template(self, source: str) -> ChatTemplate:
        """Raises: InvalidRequest if it is too long."""
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


def _present(message: TemplateMessage) -> dict[str, Any]:
    """The message without nulls: clients send them ("tool_calls": null); templates take any present key for a value.

    Beside calls of tools the content stays null: that is how some templates (DeepSeek's) know such messages.
    """
    called = bool(message.get("tool_calls"))
    return {key: value for key, value in message.items() if value is not None or (called and key == "content")}


def find_chat_template(folder: Path, given: str | None, tokenizer_template: Any) -> str | None:
    """The template's source: the one given (a file or the source itself), the model folder's, or the tokenizer's.

    `tokenizer_template` is `chat_template` of tokenizer_config.json: a string, or several by name ("default" counts).
    Raises: ConfigError if what was given is neither a file nor a template.
    """
    found = _given(given) if given is not None else _own_template(folder, tokenizer_template)
    if found is not None and len(found) > _MOST_SOURCE:
        raise ConfigError(f"the chat template of {folder} has {len(found)} characters; at most {_MOST_SOURCE} are read")
    return None if found is None else encodable(found, f"the chat template of {folder}")


def encodable(text: str, what: str) -> str:
    """The text, where it is Unicode.

    Raises: ConfigError for half a surrogate pair, which JSON can write and no tokenizer reads.
    """
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        shown = ascii(text[problem.start : problem.end])
        raise ConfigError(f"{what} has {shown}, half a surrogate pair, at character {problem.start}") from None
    return text


def _own_template(folder: Path, tokenizer_template: Any) -> str | None:
    for name in ("chat_template.jinja", "chat_template.json"):
        file = folder / name
        if file.is_file():
            text = _text_of(file)
            return text if name.endswith(".jinja") else _within(file, text)
    if isinstance(tokenizer_template, Mapping):
        tokenizer_template = tokenizer_template.get("default")
    return tokenizer_template if isinstance(tokenizer_template, str) else None


def find_tool_template(folder: Path, given: str | None, tokenizer_template: Any) -> str | None:
    """The template for requests with tools, where the model has one of its own (Hermes 2 and 3, Command R)."""
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    if given is not None:
        return None
    if file.is_file():
        return _text_of(file)
    found = tokenizer_template.get("tool_use") if isinstance(tokenizer_template, Mapping) else None
    return found if isinstance(found, str) else None


def _given(given: str) -> str:
    if "{" in given or "\n" in given:
        return given
    file = Path(given)
    if not file.is_file():
        raise ConfigError(f"--chat-template {given!r} is neither a file nor a template (a template has a brace in it)")
    return _text_of(file)


def _text_of(file: Path) -> str:
    """Raises: ConfigError."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} can't be read: {problem}") from None


def _within(file: Path, text: str) -> str:
    """The template in chat_template.json. Raises: ConfigError."""
    try:
        found = json.loads(text)["chat_template"]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise ConfigError(f"{file} has no chat_template: {problem!r:.200}") from None
    if not isinstance(found, str):
        raise ConfigError(f"{file}: chat_template is {found!r:.200}; it should be a string")
    return found
