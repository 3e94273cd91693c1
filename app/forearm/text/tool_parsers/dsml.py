"""Read the tool calls of DeepSeek V3.2: a tag for the function, and one for each parameter that says whether its value
is text (string="true") or JSON.

Source: encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2, as SGLang and vLLM have it; values as in vLLM's parser.
"""

from __future__ import annotations

import json
import re
from functools import partial

from forearm.text.tool_parsers.incremental import Steps, TextStream, prose, upto
from forearm.text.tool_parsers.json_calls import Calls, answer, attempt
from forearm.text.tool_parsers.parts import CallArguments
from forearm.text.tool_parsers.qwen_coder import json_or_text

DSML = "｜DSML｜"  # one token
BEGIN, END = f"<{DSML}function_calls>", f"</{DSML}function_calls>"
INVOKE, INVOKE_END = f'<{DSML}invoke name="', f"</{DSML}invoke>"
PARAMETER, PARAMETER_END = f"<{DSML}parameter", f"</{DSML}parameter>"
_NAME = re.compile(r'[^<>"\n]+')
_ATTRIBUTES = re.compile(r'\s+name="([^"]*)"(?:\s+string="([^"]*)")?\s*')
_ENDS = (INVOKE_END, END, INVOKE)  # of a call; the first may be missing


def deepseek_v32(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text and calls. The tags around all calls are dropped."""
    while marker := (yield from answer(source, calls, BEGIN, INVOKE, END)):
        if marker == INVOKE:
            source.record(marker)
            yield from attempt(source, _call(source, calls))


def _call(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read the name, the parameters and the end. The model may omit an end where another tag follows."""
    name, found = yield from upto(source, '">')
    if not found or not _NAME.fullmatch(name) or not name.strip():
        return False
    source.recorded()
    call = calls.begin(name.strip())
    yield call
    yield CallArguments(call.index, "{")
    before = ""
    _, marker = yield from upto(source, PARAMETER, *_ENDS)
    while marker == PARAMETER:
        marker = yield from _parameter(source, call.index, before)
        before = ", "
        if marker == PARAMETER_END:
            _, marker = yield from upto(source, PARAMETER, *_ENDS)
    if marker:
        yield CallArguments(call.index, "}")
    if marker != INVOKE_END:
        source.back(marker)
    return True


def _parameter(source: TextStream, index: int, before: str) -> Steps[str]:
    """Read a parameter. One without a name gets an empty name, so that no text of the model is lost.

    Returns: the tag that ended it, which is another one where the model omits its own; empty at the end.
    """
    head, found = yield from upto(source, ">")
    if not found:
        return ""
    attributes = _ATTRIBUTES.fullmatch(head)
    name, kind = attributes.groups() if attributes else ("", None)
    yield CallArguments(index, f"{before}{json.dumps(name, ensure_ascii=False)}: ")
    ends = (PARAMETER_END, PARAMETER, *_ENDS)
    if kind != "true":
        text, marker = yield from upto(source, *ends)
        yield CallArguments(index, json_or_text(text.strip(), text) if marker else text)
        return marker
    yield CallArguments(index, '"')
    marker = yield from prose(source, ends, partial(_quoted, index))
    if marker:
        yield CallArguments(index, '"')
    return marker


def _quoted(index: int, text: str) -> CallArguments:
    """Return a piece of a string as it stands between the quotes of JSON."""
    return CallArguments(index, json.dumps(text, ensure_ascii=False)[1:-1])
