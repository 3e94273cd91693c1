"""One turn of a chat, whatever the endpoint: checked, rendered, submitted; then its parts as they come, or whole."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from forearm import wire
from forearm.api.generation.output_stream import Answer, Piece, Tally, submit
from forearm.api.generation.reasoning_constraints import constraints, read_as
from forearm.api.generation.request_bodies import ChatRequest
from forearm.api.generation.response_format import answer_grammar, checked_grammar
from forearm.api.generation.sampling_params import sampling_params, text_options
from forearm.api.generation.serving_context import Served
from forearm.api.generation.tool_choice import check_auto, tool_choice
from forearm.api.generation.unsupported import check_chat
from forearm.api.generation.usage import Heading, heading
from forearm.api.http.caller import Caller
from forearm.api.http.http_metrics import HttpMeter, RequestType
from forearm.text.tool_parsers.output_parser import OutputParser, ParserOptions
from forearm.text.tool_parsers.parts import AnswerPart, CallBegin, ReasoningPart, TextPart, joined


@dataclass(frozen=True)
class TurnPiece:
    """What one message of the engine adds to one choice. finish_reason: stop, length, abort, or tool_calls."""

    choice: int
    parts: list[AnswerPart]
    token_ids: list[int]
    logprobs: list[wire.PositionLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None

    def after(self, before: TurnPiece) -> TurnPiece:
        """Both as one."""
        return TurnPiece(
            self.choice,
            joined([*before.parts, *self.parts]),
            [*before.token_ids, *self.token_ids],
            None if self.logprobs is None else [*(before.logprobs or ()), *self.logprobs],
            self.finish_reason,
            self.stop_reason,
        )


@dataclass
class Call:
    """One call of a tool; `arguments` is the JSON text that the model wrote, cut where the answer was."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class TurnChoice:
    """One choice with all its pieces."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[wire.PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, piece: TurnPiece) -> None:
        """The next piece."""
        for part in piece.parts:
            if isinstance(part, TextPart):
                self.text += part.text
            elif isinstance(part, ReasoningPart):
                self.reasoning += part.text
            elif isinstance(part, CallBegin):
                self.calls.append(Call(part.id, part.name))
            else:
                self.calls[part.index].arguments += part.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs or ()
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason


class Turn:
    """An open turn. `close` it in any case: that ends what the engine still computes for it."""

    def __init__(
        self,
        body: ChatRequest,
        head: Heading,
        prompt: list[int],
        prompt_text: str,
        answer: Answer,
        readers: Sequence[OutputParser],
        must_call: bool,
        meter: HttpMeter,
        request_type: RequestType,
    ) -> None:
        self._meter = meter
        self._request_type = request_type
        self._must_call = must_call
        self.body = body
        self.head = head
        self.prompt = prompt
        self.prompt_text = prompt_text
        self._answer = answer
        self._readers = readers
        self._called: set[int] = set()  # choices that have called a tool

    @property
    def tally(self) -> Tally:
        """What the turn has taken so far, in tokens; and the prompt's log-probabilities."""
        return self._answer.tally

    async def parts(self) -> AsyncIterator[TurnPiece]:
        """Until every choice has ended.

        Raises: EngineFailed, EngineUnavailable.
        """
        async for piece in self._answer.pieces():
            yield self._read(piece)

    async def whole(self) -> list[TurnChoice]:
        """Every choice, once all have ended.

        Raises: EngineFailed, EngineUnavailable.
        """
        found = [TurnChoice() for _ in self._readers]
        async for piece in self.parts():
            found[piece.choice].add(piece)
        return found

    def close(self) -> None:
        """May be called at any time, and again."""
        self._answer.generation.close()

    def _read(self, piece: Piece) -> TurnPiece:
        reader = self._readers[piece.choice]
        thought = reader.reasoning_tokens
        parts: list[AnswerPart] = []
        for number, text in enumerate(piece.texts):
            parts += reader.add(text, piece.token_ids[number : number + 1])
        if piece.finish_reason is not None:
            parts += self._left(reader, piece)
        self.tally.reasoning_tokens += reader.reasoning_tokens - thought
        if any(isinstance(part, CallBegin) for part in parts):
            self._called.add(piece.choice)
        if self.body.tools and (self.body.stream or piece.finish_reason is not None):
            in_delta = any(not isinstance(part, (TextPart, ReasoningPart)) for part in parts)
            found = in_delta if self.body.stream else piece.choice in self._called
            self._meter.tool_parser(self.head.model, bool(self.body.stream), found, self._request_type)
        # One that was cut off says so: its last call may be cut as well.
        ended = "tool_calls" if piece.finish_reason == "stop" and piece.choice in self._called else piece.finish_reason
        return TurnPiece(piece.choice, joined(parts), piece.token_ids, piece.logprobs, ended, piece.stop_reason)

    def _left(self, reader: OutputParser, piece: Piece) -> list[AnswerPart]:
        """What the reader held back: nothing but markup, where a call had to be and was cut off before its name."""
        left = reader.finish()
        is_cut = piece.finish_reason != "stop" or isinstance(piece.stop_reason, str)
        return [part for part in left if not (self._must_call and is_cut and isinstance(part, TextPart))]


