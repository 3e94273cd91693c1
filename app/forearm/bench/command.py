"""`forearm bench KIND`: runs one kind, whose modules are imported only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from forearm.config.flags import CommandParser
from forearm.errors import ConfigError

USAGE = """usage: forearm bench KIND ...

  serve        a running server under load: latencies and throughput, one request rate or several
  throughput   this machine, all requests at once, without HTTP
  latency      this machine, one batch of requests
  startup      time until a model is ready, cold and warm
  plot FILES   results of serve as a figure

`forearm bench KIND --help` lists the flags: those of vllm bench."""


def bench(argv: Sequence[str]) -> int:
    """Run one kind. Returns: the exit status.

    Raises: ConfigError.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if argv else 2
    kind = KINDS.get(argv[0])
    if kind is None:
        raise ConfigError(f"there is no kind {argv[0]}\n\n{USAGE}")
    return kind(argv[1:])


def _serve(argv: Sequence[str]) -> int:
    from forearm.bench.serve import serve

    return serve(argv)


def _throughput(argv: Sequence[str]) -> int:
    from forearm.bench.offline import throughput

    return throughput(argv)


def _latency(argv: Sequence[str]) -> int:
    from forearm.bench.offline import latency

    return latency(argv)


def _startup(argv: Sequence[str]) -> int:
    from forearm.bench.startup import startup

    return startup(argv)


def _plot(argv: Sequence[str]) -> int:
    """`forearm bench plot FILES --out FILE.svg`: files of bench serve, ours or vLLM's; a line for each label."""
    parser = CommandParser(
        "forearm bench plot FILES --out FILE.svg", "TTFT and TPOT against total throughput, by rate."
    )
    parser.add_argument("files", nargs="+", metavar="FILES", help="JSON of --save-result or --append-result")
    parser.add_argument("--out", required=True, metavar="FILE.svg")
    given = parser.parse_args(argv)
    from forearm.bench import plot, report

    try:
        results = [result for name in given.files for result in report.load(Path(name))]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{' '.join(given.files)}: {error}") from None
    try:
        Path(given.out).write_text(plot.svg(results), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {given.out}: {error.strerror}") from None
    return 0


KINDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": _serve,
    "throughput": _throughput,
    "latency": _latency,
    "startup": _startup,
    "plot": _plot,
}
