"""Markdown tables of figures."""

from __future__ import annotations

from collections.abc import Iterable

from bench.records import QUANTITIES


def times(ratio: float | None) -> str:
    """Return a ratio as the tables show it."""
    return "–" if ratio is None else f"{ratio:.2f}x"


def shown(value: float, unit: str = "") -> str:
    """Return a value with three digits; a share in per cent."""
    if unit == "%":
        return f"{100 * value:.3g} %"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def title_of(column: str) -> str:
    """Return the name of a quantity with its unit, except per cent, which is in the cells."""
    words, unit = QUANTITIES.get(column, (column, ""))
    return f"{words}, {unit}" if unit not in ("", "%") else words
