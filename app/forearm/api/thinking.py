"""What reasoning and required calls ask of the engine: constraints on the answer alone, and an end to long thought."""

from __future__ import annotations

import json
from typing import Any

from forearm.api.schema import ChatRequest
from forearm.api.served import Served
from forearm.api.tool_choice import ToolChoice
from forearm.errors import InvalidRequest
from forearm.text.dialect import Wanted
from forearm.text.json_schema import prepared


def constraints(
    served: Served, body: ChatRequest, choice: ToolChoice, wanted: Wanted, grammar: str | None
) -> dict[str, Any]:
    """Changes of SamplingParams. `grammar` is that of a response format; a call that is required comes before it.

    Raises: InvalidRequest naming the field.
    """
    changes: dict[str, Any] = {}
    schema = choice.schema()
    if schema is not None:
        if grammar is not None and body.response_format is None:
            raise InvalidRequest(
                "structured_outputs cannot go with a tool_choice that requires a call; leave one of them out",
                "structured_outputs",
            )
        grammar = json.dumps({"grammars": [{"json_schema": prepared(schema, "tools")}]})
        changes["grammar"] = grammar
    if grammar is not None and thinks_first(served, choice, wanted):
        changes["grammar_after"] = served.reasoning_end
    return changes | _budget(served, body, wanted)


def thinks_first(served: Served, choice: ToolChoice, wanted: Wanted) -> bool:
    """Whether the answer, on which alone a constraint holds, begins after reasoning.

    Where the model itself would have to begin it, it cannot: a constraint that waits for the end of what does not
    come would never hold.
    """
    reasoning = served.dialect.reasoning
    if reasoning is None:
        return False
    if served.dialect.is_harmony:
        return choice.wanted not in ("required", "named")
    return bool(wanted.opened) or (reasoning.always and wanted.opened is None)


def _budget(served: Served, body: ChatRequest, wanted: Wanted) -> dict[str, Any]:
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