async def begin(served: Served, body: ChatRequest, caller: Caller, request_type: RequestType) -> Turn:
    """Check a chat, render it and hand it to the engine.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the first
    byte, because `submit` returns only once the engine has taken the request.
    """
    check_chat(body, served.config, served.tokenizer.vocab_size)
    served.note_unknown_fields(body.model_extra)
    head = heading("chatcmpl", body, caller, served)
    text, prompt = await rendered(served, body)
    choice = tool_choice(body)
    wanted = ParserOptions(
        read_as(served, choice),
        choice.parameters,
        choice.name,
        choice.parallel,
        body.include_reasoning,
        _opened(served, body, text),
    )
    grammar = await answer_grammar(body, served)
    params = sampling_params(body, served, len(prompt), body.prompt_logprobs, grammar)
    # On another thread where there are tools: their schemas become grammars.
    imposed = partial(constraints, served, body, choice, wanted, params.grammar)
    params = replace(params, **(await asyncio.to_thread(imposed) if body.tools else imposed()))
    if params.grammar is not None and params.grammar != grammar:
        await checked_grammar(params.grammar, "tools", served)
    generation = await submit(served, body, [prompt], [params], caller)
    special = served.grammars.special
    shown = frozenset(special[mark] for mark in served.dialect.marks(wanted.calls) if mark in special)
    answer = Answer(served, generation, [prompt], params.n, dataclasses.replace(text_options(body), shown=shown))
    readers = [OutputParser(served.dialect, wanted) for _ in range(params.n)]
    head = head.under(params.grammar)
    return Turn(body, head, prompt, text, answer, readers, choice.must_call, served.meter, request_type)


async def rendered(served: Served, body: ChatRequest) -> tuple[str, list[int]]:
    """A chat's prompt, as text and as token ids.

    Raises: InvalidRequest, EngineUnavailable.
    """
    choice = tool_choice(body)
    if choice.wanted == "auto":
        off = served.config.tool_call_parser == "none"
        check_auto(served.dialect.calls is not None or off, served.config.enable_auto_tool_choice)
    hidden = choice.wanted == "none" and served.config.exclude_tools_when_tool_choice_none
    text = await served.render(
        body.messages,
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        kwargs=_template_kwargs(body, served),
        tools=None if hidden else choice.shown or None,
        documents=[one.model_dump() for one in body.documents] if body.documents else None,
    )
    return text, served.truncated(await served.encode(text, body.add_special_tokens), body)


def _opened(served: Served, body: ChatRequest, prompt: str) -> bool | None:
    """Whether the prompt leaves reasoning open, as ParserOptions has it."""
    reasoning = served.dialect.reasoning
    if reasoning is None:
        return None
    if body.continue_final_message and isinstance(body.messages[-1].content, str):
        return reasoning.left_open(body.messages[-1].content)
    return reasoning.opened(prompt)


def _template_kwargs(body: ChatRequest, served: Served) -> dict[str, object]:
    """The request's variables for the template; reasoning_effort none switches off thinking where models have that."""
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
        kwargs.setdefault("enable_thinking", body.reasoning_effort != "none")
    verbosity = (body.model_extra or {}).get("verbosity")
    if verbosity is not None and served.template is not None and "verbosity" in served.template.names:
        kwargs.setdefault("verbosity", verbosity)
    return kwargs
