"""Constraints on answers: grammars for the requested formats and tool calls, and the limit on reasoning tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from forearm.api.generation.request_bodies import ChatRequest, GenerationBody
from forearm.api.generation.response_format import answer_grammar
from forearm.api.generation.sampling_params import AnswerConstraint
from forearm.api.generation.tool_choice import ToolChoice
from forearm.errors import InvalidRequest
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.grammars.lark import Lark
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.text.tool_parsers.output_parser import Dialect, ParserOptions

_FIELD = "tools"
# Models put a line or two between reasoning and answer.
_LINES = {"type": "regex", "pattern": "\\n{0,2}"}


class AnswerConstraints:
    """Makes the constraint of each answer. `dialect`: the formats of the model's tool calls and reasoning."""

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer, any_whitespace: bool) -> None:
        self.dialect = dialect
        self._tokenizer = tokenizer
        self._any_whitespace = any_whitespace

    @cached_property
    def _grammars(self) -> GrammarCheck:
        return GrammarCheck(self._tokenizer)

    @cached_property
    def _reasoning_end(self) -> tuple[int, ...]:
        """Return the tokens after which an answer begins."""
        return () if self.dialect.reasoning is None else self.dialect.reasoning.end_ids(self._tokenizer)

    @cached_property
    def _forced_end(self) -> tuple[int, ...]:
        """Return the tokens that end reasoning which has used up its budget."""
        reasoning = self.dialect.reasoning
        forced = "" if reasoning is None else reasoning.forced or reasoning.ends[-1]
        return tuple(self._tokenizer.encode(forced, add_special_tokens=False))

    def parser_options(self, body: ChatRequest, choice: ToolChoice, prompt: str) -> ParserOptions:
        """Return the options by which a chat's outputs are parsed; `prompt` is its text."""
        reasoning, opened = self.dialect.reasoning, None
        if reasoning is not None and body.continue_final_message and isinstance(body.messages[-1].content, str):
            opened = reasoning.left_open(body.messages[-1].content)
        elif reasoning is not None:
            opened = reasoning.opened(prompt)
        # Required calls come in the model's own format, where that has a layout.
        calls = "auto" if choice.must_call and self.dialect.layout else choice.wanted
        return ParserOptions(calls, choice.parameters, choice.name, choice.parallel, body.include_reasoning, opened)

    async def of_format(self, body: GenerationBody) -> AnswerConstraint:
        """Return the constraint by the request's response format.

        Raises: InvalidRequest naming the field; Overloaded where too many grammars are being compiled.
        """
        return AnswerConstraint(await answer_grammar(body, self._grammars, self._any_whitespace))

    async def of_chat(self, body: ChatRequest, choice: ToolChoice, options: ParserOptions) -> AnswerConstraint:
        """Return the constraint of a chat's answer: response format, required or strict tool calls, reasoning budget.

        Raises: InvalidRequest naming the field; Overloaded where too many grammars are being compiled.
        """
        grammar = (await self.of_format(body)).grammar
        if body.tools:  # on another thread, because their schemas become grammars
            constraint = await asyncio.to_thread(self._combined, body, choice, options, grammar)
        else:
            constraint = self._combined(body, choice, options, grammar)
        if constraint.grammar is not None and constraint.grammar != grammar:
            await asyncio.wrap_future(self._grammars.start(constraint.grammar, _FIELD))
        return constraint

    def _combined(
        self, body: ChatRequest, choice: ToolChoice, options: ParserOptions, grammar: str | None
    ) -> AnswerConstraint:
        """Return the constraint; a required call takes precedence over `grammar`, that of the response format.

        Raises: InvalidRequest naming the field.
        """
        reasoning, budget = self.dialect.reasoning, body.thinking_token_budget
        if budget is not None and reasoning is None:
            raise InvalidRequest(
                "thinking_token_budget: this model has no known reasoning format; see --reasoning-parser",
                "thinking_token_budget",
            )
        if options.opened is False:  # the prompt has closed reasoning: there is nothing to end
            budget = None
        # Where reasoning always comes before the answer, the constraint holds for the answer alone. (gpt-oss' grammars
        # of calls cover all channels, that of reasoning too; so do Inkling's.)
        thinks = reasoning is not None and (bool(options.opened) or (reasoning.always and options.opened is None))
        if self.dialect.has_messages:
            thinks = options.opened is not False and not (choice.must_call or choice.is_strict)
        imposed = self._calls_grammar(body, choice, options.opened, thinks)
        if grammar is not None and not choice.must_call:
            imposed = self._either_grammar(body, choice, options.opened)
        both = choice.must_call or (choice.is_strict and self.dialect.has_messages)
        if both and grammar is not None and body.response_format is None:
            raise InvalidRequest(
                "structured_outputs cannot be combined with a tool_choice that requires a call, nor, for gpt-oss and "
                "Inkling, with a strict tool; leave one of them out",
                "structured_outputs",
            )
        if grammar is not None and reasoning is not None:
            grammar = reasoning.closed(grammar, self._grammars.special)
        whole, after = imposed or grammar, None
        if whole and thinks:
            after = self._reasoning_end
        elif whole and options.opened is None and budget is None and not self.dialect.has_messages:
            # The model may open reasoning before its answer, except with a budget: a grammar that holds from the first
            # token on leaves no way to end reasoning.
            whole = whole if reasoning is None else reasoning.before(whole, self._grammars.special)
        return AnswerConstraint(whole, after, budget, None if budget is None else self._forced_end)

    def _calls_grammar(self, body: ChatRequest, choice: ToolChoice, opened: bool | None, thinks: bool) -> str | None:
        """Return the grammar of the required calls, or of an answer that may call a strict tool.

        Raises: InvalidRequest.
        """
        layout = self.dialect.layout
        if not choice.must_call:
            return self._chosen_grammar(body, choice, opened) if choice.is_strict else None
        if layout is None:
            return self._grammar("json", choice.schema())
        before = [_LINES] if thinks else []
        if layout.messages:
            notes = [layout.messages.reasoning] if body.thinking_token_budget is None else []
            before = layout.messages.before(notes, opened)
        tag = layout.required(choice.imposed(), choice.parallel and choice.wanted == "required", before)
        return self._grammar("structural_tag", tag)

    def _chosen_grammar(
        self,
        body: ChatRequest,
        choice: ToolChoice,
        opened: bool | None,
        schema: Mapping[str, Any] | bool | None = None,
    ) -> str | None:
        """Return the grammar of an answer that may have calls, those of strict tools within their schemas; it has no
        calls if the model's format of them is unknown.

        Raises: InvalidRequest.
        """
        dialect, layout, tools = self.dialect, self.dialect.layout, choice.imposed()
        if layout is not None and layout.messages:
            thinks = body.thinking_token_budget is None
            tag = layout.chosen_messages(tools, choice.parallel, thinks, opened, schema)
            return self._grammar("structural_tag", tag)
        if layout is not None:
            return self._grammar("structural_tag", layout.chosen(tools, choice.parallel))
        if dialect.strict_calls is None:
            return None
        lark = Lark(self._grammars.special)
        return lark.text(dialect.strict_calls(lark, tools, choice.parallel))

    def _either_grammar(self, body: ChatRequest, choice: ToolChoice, opened: bool | None) -> str | None:
        """Return the grammar of an answer that is either tool calls or JSON. Raises: InvalidRequest."""
        layout, asked = self.dialect.layout, body.response_format
        if choice.wanted != "auto" or layout is None or asked is None:
            return None
        if asked.type not in ("json_object", "json_schema"):
            return None
        schema = asked.json_schema.schema_ if asked.json_schema is not None else None
        schema = {"type": "object"} if schema is None else schema
        if layout.messages:  # calls come before the answer, and the grammar holds for the answer alone
            return self._chosen_grammar(body, choice, opened, schema) if choice.is_strict else None
        tag = layout.answered(choice.imposed(), choice.parallel, schema)
        return self._grammar("structural_tag", tag)

    def _grammar(self, kind: str, value: Any) -> str:
        """Return the grammar of calls, without optional white space: models may otherwise generate it without end.
        Raises: InvalidRequest.
        """
        return grammar_of(ConstraintRequest(kind, value, _FIELD, white_space=r"\x20"), self._grammars.special)
