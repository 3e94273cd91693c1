"""Reads the command line into texts by field name, and checks vLLM's other flags; config_file.py reads --config."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from forearm.config import configs, unknown_flags, vllm_compat
from forearm.config.config_file import FieldTexts, put, read_file
from forearm.config.configs import Configs
from forearm.config.environment import environment
from forearm.config.settings import OneOf, Setting, human_whole, inverses
from forearm.errors import ConfigError

# A flag with keys of its JSON: --flag.key, --flag.key=value, --flag.key+ (part of a list).
_DOTTED = re.compile(r"(?P<flag>--?[A-Za-z][\w-]*)\.(?P<keys>[\w.-]*[\w-])(?P<more>\+?)(?:=(?P<value>.*))?", re.DOTALL)


class _Help(argparse.Action):
    """Prints the help, or the part of it that --help names, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        assert isinstance(parser, CommandParser)
        print(parser.part(given[1]) if given[1] else parser.format_help(), end="")
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """An argparse parser whose errors are ConfigErrors of one line."""

    def __init__(self, usage: str, description: str) -> None:
        super().__init__(usage=usage, description=description, allow_abbrev=False, add_help=False)
        told = "show this help, a group of it (--help=engine) or one flag (--help=max-model-len)"
        self.add_argument("-h", "--help", action=_Help, nargs="?", metavar="PART", default=argparse.SUPPRESS, help=told)

    def _get_option_tuples(self, option_string: str) -> list[tuple[argparse.Action, str, str | None]]:
        """Leave out longer flags that begin as this one does: allow_abbrev=False does so for two dashes alone.

        llama.cpp's `-t 8` would be `-tp 8`. What remains is a flag of one letter with its value behind it, but not
        that of the help: `-host 0.0.0.0` would be `-h ost`, print a part of it and end well.
        """
        found = super()._get_option_tuples(option_string)
        return [one for one in found if one[-1] is not None and not isinstance(one[0], _Help)]

    def part(self, word: str) -> str:
        """Return the help of one group, of one flag, or of the flags that have this word in their names.

        Raises: ConfigError with the groups if there is none.
        """
        name = word.lstrip("-").replace("_", "-").lower()
        if name == "all":  # vLLM's word for the whole
            return self.format_help()
        groups = {group.title or "": group._group_actions for group in self._action_groups}
        found = groups.get(name) or [a for a in self._actions if f"--{name}" in a.option_strings]
        found = found or [a for a in self._actions if any(name in flag for flag in a.option_strings)]
        formatter = self._get_formatter()
        formatter.add_arguments(one for one in found if one.help is not argparse.SUPPRESS)
        if not (text := formatter.format_help()):
            raise ConfigError(f"--help={word}: no flag has that name; groups are {', '.join(sorted(groups))}")
        return text

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the values of a command that has no settings. Raises: ConfigError."""
        given, over = self.parse_known_args(args, namespace)
        if not over:
            return given
        flag, known = over[0].split("=")[0], self._option_string_actions
        if not flag.startswith("-"):
            raise ConfigError(f"{flag}: one word too many; --help lists what the command takes")
        near = unknown_flags.nearest(flag, known) or "; --help lists the flags"
        if flag in ("--host", "--port") and "--url" in known:
            near = "; write --url http://HOST:PORT"
        raise ConfigError(f"unknown flag {flag}{near}")

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError instead of printing the usage and exiting."""
        raise ConfigError(message)


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    rest: the command's own arguments. notes: for the log. texts: the settings that are given as flags, and MODEL.
    words: what follows MODEL.
    """

    configs: Configs
    rest: argparse.Namespace
    notes: list[str]
    texts: FieldTexts
    words: list[str]


def read_line(
    parser: CommandParser, argv: Sequence[str], uses: Collection[str] = configs.SETTINGS, words: bool = False
) -> CommandLine:
    """Read the settings of `argv`, the environment and the file that --config names. `parser` has the command's flags.

    uses: settings that the command uses, whose flags its help has. A line written for `serve` may give it the others,
    too: for each there is a note.
    words: permit words after MODEL, for the command to read.
    Raises: ConfigError naming the flag, variable or line and the remedy.
    """
    notes: list[str] = []
    add_settings(parser, uses)
    add_compat_flags(parser, notes)
    # --max_model_len=4k is --max-model-len=4k; keys after a point keep their underscores.
    dashed = nested([re.sub(r"^--[^=.]*", lambda name: name[0].replace("_", "-"), word) for word in argv])
    for word in dashed:
        flag = word.split("=", 1)[0]
        vllm_compat.refuse(flag)
        if flag in unknown_flags.REMEDIES and flag not in parser._option_string_actions:
            raise _unknown_flag(flag, parser._option_string_actions)
    rest, over = parser.parse_known_args(dashed)
    texts = {name: vars(rest).pop(name) for name in list(vars(rest)) if name in configs.SETTINGS}
    for word in over:
        if word.startswith("-"):
            raise _unknown_flag(word, parser._option_string_actions)
    notes += _repeated(dashed)
    notes += [
        f"{configs.SETTINGS[name].flags[0]} does nothing here: it is for forearm serve"
        for name in texts
        if name not in uses
    ]
    if len(over) > 1 and not words:
        raise ConfigError(f"one model is served, not {len(over)}: {' '.join(over)}; name one")
    if over:
        texts["model"] = over[:1]
    file = read_file(Path(rest.config), notes) if rest.config else {}
    chosen = configs.read(texts, file)
    here, engines = chosen.serve.data_parallel_size_local, chosen.serve.data_parallel_size
    if here not in (None, engines):
        raise ConfigError(
            f"--data-parallel-size-local {here}: all {engines} engines of --data-parallel-size run on this machine; "
            "for several machines see deploy/ray"
        )
    known = {s.env for s in configs.SETTINGS.values()} | set(configs.READ_ELSEWHERE)
    strict = chosen.serve.fail_on_environ_validation
    notes += vllm_compat.check_variables(environment(), known, strict=strict)
    return CommandLine(chosen, rest, notes, texts, over[1:])


def _repeated(words: Sequence[str]) -> list[str]:
    """Return notes for flags of several values that come more than once: as in vLLM, the last one's values count."""
    given = [word.split("=", 1)[0] for word in words]
    return [
        f"{one.flags[0]} is given more than once; the last counts: write all values after one"
        for one in configs.SETTINGS.values()
        if one.many and sum(given.count(flag) for flag in one.flags) > 1
    ]


