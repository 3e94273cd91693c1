"""Strings of a JSON schema: formats, and patterns that llguidance cannot read, as patterns that it can.

A format that is not known here is a remark, as the specification has it ("format-annotation").
Source: json-schema.org, "Defined Formats"; RFC 3339; the names beyond them are those that pydantic writes.
"""

from __future__ import annotations

import re

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.grammars.look_ahead import without_look_ahead
from forearm.text.grammars.regex_syntax import NotRead

_LOOKS = re.compile(r"\(\?<?[=!]|\\[bB]")
_MOST_LOOKS = 32  # patterns of one request that look ahead, those that are the same once: 0.3 s each at most
_PASSED = frozenset(("email", "hostname", "ipv4", "ipv6", "uri"))  # llguidance's own do

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_H16}:){{7}}{_H16}", "::"]
    + [f"(?:{_H16}:){{1,{8 - n}}}(?::{_H16}){{1,{n}}}" if n else f"(?:{_H16}:){{1,7}}:" for n in range(7)]
    + [f":(?::{_H16}){{1,7}}"]
)
# Years without 0000, which RFC 3339 has and date types have not; the 29th of February in leap years alone.
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
    """Addresses whose bits after the prefix are 0."""
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
FORMATS = _PASSED | _FORMATS.keys()  # that are imposed
OF_FORMAT = {name: f"^(?:{pattern})$" for name, pattern in _FORMATS.items()}


class Strings:
    """The strings of one request's schemas. `warnings`: what of the schemas is imposed in part, or not at all."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._read: dict[str, tuple[list[str], bool]] = {}

    def prepared(self, schema: Json, field: str, path: str) -> Json:
        """The schema with patterns for its format and its pattern.

        Raises: InvalidRequest for more patterns that look ahead than can be read.
        """
        made, found = dict(schema), list[str]()
        name = made.get("format")
        if isinstance(name, str) and name not in _PASSED:
            del made["format"]
            found += [OF_FORMAT[name]] if name in OF_FORMAT else []
        if isinstance(made.get("pattern"), str):
            found += self.read(made.pop("pattern"), field, path)
        if not found:
            return made
        made["pattern"] = found[0]
        kinds = {"type": made["type"]} if "type" in made else {}
        others = [{**kinds, "pattern": pattern} for pattern in found[1:]]
        return {**made, "allOf": [*made.get("allOf", []), *others]} if others else made

    def read(self, pattern: str, field: str, path: str) -> list[str]:
        """Patterns that all have to fit, without look-ahead. Raises: InvalidRequest."""
        if not _LOOKS.search(pattern):
            return [pattern]
        if pattern not in self._read:
            self._read[pattern] = plain_patterns(pattern)
        if len(self._read) > _MOST_LOOKS:
            raise InvalidRequest(f"{field}: more than {_MOST_LOOKS} patterns have look-ahead", field)
        found, exact = self._read[pattern]
        if not exact:
            where = f" at {path[1:]}" if path else ""
            self.warnings.append(
                f"{field}: pattern{where}: {pattern[:200]} is imposed without its look-around, too complex"
            )
        return list(found)


def plain_patterns(pattern: str, *, whole: bool = False) -> tuple[list[str], bool]:
    """As without_look_ahead; a pattern that it cannot read stays as it is, for the compiler to say what is wrong."""
    if not _LOOKS.search(pattern):
        return [pattern], True
    try:
        return without_look_ahead(pattern, whole=whole)
    except NotRead:
        return [pattern], True
