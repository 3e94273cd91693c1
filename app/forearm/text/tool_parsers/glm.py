"""Read calls that have the name, and a pair of tags for each argument; strings are plain text: GLM 4.5 to 4.7, Ling 3
and Laguna; Hy3 and Hy4, which have a tag around all calls; K2 Horizon.

Sources: the chat templates of zai-org/GLM-4.5-Air and zai-org/GLM-4.7; vLLM 0.33's parsers hy_v3, hy_v4 and k2_horizon.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from forearm.text.tool_parsers.incremental import Steps, TextStream, some, upto
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, call_object, fenced
from forearm.text.tool_parsers.parts import CallArguments
from forearm.text.tool_parsers.qwen_coder import parameter, schemas_of

_NAME = re.compile(r"[\w.:/-]+")
_SUFFIXED = re.compile(r"<(?:think|tool_calls?|arg_key|arg_value)(:[^\s<>]+)>")


@dataclass(frozen=True)
class PairTags:
    """The tags of calls. prefix, suffix: what stands before and behind their names. named: the tag behind a function's
    name; empty: there is none. around: whether there is a tag around all calls.
    """

    prefix: str = ""
    suffix: str = ""
    named: str = ""
    around: bool = False

    def opening(self, name: str) -> str:
        """Return a tag that opens an element."""
        return f"<{self.prefix}{name}{self.suffix}>"

    def closing(self, name: str) -> str:
        """Return a tag that closes an element."""
        return f"</{self.prefix}{name}{self.suffix}>"

    @property
    def behind_name(self) -> tuple[str, ...]:
        """The tag behind a function's name, if there is one."""
        return (self.opening(self.named),) if self.named else ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All tags."""
        names = ("tool_call", "arg_key", "arg_value", *(("tool_calls",) if self.around else ()))
        both = [tag(name) for name in names for tag in (self.opening, self.closing)]
        return (*both, *self.behind_name)


GLM = PairTags()
HORIZON = PairTags(prefix="ifm|", around=True)


def hy(suffix: str = "") -> PairTags:
    """Return the tags of Hy3 and Hy4. suffix: what a checkpoint's tags have behind their names."""
    return PairTags(suffix=suffix, named="tool_sep", around=True)


def suffix_of(format_name: str, tokens: Iterable[str]) -> str:
    """Return what Hy's tags have behind their names, as the tokenizer's added tokens tell: `:opensource` in Hy3. Other
    formats have nothing there.
    """
    if format_name not in ("hy_v3", "hy_v4"):
        return ""
    return next((found[1] for one in tokens if (found := _SUFFIXED.fullmatch(one))), "")


def pairs(tags: PairTags) -> CallReader:
    """Return the format with these tags. A call may also be a JSON object."""
    begin, end = tags.opening("tool_call"), tags.closing("tool_call")
    around = (tags.opening("tool_calls"), tags.closing("tool_calls")) if tags.around else ()

    def body(source: TextStream, calls: Calls) -> Steps[bool]:
        if (yield from some(source)) and source.peek() == "{":
            return (yield from call_object(source, calls))
        return (yield from _call(source, calls, tags))

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, begin, *around)):
            if marker == begin:
                yield from fenced(source, calls, begin, end, body)

    return read


def _call(source: TextStream, calls: Calls, tags: PairTags) -> Steps[bool]:
    key_tag = tags.opening("arg_key")
    name, marker = yield from upto(source, key_tag, *tags.behind_name)
    name = name.strip()
    if not _NAME.fullmatch(name) or not (marker or source.is_fenced):  # a name may be cut off
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield CallArguments(call.index, "{")
    schemas = schemas_of(calls, name)
    before = ""
    if marker in tags.behind_name:
        _, marker = yield from upto(source, key_tag)
    while marker:
        key, found = yield from upto(source, tags.closing("arg_key"))
        _, begun = yield from upto(source, tags.opening("arg_value"))
        if not found or not begun:
            return True
        text, ended = yield from upto(source, tags.closing("arg_value"))
        key = key.strip()
        written = json.dumps(key, ensure_ascii=False) + ": " + parameter(text, schemas.get(key), bool(ended))
        yield CallArguments(call.index, before + written)
        before = ", "
        if not ended:
            return True
        _, marker = yield from upto(source, key_tag)
    if source.is_fenced:
        yield CallArguments(call.index, "}")
    return True
