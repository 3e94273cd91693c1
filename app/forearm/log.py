"""Log lines of every process: `12:00:01 INFO engine: text`, or JSON, on standard error.

A line about one HTTP request carries its id in `extra={"request_id": …}`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import logging.config
import os
import stat
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from queue import Full, Queue
from typing import Any

from forearm.config.common import LOG_LEVELS, Common
from forearm.errors import ConfigError

QUIET = ("httpx", "httpcore", "urllib3", "filelock", "asyncio", "transformers", "huggingface_hub", "opentelemetry")
MOST_WAITING = 2_000  # lines
LAST_LINES_S = 1.0
LEVEL_FILE = "log_level"  # in the run folder: the current level, where it is not the configured one


def set_up(config: Common, process: str) -> None:
    """Send the logs of this process to standard error; `process` (serve, engine, api) stands in every line.

    VLLM_CONFIGURE_LOGGING=0 leaves logging as it is; VLLM_LOGGING_CONFIG_PATH replaces all of this.
    Raises: ConfigError naming that file.
    """
    if not config.configure_logging:
        return
    if config.logging_config_path:
        path = config.logging_config_path
        try:
            given = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(given, dict):
                raise ValueError("it is no JSON object")
            logging.config.dictConfig(given)
        except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
            said = error.strerror if isinstance(error, OSError) else error.__cause__ or error
            remedy = "write JSON for Python's logging.config.dictConfig"
            raise ConfigError(f"--log-config-file {path}: {said}; {remedy}") from None
        return
    stderr = QueuedLines()
    stderr.setFormatter(
        JsonLines(process) if config.log_format == "json" else TextLines(process, config.logging_prefix)
    )
    logging.basicConfig(level=config.logging_level, handlers=[stderr], force=True)
    set_level(config.logging_level)


def set_level(level: str) -> None:
    """Log lines of this level and above; libraries at WARNING at least, as their INFO is not about this server."""
    logging.getLogger().setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def follow(run_folder: str) -> None:
    """Log at the level that serve has written into its run folder, if any: what a process does on SIGHUP."""
    file = Path(run_folder, LEVEL_FILE)
    level = file.read_text().strip() if run_folder and file.exists() else ""
    if level in LOG_LEVELS:
        set_level(level)
        logging.getLogger(__name__).debug("this process now logs at level %s", level)


def change_level(run_folder: Path, configured: str) -> None:
    """Switch between DEBUG and the configured level, for all processes of this server that call `follow`."""
    file = run_folder / LEVEL_FILE
    was = file.read_text() if file.exists() else configured
    level = configured if was == "DEBUG" else "DEBUG"
    file.write_text(level)
    set_level(level)
    logging.getLogger(__name__).warning("the log level is now %s", level)


class QueuedLines(logging.Handler):
    """Writes lines to standard error on a thread of its own: a pipe that is not read blocks that thread and nothing
    else. MOST_WAITING lines are queued; later ones are dropped and counted in one line once there is room.
    """

    dropped: int

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stderr
        with contextlib.suppress(OSError, ValueError):  # not a file, or closed
            number = self._stream.fileno()
            if stat.S_ISREG(os.fstat(number).st_mode):  # a log that is truncated (logrotate) goes on at its new end
                fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_APPEND)
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin with an empty queue: a fork has no thread, and its parent writes what was queued before."""
        self.dropped = 0
        self._waiting: Queue[str] = Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line, or count it."""
        try:
            self._waiting.put_nowait(f"{self.format(record)}\n")
        except Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until all is written, LAST_LINES_S at most: an unread pipe must not keep a process from ending."""
        end = time.monotonic() + LAST_LINES_S
        while self._waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _write_all(self) -> None:
        waiting, reported = self._waiting, 0
        while True:
            self._write(waiting.get())
            if self.dropped > reported:
                reported, new = self.dropped, self.dropped - reported
                text = f"{new} log lines were dropped because the log was not read"
                record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
                self._write(f"{self.format(record)}\n")
            waiting.task_done()

    def _write(self, line: str) -> None:
        """Write the whole line, however long that takes; it is dropped if the log's reader is gone."""
        try:
            number = self._stream.fileno()
        except (OSError, ValueError):  # not a file, or closed
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line)
            return
        rest = line.encode(errors="backslashreplace")
        while rest:
            try:
                rest = rest[os.write(number, rest) :]
            except OSError as error:  # noqa: PERF203  (a line is one write)
                if not isinstance(error, BlockingIOError):
                    self.dropped += 1
                    return
                time.sleep(0.05)  # another process has made the pipe non-blocking


class TextLines(logging.Formatter):
    """`12:00:01 INFO api: [request id] text`, with line breaks escaped, so that no client can forge a line."""

    def __init__(self, process: str, prefix: str) -> None:
        start = f"{prefix} ".replace("%", "%%") if prefix else ""
        super().__init__(f"{start}%(asctime)s %(levelname)s {process}: %(request)s%(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by those of a traceback."""
        about = getattr(record, "request_id", "")
        record.request = f"[{about}] " if about else ""
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without the traceback."""
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, process, logger, message; request_id, exception and the keys of
    `extra={"fields": …}` where there are any.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if about := getattr(record, "request_id", ""):
            line["request_id"] = about
        if isinstance(fields := getattr(record, "fields", None), Mapping):
            line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
