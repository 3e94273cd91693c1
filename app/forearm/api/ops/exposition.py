"""Merge the Prometheus texts of several processes: each family appears once, with the series of all processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SERIES = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{(.*)\})? (.*)$")


def labelled(text: str, label: str, value: str) -> str:
    """Return the text with the label added to each series that does not have it."""
    lines = []
    for line in text.split("\n"):
        found = None if line.startswith("#") else _SERIES.match(line)
        if found is None or f'{label}="' in (found[3] or ""):
            lines.append(line)
        else:
            name, _, labels, rest = found.groups()
            lines.append(f'{name}{{{f"{labels}," if labels else ""}{label}="{value}"}} {rest}')
    return "\n".join(lines)


def merged(texts: Sequence[str]) -> str:
    """Return one text: HELP and TYPE of each family once, as they first occur, with all of its series after them."""
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
    families = dict.fromkeys((*heads, *series))
    return "".join(f"{line}\n" for one in families for line in (*heads.get(one, ()), *series.get(one, ())))
