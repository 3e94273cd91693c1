"""Look up figures in bench/results."""

from __future__ import annotations

from pathlib import Path

from bench.records import Figure, Results, read

RESULTS = Path(__file__).resolve().parents[1] / "bench" / "results"
Column = tuple[str, str]  # row and quantity of a figure


ENOUGH_ROUNDS = 3


class Measured:
    """All files of bench/results; for each figure of `compare`, the value of the run with the most rounds.

    More than ENOUGH_ROUNDS count as so many, so that a later run of a newer version takes an earlier one's place.
    """

    def __init__(self, folder: Path = RESULTS) -> None:
        self.kinds: dict[str, dict[str, Results]] = {}
        for path in sorted(folder.glob("*/*.json")):
            self.kinds.setdefault(path.parent.name, {})[path.stem] = read(path)
        self._best: dict[tuple[str, str, str, str, str, str], Figure] = {}
        for machine, results in self.kinds["compare"].items():
            for one in (one for run in results.runs for one in run.figures):
                key = (machine, one.shape, one.format, one.row, one.quantity, one.peer)
                if key not in self._best or _weight(one) >= _weight(self._best[key]):
                    self._best[key] = one
        runs = [run for results in self.kinds.get("quality", {}).values() for run in results.runs]
        beside = (run for run in sorted(runs, key=lambda run: run.date) if any(one.peer for one in run.figures))
        figures = (one for run in beside for one in run.figures)  # the newest counts
        self._quality: dict[tuple[str, str], dict[str, float]] = {}
        for one in (one for one in figures if not one.row.startswith("second halves")):
            self._quality.setdefault((one.format, one.peer), {})[one.quantity] = one.value

    def find(self, machine: str, shape: str, format: str, column: Column, peer: str = "") -> Figure | None:
        """Return the figure of this row and quantity."""
        return self._best.get((machine, shape, format, *column, peer))

    def peers(self, machine: str, shape: str, format: str) -> list[str]:
        """Return the names of the peers of this format, without forearm's, which is empty."""
        return list(dict.fromkeys(key[5] for key in self._best if key[:3] == (machine, shape, format) and key[5]))

    def hardest(self, machine: str, shape: str, format: str, column: Column, engine: str) -> float | None:
        """Return forearm's ratio to this engine: the lowest if several of its formats are compared with ours."""
        found = [self.find(machine, shape, format, column, peer) for peer in self.peers(machine, shape, format)]
        ratios = [one.ratio for one in found if one and one.ratio and one.peer.startswith(engine)]
        return min(ratios, default=None)

    def quality(self, format: str, peer: str = "") -> str:
        """Return the rise of perplexity and the KL divergence as the tables show them; a dash if not measured.

        Runs without peers do not count: they may have been of other texts.
        """
        for (own, name), found in self._quality.items():
            if name == peer and (peer or own == format) and "divergence" in found:
                percent = round(100 * found["perplexity_rise"], 1) + 0.0  # no -0.0
                return f"{percent:+.1f} %, {found['divergence']:.2g}"
        return "–"


def _weight(one: Figure) -> int:
    return min(len(one.rounds), ENOUGH_ROUNDS)
