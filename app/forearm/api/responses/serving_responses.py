"""Submission of /v1/responses requests to the engine, and the response object that each begins with."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from forearm.api.generation.chat_turn import ServingChat
from forearm.api.generation.prompt import PromptRenderer
from forearm.api.generation.response_bodies import encoder
from forearm.api.generation.served_model import ServedModel
from forearm.api.generation.translation import BoundedChat, complaining
from forearm.api.generation.unsupported import ClientWarnings
from forearm.api.generation.usage import token_names
from forearm.api.http.caller import Caller
from forearm.api.responses.background import Job
from forearm.api.responses.output_items import ResponseForm, ResponseProgress
from forearm.api.responses.request_bodies import ENCRYPTED, ResponsesRequest
from forearm.api.responses.store import ResponseStore
from forearm.api.responses.to_chat import NAMES, ResponsesQuestion, chat_of
from forearm.config.api_config import ApiConfig
from forearm.json_types import Json

_FUNCTION: Json = {"parameters": None, "strict": None}  # members that OpenAI always returns with a function


class ServingResponses:
    """Begins responses. `defaults`: sampling parameters that apply where a request sets none."""

    def __init__(
        self,
        config: ApiConfig,
        model: ServedModel,
        prompts: PromptRenderer,
        defaults: Mapping[str, Any],
        chat: ServingChat,
        warnings: ClientWarnings,
    ) -> None:
        self._config = config
        self._model = model
        self._prompts = prompts
        self._defaults = defaults
        self._chat = chat
        self._warnings = warnings

    async def begin(self, question: ResponsesQuestion, caller: Caller, store: ResponseStore | None, owner: str) -> Job:
        """Submit the request to the engine.

        Raises: InvalidRequest, ModelNotFound, Overloaded, EngineUnavailable.
        """
        body = question.body
        chat = await chat_of(question, self._chat, self._prompts)
        reply = self._reply(body, chat, store is not None)
        for warning in question.tools.warnings:
            self._warnings.once(f"responses: {warning}")
        if question.tools.warnings:
            reply["warnings"] = question.tools.warnings
        if store is not None:
            store.check(len(encoder.encode(reply)) + len(encoder.encode(question.own)))
        turn = await complaining(self._chat.begin(chat, caller, "responses"), NAMES)
        if turn.head.warnings is not UNSET:
            reply["warnings"] = turn.head.warnings
        form = ResponseForm(
            names=token_names(chat, self._prompts.tokenizer, self._config),
            logprobs=body.wants_logprobs,
            summary=body.reasoning is not None and body.reasoning.summarized,
            packed=ENCRYPTED in (body.include or ()),
            tools=question.tools,
            obfuscated=body.stream_options is not None and body.stream_options.include_obfuscation,
        )
        progress = ResponseProgress(reply, form, told=bool(body.stream or body.background))
        return Job(turn, progress, owner, question.own, store, caller.request_id)

    def _reply(self, body: ResponsesRequest, chat: BoundedChat, stored: bool) -> Json:
        """Return the response object of a new request: its parameters, with defaults filled in.

        Raises: ModelNotFound.
        """
        reasoning, text = body.reasoning, body.text
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "queued" if body.background else "in_progress",
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": self._model.name(body.model),
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary or reasoning.generate_summary,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": stored,
            "temperature": self._default("temperature") if chat.temperature is None else chat.temperature,
            "text": {
                "format": {"type": "text"} if text is None or text.format is None else text.format,
                "verbosity": "medium" if text is None or text.verbosity is None else text.verbosity,
            },
            "tool_choice": body.tool_choice or "auto",
            "tools": [_FUNCTION | tool if tool.get("type") == "function" else tool for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self._default("top_p") if chat.top_p is None else chat.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
        }

    def _default(self, name: str) -> float:
        return float(self._defaults.get(name, 1.0))
