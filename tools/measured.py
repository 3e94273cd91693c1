"""Look up figures in bench/results."""

from __future__ import annotations

from pathlib import Path

from bench.records import Figure, Results, read

RESULTS = Path(__file__).resolve().parents[1] / "bench" / "results"
Column = tuple[str, str]  # row and quantity of a figure


class Measured:
    """All files of bench/results; for each figure of `compare`, the value of the run with the most rounds."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.kinds: dict[str, dict[str, Results]] = {}
        for path in sorted(folder.glob("*/*.json")):
            self.kinds.setdefault(path.parent.name, {})[path.stem] = read(path)
        self._best: dict[tuple[str, str, str, str, str, str], Figure] = {}
        for machine, results in self.kinds["compare"].items():
            for one in (one for run in results.runs for one in run.figures):
                key = (machine, one.shape, one.format, one.row, one.quantity, one.peer)
                if key not in self._best or len(one.rounds) >= len(self._best[key].rounds):
                    self._best[key] = one
        runs = [run for results in self.kinds.get("quality", {}).values() for run in results.runs]
        figures = (one for run in sorted(runs, key=lambda run: run.date) for one in run.figures)  # the newest counts
        rises = (one for one in figures if one.quantity == "perplexity_rise")
        self._rise = {(one.format, one.peer): one.value for one in rises if not one.row.startswith("second halves")}

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

    def rise(self, format: str, peer: str = "") -> str:
        """Return the rise of perplexity as the tables show it; a dash if it was not measured."""
        found = [value for (own, name), value in self._rise.items() if name == peer and (peer or own == format)]
        return f"{100 * found[0]:+.1f} %" if found else "–"
