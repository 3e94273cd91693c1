"""`forearm completion SHELL`: a script that completes commands, flags, their choices and short names of models.

The scripts ask `forearm completion words ...` at each tab, which reads the help of the command: nothing is kept in two
places, and nothing has to be generated.
"""

from __future__ import annotations

import contextlib
import io
import pkgutil
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from forearm.config.flags import CommandParser
from forearm.errors import ConfigError, ForearmError

Commands = Mapping[str, Callable[[Sequence[str]], int] | str]  # as main.py has them
_SCRIPTS = {
    "bash": """\
_forearm() { mapfile -t COMPREPLY < <(forearm completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); }
complete -o default -F _forearm forearm
""",
    "zsh": """\
#compdef forearm
_forearm() {
  local -a found=(${(f)"$(forearm completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  compadd -a found || _files
}
compdef _forearm forearm
""",
    "fish": """\
complete -c forearm -a '(forearm completion words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
_TAKES_MODEL = ("run", "serve", "pull", "show", "generate", "plan", "run-batch")


def completion(argv: Sequence[str], commands: Commands) -> int:
    """Print the script of a shell, or the words that may stand at the end of a line. Returns: the exit status.

    Raises: ConfigError for a shell without a script.
    """
    if argv[:1] == ["words"]:
        print("".join(f"{word}\n" for word in candidates(argv[1:], commands)), end="")
        return 0
    what = "Print a script that completes commands, flags and models; in bash: source <(forearm completion bash)."
    parser = CommandParser("forearm completion SHELL", what)
    parser.add_argument("shell", metavar="SHELL", nargs="?", help=", ".join(_SCRIPTS))
    shell = parser.parse_args(argv).shell
    if shell not in _SCRIPTS:
        raise ConfigError(f"{shell or 'no shell'}: name one of {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[shell], end="")
    return 0


def candidates(line: Sequence[str], commands: Commands) -> list[str]:
    """Return the words that may stand in place of the last one of a line, which is begun or empty."""
    *before, begun = line or [""]
    found: Collection[str] = ()
    if not before:
        found = (*commands, "help", "--help", "--version")
    elif before == ["help"]:
        found = tuple(commands)
    elif before == ["bench"]:
        from forearm.bench.command import KINDS

        found = tuple(KINDS)
    elif before[0] in commands:
        command, text = commands[before[0]], io.StringIO()
        run = pkgutil.resolve_name(command) if isinstance(command, str) else command
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit, ForearmError):
            run([*before[1 : 1 + (before[0] == "bench")], "--help"])
        shown = [line.strip() for line in text.getvalue().splitlines() if line.startswith("  -")]  # a flag's first line
        choices = re.search(rf"{re.escape(before[-1])} \{{(.*?)\}}", "\n".join(shown))
        if choices:
            found = choices[1].split(",")
        elif begun.startswith("-"):
            found = [flag for line in shown for flag in re.findall(r"(?<!\S)--[\w-]+", line.split("   ")[0])]
        elif before[0] in _TAKES_MODEL:
            from forearm.model.gguf.short_names import SHORT_NAMES

            found = tuple(SHORT_NAMES)
    return sorted({word for word in found if word.startswith(begun)})
