"""Read tool calls in `<tool_call>` tags, one JSON object each: Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3.

Source: the chat template of Qwen/Qwen2.5-7B-Instruct; NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

from forearm.text.tool_parsers.incremental import Steps, TextStream
from forearm.text.tool_parsers.json_calls import Calls, answer, call_object, fenced

BEGIN, END = "<tool_call>", "</tool_call>"


def hermes(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text and calls."""
    while (yield from answer(source, calls, BEGIN)):
        yield from fenced(source, calls, BEGIN, END, call_object)
