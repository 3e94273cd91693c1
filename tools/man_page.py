"""Write app/forearm.1, the manual page: commands, flags and variables as --help has them. tests/house checks it.

    python tools/man_page.py; man -l app/forearm.1

Source of the macros: groff_man(7).
"""

from __future__ import annotations

import argparse
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from forearm import __version__
from forearm.bench.command import KINDS
from forearm.cli.main import COMMANDS, USAGE
from forearm.config import configs
from forearm.config.flags import CommandParser
from forearm.errors import ConfigError

PAGE = Path(__file__).resolve().parents[1] / "app" / "forearm.1"

HEAD = f""".\\" Made by tools/man_page.py: do not edit it.
.TH FOREARM 1 "" "forearm {__version__}" "User commands"
.ad l
.nh
.SH NAME
forearm \\- run large language models on Arm server CPUs, and answer the OpenAI API
.SH SYNOPSIS
.B forearm
.I COMMAND
[\\fIMODEL\\fR] [\\fIflags\\fR]
.SH DESCRIPTION
"""
TAIL = f""".SH EXIT STATUS
.TP
.B 0
What was asked for is done.
.TP
.B 1
It failed; one line on standard error says why.
.TP
.B 2
There is no such command.
.TP
.B {ConfigError.exit_status}
A flag, a variable or a model is wrong; one line names the value and the remedy. A service manager need not try again.
.SH SEE ALSO
.B forearm doctor
for what this host lacks,
.B forearm plan
for what a model needs, and the pages of docs/ in the source.
"""


def page() -> str:
    """Return the whole page."""
    about = USAGE.rpartition("\n\n")[2]
    parsers = {name: parser for name in _names() if (parser := parser_of(name)) is not None}
    own = {title: options_of(parsers["serve"], title) for title in configs.GROUPS}
    shared = set(options_of(parsers["serve"]))
    parts = [HEAD, roff(about), "\n.SH COMMANDS\n"]
    for name, parser in parsers.items():
        options = [option for option in options_of(parser) if option not in shared]
        usage = (parser.usage or "").removeprefix("forearm ")
        parts.append(f".SS {roff(usage or name)}\n{roff(parser.description or '')}\n{''.join(map(entry, options))}")
    parts.append(".SH FLAGS\nThe commands that read a model have these, too, as far as their --help shows them.\n")
    parts += map(entry, options_of(parsers["serve"], "options"))
    for title, options in own.items():
        parts.append(f".SS {roff(title)}\n{''.join(map(entry, options))}")
    return "".join((*parts, TAIL))


Option = tuple[str, str]  # how it is written, and what it does


def parser_of(name: str) -> CommandParser | None:
    """Return the parser of a command, or of a kind of `bench`; None for one that has no flags."""
    found: list[CommandParser] = []

    def keep(parser: CommandParser) -> str:
        found.append(parser)
        return ""

    first, *rest = name.split()
    command = COMMANDS[first]
    run: Callable[[Sequence[str]], int] = pkgutil.resolve_name(command) if isinstance(command, str) else command
    with mock.patch.object(CommandParser, "format_help", keep):
        try:
            run([*rest, "--help"])
        except (SystemExit, ConfigError):
            return found[0] if found else None
    return None


def options_of(parser: CommandParser, title: str = "") -> list[Option]:
    """Return the flags of a parser that its help shows, of one group or of all, --help not among them."""
    groups = [group for group in parser._action_groups if not title or group.title == title]
    return [
        (", ".join(_written(action)), _said(action))
        for group in groups
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS and "--help" not in action.option_strings
        if action.option_strings or action.help
    ]


def entry(option: Option) -> str:
    """Return a flag as a tagged paragraph."""
    written, said = option
    return f".TP\n.B {roff(written)}\n{roff(said)}\n"


def roff(text: str) -> str:
    """Return plain text with what troff would read escaped, and no line that is a request."""
    text = re.sub(r"\s*\n\s*", " ", text.strip()).replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"([,/|])(?=\S)", r"\1\\:", text)  # a line may be broken there
    return re.sub(r"^([.'])", r"\\&\1", text)


def _names() -> Iterator[str]:
    for name in COMMANDS:
        if name not in ("ls", "collect-env"):  # other names of commands that the page has
            yield from (f"bench {kind}" for kind in KINDS) if name == "bench" else (name,)


def _written(action: argparse.Action) -> list[str]:
    """Return a flag's names with its value, or the name of an argument without dashes."""
    value = f"{{{','.join(map(str, action.choices))}}}" if action.choices and not action.metavar else action.metavar
    if not action.option_strings:
        return [str(value or action.dest)]
    if action.nargs == 0:
        return list(action.option_strings)
    return [f"{flag} {value or action.dest.upper()}" for flag in action.option_strings]


def _said(action: argparse.Action) -> str:
    """Return the help of a flag, with its default where argparse alone knows it."""
    said = (action.help or "").replace("%%", "%")
    known = action.default not in (None, "", False, argparse.SUPPRESS, []) and "default" not in said
    return f"{said} (default: {action.default})".strip() if known else said


if __name__ == "__main__":
    PAGE.write_text(page())
