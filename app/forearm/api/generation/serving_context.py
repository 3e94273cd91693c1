"""What one worker serves: a model's names, its text side, its engines and its defaults."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from forearm import __version__
from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.request_bodies import GenerationBody, Message
from forearm.api.generation.template_messages import conversation
from forearm.api.generation.unsupported import IGNORED, check_template
from forearm.api.http.body_memory import BodyMemory
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.http.json_size import json_size
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest, ModelNotFound
from forearm.model.families.generation import sampling_defaults
from forearm.model.pooling.pooling import PoolingPlan, asked_of, pooling_plan
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.templates.chat_template import (
    ChatTemplate,
    UntrustedTemplates,
    check_rendering,
    find_chat_template,
    find_tool_template,
)
from forearm.text.tokenizer.fill_in_middle import Infill, infill_of
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from forearm.text.tool_parsers.output_parser import Dialect, find_dialect

# Longer texts are tokenised on a thread (the tokenizer lets go of the GIL): at some 2 MB/s a core they would hold up
# every stream of this worker for more than 10 ms.
_LONG_TEXT = 20_000
# So many times what the context can hold is not tokenised at all; what is cut afterwards (truncate_prompt_tokens) may
# be longer than the context.
_HOPELESS = 4
_WAITING = 64  # requests with a template of their own; later ones wait until a thread waits for nobody
_UNKNOWN_FIELDS = 1000  # clients choose their names: what is kept of them has an end

log = logging.getLogger(__name__)


@dataclass
class Served:
    """Shared by all requests of a worker."""

    config: ApiConfig
    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: dict[str, Any]
    engine: EngineClient
    dialect: Dialect = field(default_factory=Dialect)
    tool_template: ChatTemplate | None = None  # for requests with tools, where the model has one of its own
    created: int = field(default_factory=lambda: int(time.time()))
    meter: HttpMeter = field(default_factory=HttpMeter)
    _unknown_fields: set[str] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may call the model; the first one is used in answers."""
        return self.config.served_model_name or (self.config.model or Path(self.config.model_folder).name,)

    @cached_property
    def fingerprint(self) -> str | None:
        """Changes with what may change answers: software, model and how it is computed; or as the operator says."""
        if self.config.fingerprint_mode in ("custom", "none"):
            return self.config.fingerprint_value if self.config.fingerprint_mode == "custom" else None
        about = f"{__version__} {self.config.model_folder} {self.config.computed_as} {self.defaults}"
        digest = hashlib.sha256(about.encode()).hexdigest()
        return f"forearm-{__version__}-{digest[:8]}"

    @cached_property
    def body_memory(self) -> BodyMemory:
        """The bytes of bodies that this worker holds."""
        return BodyMemory(self.config.held_body_bytes)

    @cached_property
    def grammars(self) -> GrammarCheck:
        """Makes grammars of what answers are asked to look like."""
        return GrammarCheck(self.tokenizer)

    @cached_property
    def untrusted_templates(self) -> UntrustedTemplates:
        """Renders templates that requests bring."""
        return UntrustedTemplates(self.tokenizer.backend.special_tokens_map)

    @cached_property
    def _template_threads(self) -> ThreadPoolExecutor:
        """They wait for those, so that nobody else's thread does."""
        return ThreadPoolExecutor(_WAITING, "template")

    @cached_property
    def reasoning_end(self) -> tuple[int, ...]:
        """The tokens after which an answer begins."""
        return () if self.dialect.reasoning is None else self.dialect.reasoning.end_ids(self.tokenizer)

    @cached_property
    def forced_end(self) -> tuple[int, ...]:
        """The tokens that end reasoning which takes too long."""
        return () if self.dialect.reasoning is None else self.dialect.reasoning.forced_ids(self.tokenizer)

    @cached_property
    def infill(self) -> Infill | None:
        """How the model fills in the middle; None: it does not."""
        return infill_of(self.tokenizer)

    def model_name(self, asked: str | None) -> str:
        """The name for the answer.

        Raises: ModelNotFound.
        """
        if asked is not None and asked not in self.names:
            raise ModelNotFound(f"The model `{asked}` does not exist.")
        return asked or self.names[0]

    def say_once(self, message: str) -> None:
        """Log what clients do again and again, and this server does otherwise than they may think."""
        if message not in self._said and len(self._said) < _UNKNOWN_FIELDS:
            self._said.add(message)
            log.warning("%s", message)

    def note_unknown_fields(self, extra: dict[str, Any] | None) -> None:
        """Each field this server does not know is counted, and logged the first time it comes."""
        for name in (extra or {}).keys() - IGNORED:
            if name not in self._unknown_fields:
                if len(self._unknown_fields) == _UNKNOWN_FIELDS:
                    continue
                self._unknown_fields.add(name)
                log.warning("requests have a field %.100r, which this server does not know and does not read", name)
            self.meter.count("forearm:unknown_request_fields", name[:100])

    @cached_property
    def pooling(self) -> PoolingPlan | None:
        """What the model makes of texts; None: it generates.

        Raises: ConfigError.
        """
        folder = Path(self.config.model_folder)
        if not (folder / "config.json").is_file():  # a .gguf file
            return None
        return pooling_plan(folder, asked_of(self.config))

    def check_length(self, text: str, param: str | None = None) -> None:
        """Raises: InvalidRequest for a text that cannot fit, before a core is spent for seconds on reading it."""
        context = self.engine.state.max_model_len
        if len(text) > _HOPELESS * context * self.tokenizer.longest_token:
            raise InvalidRequest(
                f"This model's maximum context length is {context} tokens. However, your text has {len(text)} "
                f"characters, and no token has more than {self.tokenizer.longest_token}. Please shorten it.",
                param,
            )

    async def encode(self, text: str, add_special_tokens: bool, characters: int = 0) -> list[int]:
        """Token ids. `characters`: of all texts of the request, where it has several.

        Raises: InvalidRequest for a text that cannot fit, before a core is spent for seconds on reading it.
        """
        self.check_length(text)
        if max(len(text), characters) < _LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)

    async def render(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        kwargs: dict[str, Any] | None,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt of a chat; long ones are rendered on a thread.

        Raises: InvalidRequest.
        """
        check_template(chat_template, add_generation_prompt, continue_final_message, self.config)
        template = self._template(chat_template, tools)
        as_parts = self.config.chat_template_content_format == "openai"
        prompted = not continue_final_message if add_generation_prompt is None else add_generation_prompt

        def rendered(tools_in: str, arguments: str, beside_calls: str | None) -> str:
            return template.render(
                conversation(messages, tools, template, as_parts, tools_in, arguments, beside_calls),
                add_generation_prompt=prompted,
                continue_final_message=continue_final_message,
                tools=tools if template.shows_tools else None,
                documents=documents,
                kwargs={**(self.config.default_chat_template_kwargs or {}), **(kwargs or {})},
            )

        # Some templates know no system's message; DeepSeek's take arguments as they were written. Qwen3's first ones,
        # which GGUF files still carry, look into the content beside calls.
        tells_of_tools = bool(tools) and not template.shows_tools  # a message does
        second = ("user", "object", None) if tells_of_tools else ("system", "text", None)
        forms = (("system", "object", None), second, ("system", "object", ""))
        in_some_form = partial(_in_some_form, rendered, forms)
        if chat_template is not None:
            return await asyncio.get_running_loop().run_in_executor(self._template_threads, in_some_form)
        if json_size([messages, tools, documents, kwargs], _LONG_TEXT) < _LONG_TEXT:
            return in_some_form()
        return await asyncio.to_thread(in_some_form)

    def _template(self, given: str | None, tools: list[dict[str, Any]] | None) -> ChatTemplate:
        """The request's own, or the model's for such requests. Raises: InvalidRequest."""
        if given is not None:
            return self.untrusted_templates.template(given)
        template = self.template if not tools or self.tool_template is None else self.tool_template
        if template is None and self.pooling is not None:
            raise InvalidRequest(
                "this model has no chat template, and it makes vectors of texts: send input", "messages"
            )
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions, or start the server with --chat-template",
                "messages",
            )
        return template

    def truncated(self, token_ids: list[int], body: GenerationBody) -> list[int]:
        """The prompt cut to `truncate_prompt_tokens` (-1: what the context holds), on the left by default."""
        limit = body.truncate_prompt_tokens
        if limit is None:
            return token_ids
        if limit == -1:
            limit = self.engine.state.max_model_len - max(body.asked_max_tokens or 1, 1)
        if len(token_ids) <= limit:
            return token_ids
        return token_ids[:limit] if body.truncation_side == "right" else token_ids[len(token_ids) - limit :]


def _in_some_form(rendered: Callable[[str, str, str | None], str], forms: Sequence[tuple[str, str, str | None]]) -> str:
    """A prompt in the first form that the template takes.

    Raises: InvalidRequest, of the first form.
    """
    try:
        return rendered(*forms[0])
    except InvalidRequest as error:
        if error.param != "messages" or len(forms) == 1:
            raise
        try:
            return _in_some_form(rendered, forms[1:])
        except InvalidRequest:
            raise error from None


def load_served(config: ApiConfig) -> Served:
    """Read from the model's folder all that HTTP needs; the engine's connections are not begun yet.

    Raises: ConfigError.
    """
    folder = Path(config.model_folder)
    tokenizer_folder = Path(config.tokenizer) if config.tokenizer else folder
    tokenizer = load_tokenizer(tokenizer_folder, config.weight_cache)
    template, tool_template = (
        None if source is None else ChatTemplate(source, tokenizer.backend.special_tokens_map)
        for find in (find_chat_template, find_tool_template)
        for source in [find(tokenizer_folder, config.chat_template or None, tokenizer.backend.chat_template)]
    )
    if not tokenizer.is_cached:  # else the same files were looked at before
        for one in (template, tool_template):
            if one is not None:
                check_rendering(one)
    dialect = _dialect(config, tool_template or template, tokenizer)
    engine, meter = (
        EngineClient(config.engine_sockets, config.execute_model_timeout_s),
        HttpMeter(config.metrics_folder),
    )
    defaults = sampling_defaults(folder, config.generation_config, config.override_generation_config)
    return Served(config, tokenizer, template, defaults, engine, dialect, tool_template, meter=meter)


def _dialect(config: ApiConfig, template: ChatTemplate | None, tokenizer: Tokenizer) -> Dialect:
    """How the model writes calls and reasoning. Where the template knows no tools, Hermes' prompt shows them."""
    calls = config.tool_call_parser
    if template is not None and not calls and not (template.shows_tools or template.shows_tools_of_messages):
        calls = "hermes"
    source = "" if template is None else template.source
    return find_dialect(source, calls, config.reasoning_parser, frozenset(tokenizer.added.values()))
