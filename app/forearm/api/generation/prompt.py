"""Prompts: a chat rendered by the model's template, or a text; as token ids, truncated to the context."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, NamedTuple

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.request_bodies import ChatMessageBody, ChatRequest, GenerationBody
from forearm.api.generation.unsupported import check_template
from forearm.api.http.json_size import MOST_CHARACTERS, MOST_VALUES, json_size
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.templates.chat_template import ChatTemplate, UntrustedTemplates
from forearm.text.templates.messages import ANOTHER_MESSAGE, SYSTEM_ROLES, render_chat, system_characters
from forearm.text.tokenizer.tokenizer import Tokenizer

# Longer texts are tokenized on a thread (the tokenizer releases the GIL): at about 2 MB/s a core they would delay
# every stream of this worker by more than 10 ms.
_LONG_TEXT = 20_000
# A text this many times longer than the context can hold is refused before it is tokenized; one that is truncated
# afterwards (truncate_prompt_tokens) may be longer than the context.
_HOPELESS = 4
_WAITING = 64  # requests that bring their own template; later ones wait until a thread is free


class ChatPrompt(NamedTuple):
    """A chat's prompt. system_tokens: how many of its tokens are the system prompt; 0: none, or not of use."""

    text: str
    token_ids: list[int]
    system_tokens: int


