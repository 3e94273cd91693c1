"""What reasoning and required calls ask of the engine: constraints on the answer alone, and an end to long thought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forearm.api.generation.request_bodies import ChatRequest
from forearm.api.generation.serving_context import Served
from forearm.api.generation.tool_choice import ToolChoice
from forearm.errors import InvalidRequest
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.lark import Lark
from forearm.text.tool_parsers.call_layouts import HARMONY_REASONING, harmony_auto
from forearm.text.tool_parsers.output_parser import CallsWanted, ParserOptions
from forearm.text.tool_parsers.reasoning import ReasoningFormat

_FIELD = "tools"
# Models put a line or two between reasoning and answer.
_LINES = {"type": "regex", "pattern": "\\n{0,2}"}


def read_as(served: Served, choice: ToolChoice) -> CallsWanted:
    """How calls are read: those that are imposed come in the model's own format, where that has a layout."""
    return "auto" if choice.must_call and served.dialect.layout else choice.wanted


def constraints(
    served: Served, body: ChatRequest, choice: ToolChoice, wanted: ParserOptions, grammar: str | None
) -> dict[str, Any]:
    """Changes of SamplingParams. `grammar` is that of a response format; a call that is required goes before it.

    Raises: InvalidRequest naming the field.
    """
    thinks = thinks_first(served, choice, wanted)
    imposed = _calls_grammar(served, body, choice, thinks)
    if grammar is not None and not choice.must_call:
        imposed = _either_grammar(served, body, choice)
    both = choice.must_call or (choice.is_strict and served.dialect.is_harmony)
    if both and grammar is not None and body.response_format is None:
        raise InvalidRequest(
            "structured_outputs cannot go with a tool_choice that requires a call, nor for gpt-oss with a strict tool; "
            "leave one of them out",
            "structured_outputs",
        )
    changes: dict[str, Any] = {} if imposed is None else {"grammar": imposed}
    if (imposed or grammar) and thinks:
        changes["grammar_after"] = served.reasoning_end
    elif (whole := imposed or grammar) and (reasoning := _may_think(served, body, wanted)):
        changes["grammar"] = reasoning.before(whole, served.grammars.special)
    return changes | _budget(served, body, wanted)


def thinks_first(served: Served, choice: ToolChoice, wanted: ParserOptions) -> bool:
    """Whether the answer, on which alone a constraint holds, begins after reasoning in any case."""
    reasoning = served.dialect.reasoning
    if reasoning is None:
        return False
    if served.dialect.is_harmony:
        return not (choice.must_call or choice.is_strict)  # channels are imposed, thought's too
    return bool(wanted.opened) or (reasoning.always and wanted.opened is None)


def _may_think(served: Served, body: ChatRequest, wanted: ParserOptions) -> ReasoningFormat | None:
    """The format, where the model itself may open reasoning before its answer.

    With a budget it may not: within a grammar that holds from the first token on nothing could end it.
    """
    may = wanted.opened is None and body.thinking_token_budget is None and not served.dialect.is_harmony
    return served.dialect.reasoning if may else None


def _calls_grammar(served: Served, body: ChatRequest, choice: ToolChoice, thinks: bool) -> str | None:
    """The grammar of the calls that are required, or of those that a strict tool's may be.

    Raises: InvalidRequest.
    """
    layout = served.dialect.layout
    if not choice.must_call:
        return _chosen_grammar(served, body, choice) if choice.is_strict else None
    if layout is None:
        return _grammar(served, "json", choice.schema())
    before = [_LINES] if thinks else []
    if served.dialect.is_harmony and body.thinking_token_budget is None:
        before = [HARMONY_REASONING]
    tag = layout.required(choice.imposed(), choice.parallel and choice.wanted == "required", before)
    return _grammar(served, "structural_tag", tag)


def _chosen_grammar(
    served: Served, body: ChatRequest, choice: ToolChoice, schema: Mapping[str, Any] | bool | None = None
) -> str | None:
    """Of an answer that may have calls, a strict tool's within its schema. Without a known format there are no calls.

    Raises: InvalidRequest.
    """
    dialect, tools = served.dialect, choice.imposed()
    if dialect.is_harmony:
        tag = harmony_auto(tools, body.thinking_token_budget is None, schema)
        return _grammar(served, "structural_tag", tag)
    if dialect.layout is not None:
        return _grammar(served, "structural_tag", dialect.layout.chosen(tools, choice.parallel))
    if dialect.strict_calls is None:
        return None
    lark = Lark(served.grammars.special)
    return lark.text(dialect.strict_calls(lark, tools, choice.parallel))


def _either_grammar(served: Served, body: ChatRequest, choice: ToolChoice) -> str | None:
    """Where a model may call tools and its answer must be JSON: one or the other. Raises: InvalidRequest."""
    layout, asked = served.dialect.layout, body.response_format
    if choice.wanted != "auto" or layout is None or asked is None or asked.type not in ("json_object", "json_schema"):
        return None
    schema = asked.json_schema.schema_ if asked.json_schema is not None else None
    schema = {"type": "object"} if schema is None else schema
    if served.dialect.is_harmony:  # its calls come before the answer, on which alone the answer's grammar holds
        return _chosen_grammar(served, body, choice, schema) if choice.is_strict else None
    tag = layout.answered(choice.imposed(), choice.parallel, schema)
    return _grammar(served, "structural_tag", tag)


def _grammar(served: Served, kind: str, value: Any) -> str:
    """Calls are written in one line: where more white space may come, models get lost in it. Raises: InvalidRequest."""
    return grammar_of(ConstraintRequest(kind, value, _FIELD, white_space=r"\x20"), served.grammars.special)


def _budget(served: Served, body: ChatRequest, wanted: ParserOptions) -> dict[str, Any]:
    """Raises: InvalidRequest."""
    budget, reasoning = body.thinking_token_budget, served.dialect.reasoning
    if budget is None:
        return {}
    if reasoning is None:
        raise InvalidRequest(
            "thinking_token_budget: this model has no reasoning that is known; see --reasoning-parser",
            "thinking_token_budget",
        )
    if wanted.opened is False:  # the prompt has closed it: there is nothing to end
        return {}
    return {"thinking_token_budget": budget, "thinking_end": served.forced_end}