def _unknown_flag(word: str, known: Collection[str]) -> ConfigError:
    """Return the error for a flag that there is not, with llama-server's counterpart or the nearest name."""
    return ConfigError(f"unknown flag {word}{unknown_flags.remedy(word.split('=')[0], known)}")


def as_flags(texts: FieldTexts) -> list[str]:
    """Return the words of a command line that gives these settings."""
    words: list[str] = []
    for name, values in texts.items():
        setting = configs.SETTINGS[name]
        if setting.switch:
            words.append((setting.flags if setting.parse(values[-1]) else setting.off_flags)[0])
        elif setting.many:
            words += [setting.flags[0], *values]
        else:
            words.append(f"{setting.flags[0]}={values[-1]}")
    return words


def nested(words: Sequence[str]) -> list[str]:
    """Turn dotted flags into JSON, as vLLM does: --a-config.x.y 1 --a-config.z+ p,q becomes --a-config with the object
    {"x": {"y": 1}, "z": ["p", "q"]} at the end of the line.

    Raises: ConfigError for a flag without a value.
    """
    kept: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        dotted = _DOTTED.fullmatch(word)
        if dotted is None:
            kept.append(word)
            continue
        text = dotted["value"] if dotted["value"] is not None else next(rest, None)
        if text is None:
            raise ConfigError(f"{word} needs a value")
        put(objects.setdefault(dotted["flag"], {}), dotted["keys"].split("."), _value(text, bool(dotted["more"])))
    return [*kept, *(part for flag, value in objects.items() for part in (flag, json.dumps(value)))]


def _value(text: str, more: bool) -> Any:
    """Read the value of a dotted flag: JSON, a number such as 4k, or a text; a flag with + takes parts of a list."""
    if more:
        return text.split(",")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return human_whole(text)
        except ValueError:
            return text


def add_settings(parser: CommandParser, uses: Collection[str] = configs.SETTINGS) -> None:
    """Add a flag for each setting; the help has those that are used. Flags yield lists of texts; absent ones leave no
    attribute.
    """
    parser.add_argument("--config", metavar="FILE", help="YAML: flags without their dashes as keys")
    defaults = {title: kind() for title, kind in configs.GROUPS.items()}
    titles = {name: next(t for t, one in defaults.items() if hasattr(one, name)) for name in configs.SETTINGS}
    groups = {
        title: parser.add_argument_group(title) for title in dict.fromkeys(t for n, t in titles.items() if n in uses)
    }
    for name, setting in configs.SETTINGS.items():
        group = groups[titles[name]] if name in uses else parser
        help = shown(setting, getattr(defaults[titles[name]], name)) if name in uses else argparse.SUPPRESS
        if setting.switch and setting.flags:
            group.add_argument(*setting.flags, **_switch(name, "1"), help=help)
            group.add_argument(*setting.off_flags, **_switch(name, "0"), help=argparse.SUPPRESS)
        elif setting.flags:
            nargs = "+" if setting.many else 1
            choices = setting.parse.choices if isinstance(setting.parse, OneOf) else ()
            metavar = f"{{{','.join(choices)}}}" if choices else (setting.unit or "value").upper()
            group.add_argument(
                *setting.flags, dest=name, nargs=nargs, metavar=metavar, default=argparse.SUPPRESS, help=help
            )


def _switch(name: str, value: str) -> dict[str, Any]:
    return {"dest": name, "action": "store_const", "const": [value], "default": argparse.SUPPRESS}


def shown(setting: Setting, default: Any) -> str:
    """Return the help of one setting for argparse, with its default and variable, and with % escaped."""
    value = ""
    if default not in (None, "", ()) and (default or not setting.switch):
        worded = "on" if default is True else " ".join(default) if isinstance(default, tuple) else default
        value = f" (default: {worded})"
    return (setting.help + value + (f" [{setting.env}]" if setting.env else "")).replace("%", "%%")


class _Note(argparse.Action):
    """Checks a flag of vLLM's that sets nothing, and collects its log line."""

    notes: list[str]

    def __call__(self, parser: object, namespace: object, values: Any, option_string: str | None = None) -> None:
        flag = option_string or ""
        if flag in vllm_compat.FLAGS:  # else it turns a switch off, which asks for nothing
            self.notes += vllm_compat.check_flag(flag, values if isinstance(values, str) else None)


def add_compat_flags(parser: CommandParser, notes: list[str]) -> None:
    """Add the flags of vllm_compat.FLAGS that the command does not have itself, and those that turn switches off."""
    nargs = (0, None, "+")
    known = [(flag, nargs[one.values]) for flag, one in vllm_compat.FLAGS.items()]
    off = [other for table in (vllm_compat.FLAGS, vllm_compat.REFUSED) for flag, one in table.items() if not one.values
           for other in inverses(flag)]  # fmt: skip
    for flag, count in [*known, *((other, 0) for other in off)]:
        if flag not in parser._option_string_actions:
            action = parser.add_argument(
                flag, action=_Note, nargs=count, dest=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
            assert isinstance(action, _Note)
            action.notes = notes
