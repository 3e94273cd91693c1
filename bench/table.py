"""What compare.py found, as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from statistics import median
from typing import Any

Row = dict[str, Any]
WAITED = ("start_s", "peak_mb", "ttft_s", "tpot_s")  # less is better


def figures(row: Row) -> dict[str, float]:
    """Every figure of a row by name: medians of its rounds, and what was measured once."""
    found = {name: median(values) for name, values in row.get("rounds", {}).items() if values}
    found |= {name: row[name] for name in ("start_s", "peak_mb") if name in row}
    http = row.get("http", {})
    return found | {name: http[name] for name in ("ttft_s", "tpot_s", "tokens_s") if name in http}


def columns(rows: dict[str, Row]) -> list[str]:
    """The names of all figures, in order."""
    return list(dict.fromkeys(name for row in rows.values() for name in figures(row)))


def ratio(ours: Row, peer: Row, name: str) -> float:
    """How many times better ours is: the median of the rounds' ratios, where there are rounds."""
    if name in ours.get("rounds", {}):
        pairs = zip(ours["rounds"][name], peer["rounds"][name], strict=False)
        return float(median(a / b for a, b in pairs))
    a, b = figures(ours)[name], figures(peer)[name]
    return b / a if name in WAITED else a / b


def against_best(rows: dict[str, Row], width: int) -> Iterator[tuple[str, str, float]]:
    """Column, the best peer of the width, and how many times better ours is."""
    same = {name: row for name, row in rows.items() if row["width"] == width}
    ours = next((row for name, row in same.items() if name.startswith("forearm")), None)
    for column in columns(same):
        peers = {n: r for n, r in same.items() if not n.startswith("forearm") and column in figures(r)}
        if ours and peers and column in figures(ours):
            best = min(peers, key=lambda n: ratio(ours, peers[n], column))
            yield column, best, ratio(ours, peers[best], column)


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def markdown(found: dict[str, Any]) -> str:
    """All shapes' tables."""
    lines = [f"# Beside the peers, {found['cpu']}, {found['threads']} threads", ""]
    lines += [f"{found['date']}, commit {found['commit']}, tier {found['tier']}. `{found['command']}`", ""]
    lines += [
        "prefill_N and decode_B: tokens/s. share: of the measured read bandwidth, over the weights' bytes, at batch 1."
    ]
    lines += [
        "start_s: process start to first token. ttft_s, tpot_s, tokens_s: 16 requests at once, prompt 128, output 64."
    ]
    for name, shape in found["shapes"].items():
        lines += ["", f"## {name}", "", *machine_lines(shape), "", *shape_table(shape)]
        for width in sorted({row["width"] for row in shape["rows"].values()}, reverse=True):
            lines += ["", *ratio_table(shape["rows"], width)]
    return "\n".join(lines) + "\n"


def machine_lines(shape: dict[str, Any]) -> list[str]:
    limits = ", ".join(f"{name} {shown(value)}" for name, value in shape["machine"].items())
    answers = f" Other guests disturbed {shape['disturbed']} answers in every try." if shape["disturbed"] else ""
    return [f"The machine in the same run: {limits}.{answers}"]


def shape_table(shape: dict[str, Any]) -> list[str]:
    names = columns(shape["rows"])
    lines = ["| | " + " | ".join([*names, "share"]) + " |", "|---" * (len(names) + 2) + "|"]
    notes = []
    for name, row in shape["rows"].items():
        has = figures(row)
        share = None
        if "decode_1" in has and shape["machine"]:
            share = has["decode_1"] * row["gb_read"] / shape["machine"]["read_gb_s"]
        lines.append(f"| {name} | " + " | ".join([*(shown(has.get(c)) for c in names), shown(share)]) + " |")
        http = row.get("http", {})
        notes += [f"- {name}: {row['failed']}"] if "failed" in row else []
        if "packing_start_s" in row:
            notes.append(f"- {name}: a start that packs the weights itself takes {shown(row['packing_start_s'])} s")
        notes += [f"- {name}, requests at once: {http['failed']}"] if "failed" in http else []
        notes += [f"- {name}: requests at once in its process, without HTTP"] if http.get("in_process") else []
    return [*lines, "", *notes] if notes else lines


def ratio_table(rows: dict[str, Row], width: int) -> list[str]:
    found = list(against_best(rows, width))
    if not found:
        return []
    head = [f"| {width} bits | " + " | ".join(column for column, _, _ in found) + " |", "|---" * (len(found) + 1) + "|"]
    best = "| best peer | " + " | ".join(name for _, name, _ in found) + " |"
    times = "| forearm is better by | " + " | ".join(f"{value:.2f}x" for _, _, value in found) + " |"
    return [*head, best, times]


def plot(found: dict[str, Any]) -> str:
    """An SVG of bars: each figure as a share of the best in its column (of seconds and bytes the least is best)."""
    parts, y = [], 20
    for name, shape in found["shapes"].items():
        rows, names = shape["rows"], columns(shape["rows"])
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(name)}</text>')
        parts += [f'<text x="{170 + 90 * i}" y="{y}">{escape(c)}</text>' for i, c in enumerate(names)]
        for row_name, row in rows.items():
            y += 18
            parts.append(f'<text x="10" y="{y}">{escape(row_name)}</text>')
            parts += bars(rows, row_name, figures(row), names, y)
        y += 40
    width = 180 + 90 * max(len(columns(shape["rows"])) for shape in found["shapes"].values())
    style = "font-family:sans-serif;font-size:11px"
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" style="{style}">\n{body}\n</svg>\n'


def bars(rows: dict[str, Row], row_name: str, has: dict[str, float], names: list[str], y: int) -> Iterator[str]:
    colour = "#2a7" if row_name.startswith("forearm") else "#99a"
    for i, column in enumerate(names):
        if column not in has:
            continue
        all_values = [figures(row)[column] for row in rows.values() if column in figures(row)]
        share = min(all_values) / has[column] if column in WAITED else has[column] / max(all_values)
        x = 170 + 90 * i
        yield f'<rect x="{x}" y="{y - 11}" width="{80 * share:.1f}" height="14" fill="{colour}"/>'
        yield f'<text x="{x + 3}" y="{y}">{shown(has[column])}</text>'
