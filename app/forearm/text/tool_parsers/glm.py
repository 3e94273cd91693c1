"""Read the calls of GLM 4.5 to 4.7: the name, and a pair of tags for each argument; strings are plain text.

Source: the chat templates of zai-org/GLM-4.5-Air and zai-org/GLM-4.7.
"""

from __future__ import annotations

import json
import re

from forearm.text.tool_parsers.hermes import BEGIN, END
from forearm.text.tool_parsers.incremental import Steps, TextStream, upto
from forearm.text.tool_parsers.json_calls import Calls, fenced_calls
from forearm.text.tool_parsers.parts import CallArguments
from forearm.text.tool_parsers.qwen_coder import parameter, schemas_of

KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
_NAME = re.compile(r"[\w.:/-]+")


def _call(source: TextStream, calls: Calls) -> Steps[bool]:
    name, marker = yield from upto(source, KEY)
    name = name.strip()
    if not _NAME.fullmatch(name) or not (marker or source.is_fenced):  # a name may be cut off
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield CallArguments(call.index, "{")
    schemas = schemas_of(calls, name)
    before = ""
    while marker:
        key, found = yield from upto(source, KEY_END)
        _, begun = yield from upto(source, VALUE)
        if not found or not begun:
            return True
        text, ended = yield from upto(source, VALUE_END)
        key = key.strip()
        written = json.dumps(key, ensure_ascii=False) + ": " + parameter(text, schemas.get(key), bool(ended))
        yield CallArguments(call.index, before + written)
        before = ", "
        if not ended:
            return True
        _, marker = yield from upto(source, KEY)
    if source.is_fenced:
        yield CallArguments(call.index, "}")
    return True


glm45 = fenced_calls(BEGIN, END, _call)
