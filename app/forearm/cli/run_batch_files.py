"""A batch's input and output, files or URLs. The output is written to a partial file and moved when it is complete.

The partial file's name has a digest of the input and the settings, so that the same command with the same input resumes
where it was stopped, and no other command does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import NoReturn
from urllib.parse import urlsplit

import httpx

from forearm.cli.run_batch_lines import lines
from forearm.errors import ConfigError, ForearmError

UPLOADS, PAUSE_S = 5, 5.0  # tries, and the time between them; as in vLLM
TRANSFER_TIMEOUT_S = 1000.0
PART_BYTES = 1 << 20

log = logging.getLogger(__name__)


def is_url(name: str) -> bool:
    """True for the URL of an HTTP server."""
    return name.startswith(("http://", "https://"))


def shown(name: str) -> str:
    """Return a name for messages: a URL without signature and password, which those of object stores contain."""
    if not is_url(name):
        return name
    url = urlsplit(name)
    return f"{url.scheme}://{url.hostname}{url.path}"


@contextmanager
def local_input(name: str, folder: str | None) -> Iterator[Path]:
    """Provide the input as a local file; a URL is downloaded into `folder`.

    Raises: ConfigError if there is none.
    """
    if not is_url(name):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"--input-file {name}: there is no such file")
        yield path
        return
    with NamedTemporaryFile("wb", dir=folder, prefix="forearm-batch-", suffix=".jsonl") as file:
        try:
            with httpx.stream("GET", name, timeout=TRANSFER_TIMEOUT_S, follow_redirects=True) as reply:
                reply.raise_for_status()
                for part in reply.iter_bytes(PART_BYTES):
                    file.write(part)
        except httpx.HTTPStatusError as error:
            raise ConfigError(f"--input-file {shown(name)}: HTTP {error.response.status_code}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(f"--input-file {shown(name)}: {error or type(error).__name__}") from None
        file.flush()
        yield Path(file.name)


def check_apart(input_file: str, output_file: str) -> None:
    """Check that the output replaces neither the input nor what is no file.

    Raises: ConfigError if it would.
    """
    path = Path(output_file)
    if not is_url(output_file) and path.is_dir():
        raise ConfigError(f"--output-file {output_file}: it is a folder; name a file")
    if not is_url(output_file) and path.exists() and (not path.is_file() or path.is_relative_to("/dev")):
        raise ConfigError(f"--output-file {output_file}: the output would replace this device or pipe; name a file")
    if is_url(input_file) or is_url(output_file):
        return
    if Path(input_file).resolve() == Path(output_file).resolve():
        raise ConfigError(f"--output-file {output_file}: it is the input; name another file")


def surveyed(path: Path, most_bytes: int, settings: str) -> tuple[int, str]:
    """Count the requests, and return a digest of the input and the settings.

    Raises: ConfigError if it cannot be read.
    """
    digest, count = hashlib.sha256(settings.encode()), 0
    try:
        for _, line in lines(path, most_bytes):
            digest.update(line + b"\n")
            count += 1
    except OSError as error:
        raise ConfigError(f"--input-file {path}: {error.strerror}") from None
    return count, digest.hexdigest()[:12]


class BatchOutput:
    """The output's lines, in the order of the input: an early one waits for those before it.

    written   lines in the file
    failed    lines that are errors
    first     the first of them
    """

    def __init__(self, name: str, digest: str, folder: str | None) -> None:
        """Open the partial file, in `folder` for an upload. Raises: ConfigError if it cannot be written."""
        self._name = name
        place = Path(folder or gettempdir(), Path(urlsplit(name).path).name) if is_url(name) else Path(name)
        self._path = place.with_name(f"{place.name}.{digest}.partial")
        self._early: dict[int, bytes] = {}
        self.written, self.failed, self.first = 0, 0, b""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab+")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            end = 0
            for line in self._file:
                if line.endswith(b"\n"):
                    self._count(line)
                    end += len(line)
            self._file.truncate(end)  # a line that an earlier run did not finish
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"--output-file {shown(name)}: another run-batch writes it ({self._path})") from None
        except OSError as error:
            raise ConfigError(f"--output-file {shown(name)}: {self._path}: {error.strerror}") from None

    def put(self, number: int, line: bytes) -> None:
        """Add the answer to a request, counted from 0.

        Raises: ForearmError if it cannot be written.
        """
        self._early[number] = line
        try:
            while (ready := self._early.pop(self.written, None)) is not None:
                self._file.write(ready)
                self._count(ready)
            self._file.flush()  # a killed process loses nothing that is written
        except OSError as error:
            self._fail(error)

    def publish(self) -> None:
        """Move the complete output to its place, or upload it.

        Raises: ForearmError if that fails; the partial file stays.
        """
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            if not is_url(self._name):
                self._path.replace(self._name)
                return
        except OSError as error:
            self._fail(error)
        for attempt in range(1, UPLOADS + 1):
            why = _put(self._path, self._name)
            if why is None:
                self._path.unlink()
                return
            log.warning("%s: %s (try %d of %d)", shown(self._name), why, attempt, UPLOADS)
            if attempt < UPLOADS:
                time.sleep(PAUSE_S)
        raise ForearmError(
            f"--output-file {shown(self._name)}: {why}; the answers are in {self._path}, the same command tries again"
        )

    def close(self) -> None:
        """Leave the output unfinished."""
        self._file.close()

    def _count(self, line: bytes) -> None:
        self.written += 1
        if not line.endswith(b'"error":null}\n'):  # the last field of a line
            self.failed += 1
            self.first = self.first or line

    def _fail(self, error: OSError) -> NoReturn:
        with contextlib.suppress(OSError):
            self._file.close()
        raise ForearmError(
            f"--output-file {shown(self._name)}: {self._path}: {error.strerror}; make room: the same command resumes"
        ) from None


def _put(path: Path, url: str) -> str | None:
    """PUT a file once. Returns: the reason of a failure, else None."""
    try:
        with path.open("rb") as file:
            headers = {"Content-Length": str(path.stat().st_size), "Content-Type": "application/jsonl"}
            reply = httpx.put(url, content=iter(lambda: file.read(PART_BYTES), b""), headers=headers,
                              timeout=TRANSFER_TIMEOUT_S)  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return str(error) or type(error).__name__
    return None if reply.is_success else f"HTTP {reply.status_code}"
