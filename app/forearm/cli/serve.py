"""`forearm serve`: gunicorn is started before the command line is read, because its imports take longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forearm.supervisor.first_process import started_early

if TYPE_CHECKING:
    from forearm.config.flags import CommandLine


def run(argv: Sequence[str]) -> int:
    """`forearm serve [MODEL] [flags]`."""
    if any(word == "-h" or word.startswith("--help") for word in argv):
        _read(argv)  # it prints the help, and ends
    with started_early() as first:
        line = _read(argv)
        from forearm.supervisor.serve import serve

        return serve(line.configs, line.notes, first, line.rest.user_fd)


def _read(argv: Sequence[str]) -> CommandLine:
    from argparse import SUPPRESS

    from forearm.config.flags import CommandParser, read_line

    parser = CommandParser("forearm serve [MODEL] [flags]", "Serve a model over HTTP, as OpenAI's API.")
    parser.add_argument("--user-fd", type=int, help=SUPPRESS)  # of forearm run
    return read_line(parser, argv)
