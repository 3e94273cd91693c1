"""The parent's end of run.py: an engine's process and the requests to it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.contestants import DRIVERS, Missing

Steps = list[tuple[float, list[int]]]
END_S = 60  # that a process may take to end


class Driven:
    """The process of a loaded contestant. `close` ends it.

    start_s: from the process' start to its first token. peak_bytes: its largest resident set so far.
    Raises: Missing, from every call, when the process ended or took too long.
    """

    def __init__(self, python: Path, engine: str, settings: dict[str, Any], timeout_s: float) -> None:
        # pip compiles what it installs; what it links to (-e) is compiled by the first start that may write.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it lives as long as the process
        self._timeout_s = timeout_s
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [python, DRIVERS / "run.py", engine, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment | {"OMP_NUM_THREADS": str(settings["threads"]), "HF_HUB_OFFLINE": "1"},
        )
        self.version = self._answer()["version"]
        self.peak_bytes = 0
        self.generate([[300 + i for i in range(8)]], 1)
        self.start_s = time.perf_counter() - begin

    def generate(self, prompts: list[list[int]], tokens: int) -> Steps:
        """Return the times of each step's tokens, in seconds from the request, and their prompts."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.peak_bytes = answer["peak_bytes"]
        return [(seconds, numbers) for seconds, numbers in answer["steps"]]

    def close(self) -> None:
        """End the process once it is done: forearm keeps packed weights for the next start."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended before
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], self._timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._log.seek(0)
            last = [line.strip() for line in self._log.read().splitlines() if line.strip()][-1:] or ["it said nothing"]
            self.close()
            raise Missing(f"no answer within {self._timeout_s:.0f} s" if not ready else f"it ended: {last[0][-200:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def prefill_s(steps: Steps) -> float:
    """Return the seconds to the first token."""
    return next(seconds for seconds, numbers in steps if numbers)


def step_s(steps: Steps, sequences: int) -> float:
    """Return the median seconds of a decode step with all sequences.

    Raises: Missing if no two steps had them all.
    """
    full = [seconds for seconds, numbers in steps if len(numbers) == sequences]
    if len(full) < 2:
        raise Missing(f"no two steps had all {sequences} sequences")
    return median(b - a for a, b in pairwise(full))
