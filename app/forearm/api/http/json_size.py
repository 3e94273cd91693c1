"""Bound the amount of JSON in a request, before and after parsing: the time to parse depends on values, not on
bytes.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from forearm.errors import InvalidRequest

# A worker parses a million values in 0.1 to 0.3 s (two cores with other load) and a member of an object in 0.6 us, and
# serves no other request meanwhile. 2048 texts of 512 token ids are a million values; 10,000 messages of two parts are
# 90,000 members.
MOST_VALUES = 1 << 20
MOST_MEMBERS = 1 << 17
MOST_BYTES = 12 << 20  # outside of strings: a million token ids and ", " between them
# Of a field that templates or grammars are made from: a hundred tools of a coding agent have about 100 kB.
MOST_CHARACTERS = 1 << 20
_SLICE = 1 << 16
# Characters added for each value: rendering a message of four values takes about as long as encoding a hundred
# characters (10 to 40 us, x86-64).
_VALUE = 24


class JsonStructure:
    """Counts bytes, commas, and colons and brackets outside of strings while a body arrives."""

    def __init__(self) -> None:
        self._at = 0
        self._in_string = False
        self._bytes = 0
        self._values = 0
        self._members = 0

    def read(self, content: bytearray) -> None:
        """Count the part of `content` (UTF-8) that has arrived since the last call.

        Raises: InvalidRequest.
        """
        while self._at < len(content):
            part = bytes(content[self._at : self._at + _SLICE])
            part = part[: len(part) - (len(part) - len(part.rstrip(b"\\"))) % 2]  # an escape stays whole
            if not part:
                return
            self._at += len(part)
            pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
            outside = b"".join(pieces[self._in_string :: 2])
            self._in_string ^= len(pieces) % 2 == 0
            self._values += outside.count(b",")
            self._members += outside.count(b":") + outside.count(b"[") + outside.count(b"{")
            self._bytes += len(outside)
            if self._bytes > MOST_BYTES:
                raise InvalidRequest(f"the body has more than {MOST_BYTES} bytes outside of strings; shorten numbers")
            if self._values > MOST_VALUES:
                raise InvalidRequest(f"the body has more than {MOST_VALUES} values; send several requests")
            if self._members > MOST_MEMBERS:
                raise InvalidRequest(
                    f"the body has more than {MOST_MEMBERS} lists, objects and members of them; send several requests"
                )


def json_size(value: Any, most: int) -> int:
    """Return the characters of all strings and names, and 24 for each value; counting stops above `most`."""
    size, left = 0, [value]
    while left and size <= most:
        one = left.pop()
        size += _VALUE
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, dict):
            size += sum(map(len, one))
            left.extend(one.values())
        elif isinstance(one, (list, tuple)):
            left.extend(one)
        elif isinstance(one, BaseModel):
            left.append(one.__dict__)
            left.append(one.model_extra)
    return size


def short_json(value: Any) -> Any:
    """Check the size of a field of free form.

    Raises: PydanticCustomError.
    """
    if json_size(value, MOST_CHARACTERS) > MOST_CHARACTERS:
        raise PydanticCustomError(
            "json_too_long", "it has more than {most} characters as JSON", {"most": MOST_CHARACTERS}
        )
    return value
