"""Read a JSON list of calls after a marker (Granite 3, Phi-4-mini, Jamba, Nemotron 2), or one call after each marker
(Granite 20B).

Sources: the chat templates of ibm-granite/granite-3.1-8b-instruct (`<|tool_call|>`; 3.0 and 3.2 write `<tool_call>`),
microsoft/Phi-4-mini-instruct's model card (`<|tool_call|>` … `<|/tool_call|>`), vLLM's template for it (`functools`),
ai21labs/AI21-Jamba-1.5-Mini (`<tool_calls>`), nvidia/NVIDIA-Nemotron-Nano-9B-v2 (`<TOOLCALL>`), and
ibm-granite/granite-20b-functioncalling (`<function_call>`).
"""

from __future__ import annotations

from forearm.text.tool_parsers.incremental import Steps, TextStream, some, space
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, attempt, call_list, call_object


def lists(*begins: str, ends: tuple[str, ...] = ()) -> CallReader:
    """Return the format with these markers before a list; end markers are skipped. A list without marker may come
    first.
    """

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        lead = yield from space(source)
        if (yield from some(source)) and source.peek() == "[":
            source.record(lead)
            yield from attempt(source, call_list(source, calls))
        else:
            source.back(lead)
        while marker := (yield from answer(source, calls, *begins, *ends)):
            if marker in begins:
                source.record(marker)
                yield from space(source)
                yield from attempt(source, call_list(source, calls))

    return read


granite = lists("<|tool_call|>", "<tool_call>")
phi4_mini_json = lists("functools", "<|tool_call|>", ends=("<|/tool_call|>",))
jamba = lists("<tool_calls>", ends=("</tool_calls>",))
nemotron_json = lists("<TOOLCALL>", ends=("</TOOLCALL>",))


def granite_20b_fc(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text and calls."""
    while marker := (yield from answer(source, calls, "<function_call>")):
        source.record(marker)
        yield from space(source)
        yield from attempt(source, call_object(source, calls))
