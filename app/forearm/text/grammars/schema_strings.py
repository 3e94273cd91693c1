"""Convert the formats of a JSON schema's strings, and patterns that llguidance cannot read, to patterns that it can.

An unknown format is an annotation without effect, as in the specification ("format-annotation").
Source: json-schema.org, "Defined Formats"; RFC 3339; further names are those that pydantic writes.
"""

from __future__ import annotations

import re

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.grammars.look_ahead import without_look_ahead
from forearm.text.grammars.regex_syntax import NotRead

_LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[bB]")
_MOST_LOOK_AROUND = 32  # distinct patterns with look-around in one request; each takes at most 0.3 s
_PASSED = frozenset(("email", "hostname", "ipv4", "ipv6", "uri"))  # llguidance's own patterns are right

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_H16}:){{7}}{_H16}", "::"]
    + [f"(?:{_H16}:){{1,{8 - n}}}(?::{_H16}){{1,{n}}}" if n else f"(?:{_H16}:){{1,7}}:" for n in range(7)]
    + [f":(?::{_H16}){{1,7}}"]
)
# Years without 0000, which RFC 3339 allows and date types do not; the 29th of February in leap years only.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_CLOCK = "T(?:[0-9]{1,5}H(?:[0-9]{1,5}M(?:[0-9]{1,5}S)?)?|[0-9]{1,5}M(?:[0-9]{1,5}S)?|[0-9]{1,5}S)"
_DAYS = "(?:[0-9]{1,3}Y(?:[0-9]{1,3}M(?:[0-9]{1,4}D)?)?|[0-9]{1,3}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"


def _network() -> str:
    """Return a pattern of IPv4 networks, whose bits after the prefix are 0."""
    found = [_IPV4]
    for bits in range(33):
        whole, rest = divmod(bits, 8)
        part = ["(?:" + "|".join(str(value) for value in range(0, 256, 1 << 8 - rest)) + ")"] if rest else []
        octets = [_OCTET] * whole + part
        found.append(r"\.".join(octets + ["0"] * (4 - len(octets))) + f"/{bits}")
    return "|".join(found)


def _uuid(version: str) -> str:
    variant = "[89abAB]" if version != "[0-9a-fA-F]" else version
    digit = "[0-9a-fA-F]"
    return f"{digit}{{8}}-{digit}{{4}}-{version}{digit}{{3}}-{variant}{digit}{{3}}-{digit}{{12}}"


_FORMATS = {
    "date": _DATE,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "time": _TIME,
    "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,4}}W)",
    "uuid": _uuid("[0-9a-fA-F]"),
    **{f"uuid{version}": _uuid(str(version)) for version in range(1, 9)},
    "ipvanyaddress": f"{_IPV4}|{_IPV6}",
    "ipv4network": _network(),
    "ipv4interface": rf"{_IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?",
    "ipv6interface": rf"(?:{_IPV6})(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?",
    "base64": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": r"(?:[A-Za-z0-9_\-]{4})*(?:[A-Za-z0-9_\-]{2}==|[A-Za-z0-9_\-]{3}=)?",
    "json-pointer": r"(?:/(?:[^/~]|~[01])*)*",
}
_FORMATS["byte"] = _FORMATS["base64"]  # OpenAPI's name
FORMATS = _PASSED | _FORMATS.keys()  # all formats that are imposed
FORMAT_PATTERNS = {name: f"^(?:{pattern})$" for name, pattern in _FORMATS.items()}


class SchemaStrings:
    """The strings in one request's schemas. warnings: parts of the schemas that are imposed in part, or not at all."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._read: dict[str, tuple[list[str], bool]] = {}

    def prepared(self, schema: Json, field: str, path: str) -> Json:
        """Return the schema with patterns in place of its format and its pattern.

        Raises: InvalidRequest if too many patterns have look-around.
        """
        made, found = dict(schema), list[str]()
        name = made.get("format")
        if isinstance(name, str) and name not in _PASSED:
            del made["format"]
            found += [FORMAT_PATTERNS[name]] if name in FORMAT_PATTERNS else []
        if isinstance(made.get("pattern"), str):
            found += self.read(made.pop("pattern"), field, path)
        if not found:
            return made
        made["pattern"] = found[0]
        kinds = {"type": made["type"]} if "type" in made else {}
        others = [{**kinds, "pattern": pattern} for pattern in found[1:]]
        return {**made, "allOf": [*made.get("allOf", []), *others]} if others else made

    def read(self, pattern: str, field: str, path: str) -> list[str]:
        """Return patterns without look-ahead that must all match.

        Raises: InvalidRequest if too many patterns have look-around.
        """
        if not _LOOK_AROUND.search(pattern):
            return [pattern]
        if pattern not in self._read:
            self._read[pattern] = plain_patterns(pattern)
        if len(self._read) > _MOST_LOOK_AROUND:
            raise InvalidRequest(f"{field}: more than {_MOST_LOOK_AROUND} patterns have look-ahead", field)
        found, exact = self._read[pattern]
        if not exact:
            where = f" at {path[1:]}" if path else ""
            self.warnings.append(
                f"{field}: pattern{where}: {pattern[:200]} is imposed without its look-around, which is too complex"
            )
        return list(found)


def plain_patterns(pattern: str, *, whole: bool = False) -> tuple[list[str], bool]:
    """Return what without_look_ahead does; a pattern that it cannot read is left for the compiler to reject."""
    if not _LOOK_AROUND.search(pattern):
        return [pattern], True
    try:
        return without_look_ahead(pattern, whole=whole)
    except NotRead:
        return [pattern], True
