"""Draw tokens per second as an SVG, without a library: three panels of three formats, with a bar for each engine."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

COLOURS = {"forearm": "#1a7f5a", "llama.cpp": "#8a94a6", "OpenVINO": "#c3c9d4"}
PANEL, LABEL, BAR, GAP = 300, 56, 16, 12  # widths of a panel and of its labels; heights
LONGEST = PANEL - LABEL - 70  # of a bar, which is followed by its figure
TOP = 84


class Bars(NamedTuple):
    """Tokens per second of each engine, for one format of a panel."""

    panel: str
    format: str
    engines: dict[str, float]


def picture(title: str, groups: list[Bars]) -> str:
    """Return the SVG. Each panel has its own scale, which begins at zero."""
    panels = list(dict.fromkeys(group.panel for group in groups))
    height = TOP + 3 * (3 * BAR + GAP) + 8
    width = PANEL * len(panels) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}: tokens per second, two threads'
        " (higher is better)</text>",
        *legend(),
    ]
    for index, panel in enumerate(panels):
        mine = [group for group in groups if group.panel == panel]
        parts += [f'<text x="{12 + index * PANEL}" y="{TOP - 10}" font-weight="bold">{escape(panel)}</text>']
        parts += bars(mine, 12 + index * PANEL)
    return "\n".join([*parts, "</svg>", ""])


def legend() -> Iterator[str]:
    """Yield the legend: the colour of each engine."""
    for index, (engine, colour) in enumerate(COLOURS.items()):
        x = 12 + 110 * index
        yield f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="45">{engine}</text>'


def bars(groups: list[Bars], left: int) -> Iterator[str]:
    """Yield the bars of one panel."""
    most = max(value for group in groups for value in group.engines.values())
    y = TOP
    for group in groups:
        yield f'<text x="{left}" y="{y + 29}">{escape(group.format)}</text>'
        for engine, value in group.engines.items():
            length = LONGEST * value / most
            figure = f"{value:.0f}" if value >= 100 else f"{value:.1f}"
            yield f'<rect x="{left + LABEL}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLOURS[engine]}"/>'
            yield f'<text x="{left + LABEL + length + 5:.1f}" y="{y + 12}">{figure}</text>'
            y += BAR
        y += GAP
