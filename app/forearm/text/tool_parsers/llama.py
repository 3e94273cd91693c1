"""Read Llama 3's JSON calls: the whole answer is one object, or several separated by `;`, maybe after `<|python_tag|>`.

Source: Meta's model card of Llama 3.1, "JSON based tool calling"; chat template of meta-llama/Llama-3.1-8B-Instruct.
"""

from __future__ import annotations

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space
from forearm.text.tool_parsers.json_calls import Calls, answer, attempt, call_object

TAG = "<|python_tag|>"


def llama3_json(source: TextStream, calls: Calls) -> Steps[None]:
    """Read calls, then text. An object without arguments is text, because it may be the answer itself."""
    lead = yield from space(source)
    while True:
        source.record(lead)
        tagged = yield from literal(source, TAG)
        yield from space(source)
        if not (tagged or ((yield from some(source)) and source.peek() == "{")):
            source.back(source.recorded())
            break
        if not (yield from attempt(source, call_object(source, calls, needs_arguments=True))):
            break
        yield from space(source)
        yield from literal(source, ";")
        lead = yield from space(source)
    yield from answer(source, calls)
