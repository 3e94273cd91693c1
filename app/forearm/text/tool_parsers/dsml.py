"""Read the tool calls of DeepSeek V3.2 to V4.1: a tag for the function, and one for each parameter that says whether
its value is text (string="true") or JSON.

Sources: encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2, as SGLang and vLLM have it; vLLM 0.33's encoders of
V4 and V4.1; values, and other spellings of the tag around the calls, as in vLLM's parsers.
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
_NAME = re.compile(r'[^<>"\n]+')
_ATTRIBUTES = re.compile(r'\s+name="([^"]*)"(?:\s+string="([^"]*)")?\s*')


@dataclass(frozen=True)
class DsmlTags:
    """The tags of one version. blocks: spellings of the tag around all calls. space: what precedes a tag's name."""

    blocks: tuple[str, ...]
    space: str = ""

    @property
    def around(self) -> tuple[str, ...]:
        """The tags around all calls."""
        return tuple(self._tag(name, ending) for name in self.blocks for ending in ("", "/"))

    @property
    def invoke(self) -> str:
        """The beginning of a call, before its name."""
        return self._tag("invoke").removesuffix(">") + ' name="'

    @property
    def parameter(self) -> str:
        """The beginning of a parameter, before its attributes."""
        return self._tag("parameter").removesuffix(">")

    @property
    def parameter_end(self) -> str:
        """The end of a parameter."""
        return self._tag("parameter", "/")

    @property
    def ends(self) -> tuple[str, ...]:
        """The tags that end a call; its own, the first, may be missing."""
        return (self._tag("invoke", "/"), *(one for one in self.around if one[1] == "/"), self.invoke)

    def _tag(self, name: str, ending: str = "") -> str:
        return f"<{ending}{DSML}{self.space}{name}>"


def dsml(tags: DsmlTags) -> CallReader:
    """Return the format with these tags. Those around all calls are dropped."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, tags.invoke, *tags.around)):
            if marker == tags.invoke:
                source.record(marker)
                yield from attempt(source, _call(source, calls, tags))

    return read


deepseek_v32 = dsml(DsmlTags(("function_calls",)))
deepseek_v4 = dsml(DsmlTags(("tool_calls", "toolcalls", "tool")))
deepseek_v41 = dsml(DsmlTags(("calls",), space=" "))


def _call(source: TextStream, calls: Calls, tags: DsmlTags) -> Steps[bool]:
    """Read the name, the parameters and the end. The model may omit an end where another tag follows."""
    name, found = yield from upto(source, '">')
    if not found or not _NAME.fullmatch(name) or not name.strip():
        return False
    source.recorded()
    call = calls.begin(name.strip())
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


def _parameter(source: TextStream, index: int, before: str, tags: DsmlTags) -> Steps[str]:
    """Read a parameter. One without a name gets an empty name, so that no text of the model is lost.

    Returns: the tag that ended it, which is another one where the model omits its own; empty at the end.
    """
    head, found = yield from upto(source, ">")
    if not found:
        return ""
    attributes = _ATTRIBUTES.fullmatch(head)
    name, kind = attributes.groups() if attributes else ("", None)
    yield CallArguments(index, f"{before}{json.dumps(name, ensure_ascii=False)}: ")
    ends = (tags.parameter_end, tags.parameter, *tags.ends)
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
