"""`forearm ps` and `forearm stop`: the servers of this user on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forearm.cli.health import address, ask
from forearm.config.flags import CommandParser
from forearm.config.settings import hub_id
from forearm.errors import ConfigError, ForearmError
from forearm.supervisor.addresses import url
from forearm.supervisor.run_folder import open_run_folders

_STOP_S = 60.0  # a server drains for --shutdown-timeout, 30 s by default


@dataclass(frozen=True)
class RunningServer:
    """A running `forearm serve`. name: as the command line has it. folder: the model's folder or .gguf file.

    run_path: its run folder.
    """

    pid: int
    name: str
    folder: str
    url: str
    run_path: Path

    def answers_to(self, word: str) -> bool:
        """True if a user can mean this server with a name, path, file name, hub address, port or process id."""
        place, port = Path(self.folder), self.url.rsplit(":", 1)[-1]
        words = {self.name, self.folder, place.name, place.stem, port, self.url, str(self.pid)}
        return word in words or hub_id(word) == self.name or Path(word).expanduser().resolve() == place.resolve()


def running_servers() -> list[RunningServer]:
    """Return the servers of this user that have written their configs, in the order of their process ids."""
    found = []
    for folder, pid in open_run_folders():
        with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):  # it starts or ends just now
            api = json.loads((folder / "api.json").read_text())
            engine = json.loads(next(folder.glob("engine*.json")).read_text())
            host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(api["host"], api["host"])
            at = f"unix:{api['uds']}" if api["uds"] else url(host, api["port"], https=bool(api["ssl_certfile"]))
            found.append(RunningServer(pid, engine["name"], api["model_folder"], at, folder))
    return sorted(found, key=lambda server: server.pid)


def server_url(model: str | None) -> str:
    """Return the address of this user's running server, or of the one that has `model`; of none the default address.

    Among several, the one at the default port is meant.
    Raises: ConfigError with all of them if it is none of them.
    """
    servers = running_servers()
    meant = [server for server in servers if model and server.answers_to(model)] or servers
    meant = [server for server in meant if server.url.endswith(":8000")] or meant
    if len(meant) > 1:
        running = ", ".join(f"{server.name} at {server.url}" for server in meant)
        raise ConfigError(f"several servers run: {running}; choose one with --url")
    return meant[0].url if meant else "http://localhost:8000"


def run_ps(argv: Sequence[str]) -> int:
    """Print a line for each running server. Returns: the exit status."""
    from forearm.cli.stored_models import in_words, table

    CommandParser("forearm ps", "List the running servers of this user on this machine.").parse_args(argv)
    rows = [("NAME", "ADDRESS", "PID", "STATE", "MEMORY", "SINCE")]
    for server in running_servers():
        started = time.localtime(Path(f"/proc/{server.pid}").stat().st_mtime)
        memory = in_words(sum(map(_resident_bytes, _family_of(server.pid))))
        rows.append(
            (server.name, server.url, str(server.pid), _state(server.url), memory, time.strftime("%F %R", started))
        )
    print(table(rows))
    return 0


def run_stop(argv: Sequence[str]) -> int:
    """Stop servers, which drain first; wait until they have ended. Returns: the exit status.

    Raises: ConfigError if none or several have the name; ForearmError if one does not end.
    """
    parser = CommandParser("forearm stop MODEL...", "Stop running servers: by name, port or process id (forearm ps).")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    for word in parser.parse_args(argv).models:
        servers = running_servers()
        meant = [server for server in servers if server.answers_to(word)]
        if len(meant) != 1:
            running = ", ".join(f"{server.name} at {server.url}" for server in meant or servers) or "none"
            raise ConfigError(
                f"{word}: {'several servers have' if meant else 'no server has'} that name; running: {running}"
            )
        stop(meant[0])
    return 0


def stop(server: RunningServer) -> None:
    """End a server in order, and wait for it.

    Raises: ForearmError if it takes longer than a minute.
    """
    os.kill(server.pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_S
    while server in running_servers():
        if time.monotonic() > end:
            raise ForearmError(
                f"{server.name} (process {server.pid}) has open requests; kill -9 {server.pid} ends it now"
            )
        time.sleep(0.05)


def _state(url: str) -> str:
    if url.startswith("unix:"):
        return "-"  # health asks over TCP
    try:
        return "ready" if ask(*address(url))[0] == 200 else "not ready"
    except OSError:
        return "starting"


def _family_of(pid: int) -> Iterable[int]:
    """Yield a process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family_of(int(child))


def _resident_bytes(pid: int) -> int:
    """Return a process's own memory and its share of what it shares; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
