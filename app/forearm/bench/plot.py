"""Results as a figure: mean TTFT, and beside it mean TPOT, against total throughput, each point with its request rate.

A line for each label. It is the figure of "Enabling vLLM on ARM for scalable LLM inference" (Fujitsu, 2025), as SVG
without a library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from forearm.bench.report import BenchResult, load
from forearm.config.flags import CommandParser
from forearm.errors import ConfigError

PANEL_W, PANEL_H = 560, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 60
TICKS = 6
LOG_FROM = 30  # times from the least to the greatest, where a linear axis would squeeze the small ones together
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito
KEYS = {"mean_ttft_ms": "mean TTFT (ms)", "mean_tpot_ms": "mean TPOT (ms)"}
HALO = 'stroke="white" stroke-width="3" paint-order="stroke"'  # keeps a number readable on a line
X_KEY, X_TITLE = "total_token_throughput", "total throughput, prefill and decoding (tokens/s)"


def plot(argv: Sequence[str]) -> int:
    """Draw results of bench serve, ours or vLLM's, with a line for each label. Returns: the exit status."""
    parser = CommandParser(
        "forearm bench plot FILES --out FILE.svg", "TTFT and TPOT against total throughput, by rate."
    )
    parser.add_argument("files", nargs="+", metavar="FILES", help="JSON of --save-result or --append-result")
    parser.add_argument("--out", required=True, metavar="FILE.svg")
    given = parser.parse_args(argv)
    try:
        results = [result for name in given.files for result in load(Path(name))]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{' '.join(given.files)}: {error}") from None
    try:
        Path(given.out).write_text(svg(results), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {given.out}: {error.strerror}") from None
    return 0


@dataclass(frozen=True)
class Axis:
    """A map of values to pixels."""

    low: float
    high: float
    log: bool
    from_px: float
    to_px: float

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.from_px + (value - low) / (high - low) * (self.to_px - self.from_px)

    def ticks(self) -> list[float]:
        """Return the axis's ticks: 1, 2 and 5 times powers of ten."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = [step * 10.0**power for power in powers for step in (1, 2, 5)]
            return [tick for tick in every if self.low <= tick <= self.high]
        power = 10.0 ** math.floor(math.log10((self.high - self.low) / TICKS))
        step = next(times * power for times in (1, 2, 5, 10) if times * power >= (self.high - self.low) / TICKS)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def svg(results: Sequence[BenchResult]) -> str:
    """Return the figure as SVG.

    Raises: ConfigError if a result lacks what is drawn.
    """
    for result in results:
        missing = [key for key in (X_KEY, *KEYS) if key not in result]
        if missing:
            raise ConfigError(f"a result has no {missing[0]}: leave ttft and tpot in --percentile-metrics")
    lines: dict[str, list[BenchResult]] = {}
    for result in results:
        name = result.get("label") or f"{result.get('backend', '?')}, {result.get('model_id', '?')}"
        lines.setdefault(str(name), []).append(result)
    series = {label: sorted(found, key=_rate) for label, found in lines.items()}
    width, height = 2 * PANEL_W, PANEL_H + 20 * len(series)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (key, title) in enumerate(KEYS.items()):
        parts += [f'<g transform="translate({number * PANEL_W} 0)">', *_panel(series, key, title), "</g>"]
    for number, label in enumerate(series):
        y = PANEL_H + 20 * number
        parts.append(f'<rect x="{LEFT}" y="{y}" width="14" height="10" fill="{_colour(number)}"/>')
        parts.append(f'<text x="{LEFT + 22}" y="{y + 9}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(series: dict[str, list[BenchResult]], key: str, title: str) -> Iterator[str]:
    shown = [result for found in series.values() for result in found]
    x = _axis([result[X_KEY] for result in shown], LEFT, PANEL_W - RIGHT, may_log=False)
    y = _axis([result[key] for result in shown], PANEL_H - BOTTOM, TOP, may_log=True)
    bottom, right = PANEL_H - BOTTOM, PANEL_W - RIGHT
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<line x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for tick in x.ticks():
        at = x.at(tick)
        yield f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#eee"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="black"/>'
    yield f'<text x="{(LEFT + right) / 2}" y="{bottom + 40}" text-anchor="middle">{X_TITLE}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 14}" font-weight="bold">{title}, by request rate (1/s)</text>'
    for number, found in enumerate(series.values()):
        points = [(x.at(result[X_KEY]), y.at(result[key])) for result in found]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        yield f'<polyline points="{line}" fill="none" stroke="{_colour(number)}" stroke-width="1.5"/>'
        for result, (px, py) in zip(found, points, strict=True):
            yield f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{_colour(number)}"/>'
            yield f'<text x="{px + 6:.1f}" y="{py - 6:.1f}" fill="{_colour(number)}" {HALO}>{_rate(result):g}</text>'


def _axis(values: Sequence[float], from_px: float, to_px: float, may_log: bool) -> Axis:
    """Choose an axis from 0 to a little more than the largest value; logarithmic where values are far apart."""
    greatest, least = max(values) or 1.0, min(values)
    if may_log and 0 < least * LOG_FROM < greatest:
        return Axis(least / 1.5, greatest * 1.5, True, from_px, to_px)
    return Axis(0.0, greatest * 1.12, False, from_px, to_px)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _rate(result: BenchResult) -> float:
    return float(result.get("request_rate", "inf"))
