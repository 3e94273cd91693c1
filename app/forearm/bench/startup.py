"""`forearm bench startup`: how long a model takes until it can be asked, with its files in the page cache and without.

Cold: the model's files are evicted from the page cache (unless others have them mapped), and the weight cache, if
there is to be one, is an empty folder. Warm: the files are in the page cache, the weight cache has been filled. Nothing
is compiled at start, so vLLM's figures of compilation are 0. Each start is a process of its own, timed from the call
of LLM() to its return, as in vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from forearm.bench import options
from forearm.bench.offline import percentiles, save
from forearm.config.configs import STARTUP
from forearm.config.engine_config import EngineConfig
from forearm.config.flags import CommandParser, read_line
from forearm.config.settings import to_json
from forearm.errors import ConfigError, ForearmError
from forearm.model.checkpoint.hub import find_model

ONCE = """import sys, time
from forearm.config.engine_config import EngineConfig
from forearm.errors import ConfigError
from forearm.offline.arguments import changed_settings
from forearm.config.settings import from_json
from forearm.offline.llm import LLM
config = from_json(EngineConfig, open(sys.argv[1]).read())
begin = time.perf_counter()
try:
    llm = LLM(**changed_settings(config))
except ConfigError as error:
    sys.exit(str(error))
print(time.perf_counter() - begin)
"""


def startup(argv: Sequence[str]) -> int:
    """Start the model a few times cold and a few times warm. Returns: the exit status.

    Raises: ConfigError; ForearmError with the last words of a start that failed.
    """
    parser = CommandParser("forearm bench startup [MODEL] [flags]", "How long a model takes until it can be asked.")
    for flag, default, what in (
        ("--num-iters-cold", 3, "cold starts"),
        ("--num-iters-warmup", 1, "starts before the warm ones"),
        ("--num-iters-warm", 3, "warm starts"),
    ):
        parser.add_argument(flag, type=int, default=default, help=what)
    parser.add_argument("--output-json", metavar="FILE", help="also write the result there")
    line = read_line(parser, options.dashed(argv), STARTUP)
    args, engine = line.rest, line.configs.engine
    if min(args.num_iters_cold, args.num_iters_warm) < 1:
        raise ConfigError("--num-iters-cold and --num-iters-warm are at least 1")
    folder = find_model(engine.model, revision=engine.revision, **engine.hub)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="forearm-startup-") as caches:
        cold = [Path(caches, f"cold-{i}") for i in range(args.num_iters_cold)]

        def start_cold(number: int) -> float:
            evict(folder)
            return start(replace(engine, weight_cache=str(cold[number])) if engine.weight_cache else engine)

        found |= figures("cold", timed("Cold startup iterations", args.num_iters_cold, start_cold))
        timed("Warmup iterations", args.num_iters_warmup, lambda _: start(engine))
        found |= figures("warm", timed("Warm startup iterations", args.num_iters_warm, lambda _: start(engine)))
    print(table(found))
    save(found, args.output_json)
    return 0


def timed(name: str, count: int, action: Callable[[int], float]) -> list[float]:
    """Return the seconds of each call of `action`."""
    return [action(number) for number in tqdm(range(count), desc=name)]


def start(engine: EngineConfig) -> float:
    """Return the seconds of one start, in a new process.

    Raises: ForearmError.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        config.write(to_json(engine))
        config.flush()
        argv = [sys.executable, "-c", ONCE, config.name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ForearmError(f"the model does not start: {last[0]}")
    return float(done.stdout.split()[-1])


def evict(folder: Path) -> None:
    """Evict a model's files from the page cache; what others have mapped stays."""
    for path in [folder] if folder.is_file() else folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def figures(phase: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Return the times under vLLM's keys."""
    found: dict[str, Any] = {}
    for name, values in ((f"{phase}_startup", list(seconds)), (f"{phase}_compilation", [0.0] * len(seconds))):
        found |= {
            f"avg_{name}_time": sum(values) / len(values),
            f"{name}_times": values,
            f"{name}_percentiles": percentiles(values),
        }
    return found


def table(found: dict[str, Any]) -> str:
    """Return the figures as vLLM prints them."""
    lines = ["=" * 60, "STARTUP TIME BENCHMARK RESULTS", "=" * 60]
    for phase in ("cold", "warm"):
        lines += ["", f"{phase.upper()} STARTUP:"]
        names = (("Startup time", f"{phase}_startup"), ("Compilation time", f"{phase}_compilation"))
        lines += [f"Avg {shown.lower()}: {found[f'avg_{name}_time']:.2f} seconds" for shown, name in names]
        for shown, name in names:
            lines.append(f"{shown} percentiles:")
            lines += [f"  {p}%: {value:.2f} seconds" for p, value in found[f"{name}_percentiles"].items()]
    return "\n".join([*lines, "=" * 60])
