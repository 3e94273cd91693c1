"""The results of compare.py: Markdown for the terminal, and figures for bench/results."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from bench import records
from bench.records import LESS_IS_BETTER, Figure, figure, machine_name

Row = dict[str, Any]
PEERS = {
    "forearm": "",
    "llama": "llama.cpp",
    "ik": "ik_llama.cpp",
    "openvino": "OpenVINO",
    "vllm": "vLLM",
    "torch": "torch",
}
REQUESTS = ("ttft_s", "tpot_s", "tokens_s")  # of requests at once


def figures(row: Row) -> dict[str, float]:
    """Return every figure of a row by name: medians of its rounds, and single measurements."""
    found = {name: median(values) for name, values in row.get("rounds", {}).items() if values}
    found |= {name: row[name] for name in ("start_s", "peak_mb") if name in row}
    http = row.get("http", {})
    return found | {name: http[name] for name in REQUESTS if name in http}


def columns(rows: dict[str, Row]) -> list[str]:
    """Return the names of all figures, in order."""
    return list(dict.fromkeys(name for row in rows.values() for name in figures(row)))


def ratio(ours: Row, peer: Row, name: str) -> float:
    """Return the ratio of our figure to a peer's: the median of the rounds' ratios, where there are rounds."""
    if name in ours.get("rounds", {}):
        pairs = zip(ours["rounds"][name], peer["rounds"][name], strict=False)
        return float(median(a / b for a, b in pairs))
    a, b = figures(ours)[name], figures(peer)[name]
    return b / a if name in LESS_IS_BETTER else a / b


def against_best(rows: dict[str, Row], width: int) -> Iterator[tuple[str, str, float]]:
    """Yield each column, the best peer of the width, and how many times better forearm is."""
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


def figures_of(shapes: dict[str, Any]) -> list[Figure]:
    """Return all measurements in the form of bench/results."""
    found = []
    for shape, one in shapes.items():
        rows = one["rows"]
        found += records.figures_of(shape, "", "machine", one["machine"])
        for name, row in rows.items():
            engine, own = name.split(" ", 1)
            for ours in beside(rows, name):
                format = ours.split(" ", 1)[1]
                peer = f"{PEERS[engine]} {own}" if PEERS[engine] else ""
                for column in columns({name: row}):
                    values = row.get("rounds", {}).get(column) or figures(row)[column]
                    is_pair = ours != name and column in figures(rows[ours])
                    times = ratio(rows[ours], row, column) if is_pair else None
                    found.append(figure(shape, format, *place_of(column), values, peer, times))
            if "packing_start_s" in row:
                found.append(figure(shape, own, "start", "packing_start_s", row["packing_start_s"]))
    return found


def beside(rows: dict[str, Row], name: str) -> list[str]:
    """Return forearm's rows that a row is compared with: the first of its width, and that of the same file."""
    engine, own = name.split(" ", 1)
    forearms = [one for one in rows if one.startswith("forearm") and rows[one]["width"] == rows[name]["width"]]
    if engine == "forearm" or not forearms:
        return [name]
    return list(dict.fromkeys([forearms[0], *(one for one in forearms if one.split(" ", 1)[1] == own)]))


def place_of(column: str) -> tuple[str, str]:
    """Return the row and the quantity that a column has in bench/results."""
    if column in REQUESTS:
        return "requests_16", column
    return (column, "tokens_s") if "_" in column and column.split("_")[1].isdigit() else ("start", column)


def is_peer(name: str, row: Row) -> bool:
    """Return whether this row is a peer's whose version is known."""
    return not name.startswith("forearm") and "version" in row


def markdown(shapes: dict[str, Any]) -> str:
    """Return all shapes' tables."""
    lines = [f"# Beside the peers, {machine_name()}", ""]
    lines += [
        "prefill_N and decode_B: tokens/s. share: of the measured read bandwidth, over the weights' bytes, at batch 1."
    ]
    lines += [
        "start_s: process start to first token. ttft_s, tpot_s, tokens_s: 16 requests at once, prompt 128, output 64."
    ]
    for name, shape in shapes.items():
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
    told = []
    for name, row in shape["rows"].items():
        has = figures(row)
        share = None
        if "decode_1" in has and shape["machine"]:
            share = has["decode_1"] * row["gb_read"] / shape["machine"]["read_gb_s"]
        lines.append(f"| {name} | " + " | ".join([*(shown(has.get(c)) for c in names), shown(share)]) + " |")
        told += [f"- {note}" for note in notes(name, row)]
        if "packing_start_s" in row:
            told.append(f"- {name}: a start that packs the weights itself takes {shown(row['packing_start_s'])} s")
    return [*lines, "", *told] if told else lines


def notes(name: str, row: Row) -> list[str]:
    """Return why a row lacks figures, and how its requests at once were asked."""
    http = row.get("http", {})
    told = [f"{name}: {row['failed']}"] if "failed" in row else []
    told += [f"{name}, requests at once: {http['failed']}"] if "failed" in http else []
    return told + ([f"{name}: requests at once in its process, without HTTP"] if http.get("in_process") else [])


def ratio_table(rows: dict[str, Row], width: int) -> list[str]:
    found = list(against_best(rows, width))
    if not found:
        return []
    head = [f"| {width} bits | " + " | ".join(column for column, _, _ in found) + " |", "|---" * (len(found) + 1) + "|"]
    best = "| best peer | " + " | ".join(name for _, name, _ in found) + " |"
    times = "| forearm is better by | " + " | ".join(f"{value:.2f}x" for _, _, value in found) + " |"
    return [*head, best, times]
