"""Read the tool calls of DeepSeek V3.2 to V4.1, and Kimi K3: a tag for the function, and one for each parameter that
says whether its value is text or JSON.

Sources: encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2, as SGLang and vLLM have it; vLLM 0.33's encoders of
V4 and V4.1, and its parser kimi_k3; values, and other spellings of the tag around the calls, as in vLLM's parsers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial

from forearm.text.tool_parsers.incremental import Steps, TextStream, prose, upto
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, attempt
from forearm.text.tool_parsers.parts import CallArguments
from forearm.text.tool_parsers.qwen_coder import json_or_text

DSML = "｜DSML｜"  # one token


@dataclass(frozen=True)
class ElementTags:
    """The tags of calls in one format.

    call, parameter: the beginnings of their opening tags. call_opened, parameter_opened: the ends of these; what is
    between has a call's name, and a parameter's name and kind. texts: kinds whose value is text; others are JSON.
    around: tags around all calls, and around the answer, which are dropped; begins: those before all calls.
    """

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    around: tuple[str, ...]
    call_opened: str
    parameter_opened: str
    named: re.Pattern[str]
    keyed: re.Pattern[str]
    texts: tuple[str | None, ...]
    begins: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """The tags that end a call; its own, the first, may be missing."""
        return (self.call_end, *self.around, self.call)


def _dsml(*blocks: str, space: str = "") -> ElementTags:
    """Return DeepSeek's tags. blocks: spellings of the tag around all calls. space: what precedes a tag's name."""
    begins = tuple(f"<{DSML}{space}{name}>" for name in blocks)
    return ElementTags(
        call=f'<{DSML}{space}invoke name="',
        call_end=f"</{DSML}{space}invoke>",
        parameter=f"<{DSML}{space}parameter",
        parameter_end=f"</{DSML}{space}parameter>",
        around=(*begins, *(f"</{DSML}{space}{name}>" for name in blocks)),
        call_opened='">',
        parameter_opened=">",
        named=re.compile(r'([^<>"\n]+)'),
        keyed=re.compile(r'\s+name="([^"]*)"(?:\s+string="([^"]*)")?\s*'),
        texts=("true",),
        begins=begins,
    )


XTML = ("<|open|>", "<|close|>", "<|sep|>")
_OPEN, _CLOSE, _SEP = XTML
RESPONSE = (f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}", f"{_CLOSE}message{_SEP}")
_KIMI = ElementTags(
    call=f"{_OPEN}call ",
    call_end=f"{_CLOSE}call{_SEP}",
    parameter=f"{_OPEN}argument ",
    parameter_end=f"{_CLOSE}argument{_SEP}",
    around=(f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}", *RESPONSE),
    call_opened=_SEP,
    parameter_opened=_SEP,
    named=re.compile(r'(?:\w+="[^"]*"\s+)*?tool="([^"]+)"(?:\s+\w+="[^"]*")*\s*'),
    keyed=re.compile(r'\s*key="([^"]*)"(?:\s+type="([^"]*)")?\s*'),
    texts=("string", None),
)


def elements(tags: ElementTags) -> CallReader:
    """Return the format with these tags."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, tags.call, *tags.around)):
            if marker == tags.call:
                source.record(marker)
                yield from attempt(source, _call(source, calls, tags))

    return read


deepseek_v32 = elements(_dsml("function_calls"))
DEEPSEEK_V4, DEEPSEEK_V41 = _dsml("tool_calls", "toolcalls", "tool"), _dsml("calls", space=" ")
deepseek_v4, deepseek_v41 = elements(DEEPSEEK_V4), elements(DEEPSEEK_V41)
kimi_k3 = elements(_KIMI)


def _call(source: TextStream, calls: Calls, tags: ElementTags) -> Steps[bool]:
    """Read the name, the parameters and the end. The model may omit an end where another tag follows."""
    head, found = yield from upto(source, tags.call_opened)
    named = tags.named.fullmatch(head)
    name = _unescaped(named[1]).strip() if found and named else ""
    if not name:
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield CallArguments(call.index, "{")
    before = ""
    _, marker = yield from upto(source, tags.parameter, *tags.ends)
    while marker == tags.parameter:
        marker = yield from _parameter(source, call.index, before, tags)
        before = ", "
        if marker == tags.parameter_end:
            _, marker = yield from upto(source, tags.parameter, *tags.ends)
    if marker:
        yield CallArguments(call.index, "}")
    if marker != tags.ends[0]:
        source.back(marker)
    return True


def _parameter(source: TextStream, index: int, before: str, tags: ElementTags) -> Steps[str]:
    """Read a parameter. One without a name gets an empty name, so that no text of the model is lost.

    Returns: the tag that ended it, which is another one where the model omits its own; empty at the end.
    """
    head, found = yield from upto(source, tags.parameter_opened)
    if not found:
        return ""
    attributes = tags.keyed.fullmatch(head)
    name, kind = attributes.groups() if attributes else ("", None)
    yield CallArguments(index, f"{before}{json.dumps(_unescaped(name), ensure_ascii=False)}: ")
    ends = (tags.parameter_end, tags.parameter, *tags.ends)
    if not attributes or kind not in tags.texts:
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


def _unescaped(name: str) -> str:
    """Return an attribute's value: Kimi K3 writes quotes and ampersands as XML does."""
    return name.replace("&quot;", '"').replace("&amp;", "&")
