"""Read calls after `[TOOL_CALLS]`: a JSON list (tokenizers up to v7), or a name and its arguments (from v11 on).

Source: mistralai/mistral-common, the instruct tokenizers' `_encode_tool_calls_in_assistant_message`.
"""

from __future__ import annotations

import re

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, word
from forearm.text.tool_parsers.json_calls import Calls, answer, arguments, attempt, call_list

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[\w./:-]+")


def mistral(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text and calls."""
    while (yield from answer(source, calls, BEGIN)):
        source.record(BEGIN)
        yield from space(source)
        is_list = (yield from some(source)) and source.peek() == "["
        yield from attempt(source, call_list(source, calls) if is_list else _named(source, calls))


def _named(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `name[ARGS]{…}`, `name[CALL_ID]id[ARGS]{…}`, or `name{…}`."""
    name = yield from word(source, _NAME)
    yield from space(source)
    own_id = (yield from word(source, _NAME)) if (yield from literal(source, CALL_ID)) else ""
    marked = yield from literal(source, ARGS)
    yield from space(source)
    if not name or not (yield from some(source)) or not (marked or source.peek() == "{"):
        return False
    source.recorded()
    call = calls.begin(name, own_id)
    yield call
    yield from arguments(source, call.index)
    return True
