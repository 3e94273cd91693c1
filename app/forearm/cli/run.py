"""`forearm run`: a conversation with a model, or one answer; a server is started if none has the model."""

from __future__ import annotations

import contextlib
import fcntl
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from forearm.cli.chat import Chat
from forearm.cli.client import Client
from forearm.cli.servers import RunningServer, running_servers
from forearm.config.environment import state_folder
from forearm.config.flags import CommandLine, CommandParser, as_flags, read_line
from forearm.descriptors import check_text
from forearm.errors import ConfigError, ForearmError
from forearm.model.checkpoint.hub import find_model
from forearm.supervisor.users import KEEP, leave, used

_PORT = 8000
_FRAME_S = 0.1  # of the progress line


def run(argv: Sequence[str]) -> int:
    """Answer the question, or converse at the terminal. Returns: the exit status.

    Raises: ConfigError for a wrong flag or model; ForearmError if the server does not start.
    """
    parser = CommandParser(
        "forearm run [MODEL] [QUESTION] [flags of serve]",
        "Talk to a model, or ask it one question (an argument, or standard input). A server is started for it if none "
        "runs, and ends with the last conversation.",
    )
    parser.add_argument("--keep", action="store_true", help="leave the server running (forearm ps, forearm stop)")
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message before the conversation")
    parser.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    parser.add_argument("--stats", action="store_true", help="print tokens and tokens/s after each answer")
    line = read_line(parser, argv, words=True)
    asked = " ".join(line.words).strip()
    if not sys.stdin.isatty():
        asked = "\n\n".join(filter(None, (asked, sys.stdin.read().strip())))
        if not asked:
            raise ConfigError("there is no question: write it behind MODEL or to standard input, or use a terminal")
    check_text("the question", asked)
    key = next(iter(line.configs.api.api_key), None)
    remedy = "the server has ended; forearm run starts another"
    with server_of(line) as server, Client(server.url, server.name, key, trusting=True, remedy=remedy) as client:
        return Chat(client, line.rest.max_tokens, line.rest.stats).run(line.rest.system_prompt, asked or None)


@contextlib.contextmanager
def server_of(line: CommandLine) -> Iterator[RunningServer]:
    """Yield a ready server with the model of a command line. One that is started here ends with its last user unless
    one has said --keep.

    The model is downloaded first, with a progress bar. Raises: ConfigError, ForearmError.
    """
    engine = line.configs.engine
    found = [server for server in running_servers() if engine.model and server.answers_to(engine.model)]
    if not found:
        place = find_model(engine.model, revision=engine.revision, **engine.hub)
        found = [server for server in running_servers() if Path(server.folder).resolve() == place.resolve()]
    if found:
        if line.texts.keys() - {"model", "api_key"}:
            print(f"{found[0].url} serves {found[0].name} already; flags of serve change nothing", file=sys.stderr)
        with (
            used(found[0].run_path, line.rest.keep) as ready,
            Client(found[0].url, found[0].name, None, trusting=True) as client,
        ):
            while ready and not client.ready():  # it may end before it takes requests
                time.sleep(_FRAME_S)
                ready = found[0] in running_servers()
            if ready:
                yield found[0]
                return
        place = Path(found[0].folder)
    name = engine.short_name(place)
    with _log(name if line.rest.keep else "") as log, contextlib.ExitStack() as stack:
        connection, end = socket.socketpair()
        stack.callback(leave, connection)
        with end:
            process = start(line, place, log, end.fileno())
        server = once_ready(process, log, name)
        if line.rest.keep:
            connection.send(KEEP)
        yield server


def start(line: CommandLine, place: Path, log: IO[bytes], user_fd: int) -> subprocess.Popen[bytes]:
    """Start `forearm serve` with the settings of a command line, for this machine alone unless they name a host.

    Ctrl-C at the terminal does not reach it: it has a session of its own. user_fd: one end of this user's connection.
    """
    given, api = line.texts, line.configs.api
    chosen: dict[str, Sequence[str]] = {"model": [str(place)]}
    if not api.served_model_name:
        chosen["served_model_name"] = [api.short_name(place)]
    if not api.host:
        chosen["host"] = ["127.0.0.1"]
    if not api.uds and api.port == _PORT and "port" not in given:
        chosen["port"] = [str(_free_port(_PORT if line.rest.keep else 0))]
    if line.configs.engine.max_model_len is None:
        chosen["max_model_len"] = ["auto"]
    file = ["--config", line.rest.config] if line.rest.config else []
    return subprocess.Popen(
        [sys.executable, "-m", "forearm", "serve", f"--user-fd={user_fd}", *file, *as_flags({**given, **chosen})],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=(user_fd,),
    )


def once_ready(process: subprocess.Popen[bytes], log: IO[bytes], name: str) -> RunningServer:
    """Wait until a server takes requests, with a progress line at a terminal.

    Raises: ForearmError with the first error of its log, else the last line, if it ends.
    """
    started, shown = time.monotonic(), sys.stderr.isatty()
    while process.poll() is None:
        if shown:
            print(f"\rloading {name} ... {time.monotonic() - started:.1f} s", end="", flush=True, file=sys.stderr)
        for server in running_servers():
            if server.pid != process.pid:
                continue
            with Client(server.url, name, None, trusting=True) as client:
                ready = client.ready()
            if ready:
                if shown:
                    print("\r\x1b[K", end="", flush=True, file=sys.stderr)
                return server
        time.sleep(_FRAME_S)
    if shown:
        print(file=sys.stderr)
    log.seek(0)
    said = log.read().decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"]
    errors = [line.partition(" ERROR ")[2] for line in said if " ERROR " in line]
    raise ForearmError(f"the server has ended: {[*errors, said[-1]][0].removeprefix('forearm serve: ')}")


@contextlib.contextmanager
def _log(name: str) -> Iterator[IO[bytes]]:
    """Open the log of the server: one in the state folder with this name if it outlives this process, else without any.

    The server inherits the file's lock, so that another one of the same name takes the next number.
    """
    if not name:
        with tempfile.TemporaryFile() as file:
            yield file
        return
    start, number = state_folder() / f"serve-{re.sub(r'[^-.0-9A-Za-z]', '_', name)}", 1
    while True:
        path = start.with_name(f"{start.name}{f'-{number}' if number > 1 else ''}.log")
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                number += 1
                continue
            file.truncate(0)
            print(f"the server's log: {path}", file=sys.stderr)
            yield file
            return


def _free_port(preferred: int) -> int:
    """Return a port of this machine that no program listens on: the preferred one if it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", preferred))
            return int(probe.getsockname()[1])
    return _free_port(0)
