"""One turn of a chat, for every chat endpoint: check, render and submit it, then read its pieces or whole choices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from forearm.api.generation.output_stream import OutputStream, OutputStreams
from forearm.api.generation.prompt import PromptRenderer
from forearm.api.generation.reasoning_constraints import AnswerConstraints
from forearm.api.generation.request_bodies import ChatRequest
from forearm.api.generation.sampling_params import max_tokens, sampling_params, text_options
from forearm.api.generation.served_model import Heading, ServedModel
from forearm.api.generation.tool_choice import ToolChoice, tool_choice
from forearm.api.generation.unsupported import ClientWarnings, check_generation, check_template
from forearm.api.http.caller import Caller
from forearm.api.http.http_metrics import HttpMeter, RequestType
from forearm.config.api_config import TOOL_CALL_PARSERS, ApiConfig
from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.outputs import Choice, OutputReader, Piece
from forearm.text.tool_parsers.output_parser import OutputParser
from forearm.text.tool_parsers.parts import ReasoningPart, TextPart


class Turn:
    """An open turn. `close` it in any case: that ends what the engine still computes for it."""

    def __init__(
        self,
        body: ChatRequest,
        head: Heading,
        prompt: list[int],
        prompt_text: str,
        stream: OutputStream,
        meter: HttpMeter,
        request_type: RequestType,
    ) -> None:
        self.body = body
        self.head = head
        self.prompt = prompt
        self.prompt_text = prompt_text
        self.tally = stream.tally
        self.close = stream.close
        self._stream = stream
        self._meter = meter
        self._request_type = request_type

    def pieces(self) -> AsyncIterator[Piece]:
        """Return the stream of pieces, until every choice has ended.

        Raises (when iterated): EngineFailed, EngineUnavailable.
        """
        return self._counted() if self.body.tools else self._stream.pieces()

    async def whole(self) -> list[Choice]:
        """Return every choice, once all have ended.

        Raises: EngineFailed, EngineUnavailable.
        """
        return await self._stream.choices(self.pieces())

    async def _counted(self) -> AsyncIterator[Piece]:
        """Yield the pieces, and count the tool parser's runs: one per piece of a stream, else one per whole choice."""
        streams, called = bool(self.body.stream), set[int]()
        async for piece in self._stream.pieces():
            has_call = any(not isinstance(part, (TextPart, ReasoningPart)) for part in piece.parts)
            if has_call:
                called.add(piece.choice)
            if streams or piece.finish_reason is not None:
                found = has_call if streams else piece.choice in called
                self._meter.parser_series(self.head.model, streams, found, self._request_type).inc()
            yield piece


class ServingChat:
    """Begins turns of chats: every chat endpoint's way to the engine."""

    def __init__(
        self,
        config: ApiConfig,
        model: ServedModel,
        prompts: PromptRenderer,
        constraints: AnswerConstraints,
        defaults: Mapping[str, Any],
        streams: OutputStreams,
        warnings: ClientWarnings,
        meter: HttpMeter,
    ) -> None:
        self._config = config
        self._model = model
        self._prompts = prompts
        self._constraints = constraints
        self._defaults = defaults
        self._streams = streams
        self._warnings = warnings
        self._meter = meter

    @property
    def reads_reasoning(self) -> bool:
        """Return whether the model's reasoning is separated from its answer."""
        return self._constraints.dialect.reasoning is not None

    async def begin(self, body: ChatRequest, caller: Caller, request_type: RequestType) -> Turn:
        """Check a chat, render it and hand it to the engine.

        Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the
        first byte, because `open` returns only once the engine has taken the request.
        """
        tokenizer, constraints = self._prompts.tokenizer, self._constraints
        check_generation(body, self._config, tokenizer.vocab_size)
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        check_template(body.chat_template, body.add_generation_prompt, body.continue_final_message, self._config)
        self._warnings.unknown_fields(body.model_extra)
        head = self._model.heading("chatcmpl", body, caller)
        choice = self._tool_choice(body)
        text, prompt, system_tokens = await self._prompts.chat(body, self._told_tools(choice))
        options = constraints.parser_options(body, choice, text)
        constraint = await constraints.of_chat(body, choice, options)
        limit = max_tokens(body, len(prompt), self._prompts.context, self._defaults.get("max_tokens"))
        params = sampling_params(body, limit, self._defaults, tokenizer, constraint, body.prompt_logprobs)
        marks = constraints.dialect.marks(options.calls)  # the parser needs to see them in the text
        texts = text_options(body, frozenset(i for i in tokenizer.special_ids if tokenizer.added[i] in marks))
        readers = [
            OutputReader(tokenizer, prompt, texts, OutputParser(constraints.dialect, options), choice.must_call)
            for _ in range(params.n)
        ]
        stream = await self._streams.open(body, [prompt], [params], readers, caller, system_tokens)
        return Turn(body, head.under(params.grammar), prompt, text, stream, self._meter, request_type)

    async def prompt(self, body: ChatRequest) -> list[int]:
        """Return the token ids of a chat's prompt, without submitting it.

        Raises: InvalidRequest, EngineUnavailable.
        """
        return (await self._prompts.chat(body, self._told_tools(self._tool_choice(body)))).token_ids

    def _tool_choice(self, body: ChatRequest) -> ToolChoice:
        """Return how the answer may call tools. Raises: InvalidRequest."""
        choice = tool_choice(body)
        if choice.wanted != "auto":
            return choice
        if not self._config.enable_auto_tool_choice:
            raise InvalidRequest(
                '"auto" tool choice is off on this server (--no-enable-auto-tool-choice); ask for required, a function '
                "by its name, or none",
                "tool_choice",
            )
        if self._constraints.dialect.calls is None and self._config.tool_call_parser != "none":  # none: calls stay text
            raise InvalidRequest(
                "this model's chat template does not tell in which format the model calls tools; start the server with "
                f"--tool-call-parser ({', '.join(TOOL_CALL_PARSERS)}), or ask for tool_choice required or a function "
                "by its name",
                "tools",
            )
        return choice

    def _told_tools(self, choice: ToolChoice) -> list[Json] | None:
        """Return the tools that the prompt lists."""
        hidden = choice.wanted == "none" and self._config.exclude_tools_when_tool_choice_none
        return None if hidden else choice.shown or None
