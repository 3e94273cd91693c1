"""Prometheus texts of several processes as one: a family stands once, with the series of all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SERIES = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{(.*)\})? (.*)$")


def labelled(text: str, label: str, value: str) -> str:
    """The same, each series that does not have the label with it."""
    return "\n".join(_with(line, label, value) for line in text.split("\n"))


def merged(texts: Sequence[str]) -> str:
    """One text: HELP and TYPE of a family once, as they first come, its series together as the format wants them."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for text in texts:
        family, seen = "", set(heads)
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                if family not in seen:
                    heads.setdefault(family, []).append(line)
            elif line:
                series.setdefault(family, []).append(line)
    return "".join(_block(heads, family, lines) for family, lines in {**{f: [] for f in heads}, **series}.items())


def _block(heads: Mapping[str, Sequence[str]], family: str, series: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (*heads.get(family, ()), *series))


def _with(line: str, label: str, value: str) -> str:
    found = None if line.startswith("#") else _SERIES.match(line)
    if found is None:
        return line
    name, _, labels, rest = found.groups()
    if f'{label}="' in (labels or ""):
        return line
    return f'{name}{{{f"{labels}," if labels else ""}{label}="{value}"}} {rest}'
