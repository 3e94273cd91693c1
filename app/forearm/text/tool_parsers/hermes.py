"""Read tool calls in `<tool_call>` tags, one JSON object each: Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3; ERNIE 4.5,
whose answers have tags of their own; LongCat and InternLM, whose tags have other names.

Sources: the chat templates of Qwen/Qwen2.5-7B-Instruct and baidu/ERNIE-4.5-21B-A3B-Thinking;
NousResearch/Hermes-Function-Calling; vLLM 0.33's parsers longcat and internlm.
"""

from __future__ import annotations

from forearm.text.tool_parsers.incremental import Steps, TextStream, space
from forearm.text.tool_parsers.json_calls import Calls, answer, call_object, fenced, fenced_calls

BEGIN, END = "<tool_call>", "</tool_call>"
LONGCAT = ("<longcat_tool_call>", "</longcat_tool_call>")
ACTION, PLUGIN, ACTION_END = "<|action_start|>", "<|plugin|>", "<|action_end|>"
ANSWER_TAGS = ("<response>", "\n</response>", "</response>")


hermes = fenced_calls(BEGIN, END, call_object)
longcat = fenced_calls(*LONGCAT, call_object)
internlm = fenced_calls(ACTION + PLUGIN, ACTION_END, call_object)


def ernie45(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text, whose tags are dropped, and calls."""
    while marker := (yield from answer(source, calls, BEGIN, *ANSWER_TAGS)):
        if marker == BEGIN:
            yield from fenced(source, calls, BEGIN, END, call_object)
        else:
            yield from space(source)