class PromptRenderer:
    """Makes prompts from chats and texts. `tool_template`: the template for chats with tools, if the model has one.

    pools: the model is a pooling model, which needs no template.
    """

    def __init__(
        self,
        config: ApiConfig,
        engine: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        tool_template: ChatTemplate | None,
        pools: bool,
    ) -> None:
        self._config = config
        self._engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self._tool_template = tool_template
        self._pools = pools

    @property
    def context(self) -> int:
        """Return the context length: the most tokens of a prompt and its answer together. Raises: EngineUnavailable."""
        return self._engine.state.max_model_len

    @cached_property
    def _untrusted_templates(self) -> UntrustedTemplates:
        return UntrustedTemplates(self.tokenizer.parts.special_tokens_map)

    @cached_property
    def _template_threads(self) -> ThreadPoolExecutor:
        """Return the threads that wait for untrusted templates, which would else block those of asyncio.to_thread."""
        return ThreadPoolExecutor(_WAITING, "template")

    async def chat(self, body: ChatRequest, tools: list[Json] | None) -> ChatPrompt:
        """Return a chat's prompt. `tools`: the tools that it lists.

        Raises: InvalidRequest, EngineUnavailable.
        """
        kwargs = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:  # "none" turns thinking off for models that can
            kwargs.setdefault("reasoning_effort", body.reasoning_effort)
            kwargs.setdefault("enable_thinking", body.reasoning_effort != "none")
        verbosity = (body.model_extra or {}).get("verbosity")
        if verbosity is not None and self.template is not None and "verbosity" in self.template.names:
            kwargs.setdefault("verbosity", verbosity)
        render = partial(
            self.render,
            chat_template=body.chat_template,
            kwargs=kwargs,
            tools=tools,
            documents=[one.model_dump() for one in body.documents] if body.documents else None,
        )
        text = await render(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        system = [*takewhile(lambda one: one.role in SYSTEM_ROLES, body.messages)]
        end = 0
        if (system or tools) and body.chat_template is None and self._engine.state.keeps_states:
            system.append(ChatMessageBody(**ANOTHER_MESSAGE))
            with suppress(InvalidRequest):
                another = await render(system, add_generation_prompt=False, continue_final_message=False)
                end = system_characters(text, another)
        ids, system_tokens = await self._encode_from(text, end, body.add_special_tokens)
        prompt = self.truncated(ids, body)
        return ChatPrompt(text, prompt, system_tokens if len(prompt) == len(ids) else 0)

    async def render(
        self,
        messages: Sequence[ChatMessageBody],
        *,
        chat_template: str | None,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        kwargs: dict[str, Any] | None,
        tools: list[Json] | None = None,
        documents: list[Json] | None = None,
    ) -> str:
        """Return the text of a chat's prompt; long ones are rendered on a thread.

        Raises: InvalidRequest.
        """
        check_template(chat_template, add_generation_prompt, continue_final_message, self._config)
        template = self.template if not tools or self._tool_template is None else self._tool_template
        if chat_template is not None:
            template = self._untrusted_templates.template(chat_template)
        elif template is None:
            other = (
                "this pooling model has no chat template; send input instead of messages"
                if self._pools
                else "this model has no chat template; use /v1/completions, or start the server with --chat-template"
            )
            raise InvalidRequest(other, "messages")
        as_parts = self._config.chat_template_content_format == "openai"
        prompted = not continue_final_message if add_generation_prompt is None else add_generation_prompt

        rendered = partial(
            render_chat,
            template,
            [_as_json(number, message) for number, message in enumerate(messages)],
            tools,
            add_generation_prompt=prompted,
            continue_final_message=continue_final_message,
            as_parts=as_parts,
            documents=documents,
            kwargs={**(self._config.default_chat_template_kwargs or {}), **(kwargs or {})},
        )
        if chat_template is not None:
            return await asyncio.get_running_loop().run_in_executor(self._template_threads, rendered)
        if json_size([messages, tools, documents, kwargs], _LONG_TEXT) < _LONG_TEXT:
            return rendered()
        return await asyncio.to_thread(rendered)

    async def encode(self, text: str, add_special_tokens: bool, characters: int = 0) -> list[int]:
        """Return a text's token ids. `characters`: of all texts of the request, where it has several.

        Raises: InvalidRequest for a text that cannot fit, before seconds are spent on tokenizing it.
        """
        return (await self._encode_from(text, 0, add_special_tokens, characters))[0]

    async def _encode_from(
        self, text: str, at: int, add_special_tokens: bool, characters: int = 0
    ) -> tuple[list[int], int]:
        """Return a text's token ids, and how many come before its character `at`. Raises: as `encode`."""
        self.check_length(text)
        if max(len(text), characters) < _LONG_TEXT:
            return self.tokenizer.encode_from(text, at, add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode_from, text, at, add_special_tokens)

    def check_length(self, text: str, param: str | None = None) -> None:
        """Refuse a text that cannot fit, before seconds are spent on tokenizing it. Raises: InvalidRequest."""
        tokens = _HOPELESS * self.context
        # The first comparison spares short texts the search for the longest token, 0.025 s in 49,000 of them.
        if len(text) > tokens and len(text) > tokens * self.tokenizer.longest_token:
            raise InvalidRequest(
                f"This model's maximum context length is {self.context} tokens. However, your text has {len(text)} "
                f"characters, and no token has more than {self.tokenizer.longest_token}. Please shorten it.",
                param,
            )

    def truncated(self, token_ids: list[int], body: GenerationBody) -> list[int]:
        """Return the prompt truncated to `truncate_prompt_tokens` (-1: to the context), by default on the left."""
        limit = body.truncate_prompt_tokens
        if limit is None:
            return token_ids
        if limit == -1:
            limit = self.context - max(body.asked_max_tokens or 1, 1)
        if len(token_ids) <= limit:
            return token_ids
        return token_ids[:limit] if body.truncation_side == "right" else token_ids[len(token_ids) - limit :]


def check_total(tokens: int) -> None:
    """Refuse a request whose texts have more tokens than may come as token ids. Raises: InvalidRequest."""
    if tokens > MOST_VALUES:
        raise InvalidRequest(f"the request's texts have more than {MOST_VALUES} tokens; send several requests")


def _as_json(number: int, message: ChatMessageBody) -> Json:
    """Return a message as a JSON object. Raises: InvalidRequest for a call with arguments that are too long."""
    plain = {**message.model_dump(exclude={"content"}), "content": message.content}
    calls = plain.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        written = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(written, str) and len(written) > MOST_CHARACTERS:
            raise InvalidRequest(
                f"messages[{number}].tool_calls has arguments of {len(written)} characters; the limit is "
                f"{MOST_CHARACTERS}",
                "messages",
            )
    return plain
