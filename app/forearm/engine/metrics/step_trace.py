"""A recording of steps and their parts as a Chrome trace, for Perfetto and chrome://tracing.

Each step is appended to the file at once, so memory does not grow; viewers also read a file that a crash has cut off.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from forearm import wire
from forearm.config.settings import PROFILER_FOLDER, profiler
from forearm.errors import ConfigError

# A step has 7 events of 100 to 190 bytes, so this is 140 000 steps, 120 MB: browsers' viewers open no larger file.
MAX_EVENTS = 1_000_000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recording:
    """Settings of a recording. delay_steps: skipped after the start; max_steps: recorded after them, 0 for all."""

    folder: Path
    delay_steps: int = 0
    max_steps: int = 0
    max_events: int = MAX_EVENTS


def recording_of(config: Mapping[str, Any] | None) -> Recording | None:
    """Return the recording that --profiler-config configures.

    Raises: ConfigError.
    """
    try:
        asked = profiler(json.dumps(config or {}))
    except ValueError as error:
        raise ConfigError(f"--profiler-config: {error}") from None
    return (
        Recording(Path(asked[PROFILER_FOLDER]), asked["delay_iterations"], asked["max_iterations"]) if asked else None
    )


class StepTrace:
    """Records the steps of engine number `engine` while switched on. Only the loop's thread calls it.

    recording: None: recording is not configured.
    Raises: ConfigError if no file can be made in the folder.
    """

    def __init__(self, recording: Recording | None = None, engine: int = 0) -> None:
        self._recording, self._engine = recording, engine
        self._file: FileIO | None = None
        self._error = ""
        self._events = self._steps = 0
        self._laps: list[tuple[str, int]] = []  # parts of this step and their start times in ns
        if recording is not None:
            probe = recording.folder / f".forearm-{time.time_ns()}"
            try:
                recording.folder.mkdir(parents=True, exist_ok=True)
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise ConfigError(
                    f"--profiler-config: {PROFILER_FOLDER} {recording.folder}: {error.strerror}"
                ) from None

    @property
    def on(self) -> bool:
        """Return whether steps are recorded."""
        return self._file is not None

    def answer(self, asked: wire.Profile) -> wire.Profiled:
        """Start or stop the recording, unless it is already in that state."""
        if asked.start:
            self._start()
        else:
            self.close()
        error, self._error = self._error, ""
        return wire.Profiled(error)

    def begin(self, part: str) -> None:
        """Begin a step with this part."""
        if self._file is not None:
            self._laps = [(part, time.perf_counter_ns())]

    def part(self, name: str) -> None:
        """Begin another part of the step, which ends the one before."""
        if self._file is not None:
            self._laps.append((name, time.perf_counter_ns()))

    def end(self, **counts: int) -> None:
        """End the step; `counts`: its numbers of tokens and sequences."""
        if self._file is None or not self._laps:
            return
        laps, self._laps = [*self._laps, ("", time.perf_counter_ns())], []
        self._steps += 1
        number = self._steps - self._asked.delay_steps
        if number <= 0:
            return
        parts = [self._event(name, start_ns, end_ns) for (name, start_ns), (_, end_ns) in pairwise(laps)]
        self._write(self._event("step", laps[0][1], laps[-1][1], {"step": number, **counts}), *parts)
        if number == self._asked.max_steps:
            self.close()
        elif self._events >= self._asked.max_events:
            log.warning("%d events are recorded, as many as a file may have", self._events)
            self.close()

    def close(self) -> None:
        """End the file, if there is one."""
        self._put(b"\n]\n")
        if self._file is not None:
            log.info("%d steps are recorded in %s", max(self._steps - self._asked.delay_steps, 0), self._file.name)
            self._file.close()
            self._file = None

    @property
    def _asked(self) -> Recording:
        assert self._recording is not None, "steps are recorded only where there is a folder for them"
        return self._recording

    def _start(self) -> None:
        if self._file is not None:
            return
        if self._recording is None:
            self._error = "this engine records no steps; start it with --profiler-config"
            return
        now = datetime.now(timezone.utc)
        path = self._recording.folder / f"forearm-{self._engine}-{now:%Y%m%dT%H%M%S.%f}.trace.json"
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            self._error = f"{path}: {error.strerror}"
            return
        log.info("steps are recorded in %s", path)
        self._events = self._steps = 0
        self._laps = []
        named = {"name": "process_name", "ph": "M", "pid": self._engine, "args": {"name": f"engine {self._engine}"}}
        started = {"name": "started", "ph": "M", "pid": self._engine, "args": {"utc": now.isoformat()}}
        self._put(b"[\n" + msgspec.json.encode(named))
        self._write(started)

    def _event(self, name: str, start_ns: int, end_ns: int, args: dict[str, int] | None = None) -> dict[str, Any]:
        times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}  # in microseconds
        event = {"name": name, "cat": "engine", "ph": "X", "pid": self._engine, "tid": 1, **times}
        return event if args is None else {**event, "args": args}

    def _write(self, *events: dict[str, Any]) -> None:
        self._events += len(events)
        self._put(b"".join(b",\n" + msgspec.json.encode(event) for event in events))

    def _put(self, content: bytes) -> None:
        """Append to the file; if that fails, the recording ends, and the next answer has the reason."""
        if self._file is None:
            return
        try:
            if self._file.write(content) == len(content):
                return
            why = "No space left on device"
        except OSError as error:
            why = error.strerror or str(error)
        self._error = f"{self._file.name}: {why}; the file is cut off"
        log.error("%s", self._error)
        self._file.close()
        self._file = None
