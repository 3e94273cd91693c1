"""A setting: a dataclass field with its flag, environment variable, unit and help, and the parser of its text."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from forearm.errors import ConfigError

Parse = Callable[[str], Any]
Config = TypeVar("Config")
_KEY = "setting"
_MOST = 10**9  # of a number without a bound of its own: 32 years of seconds, which every clock and timer can count
_MOST_WHOLE = (1 << 63) - 1  # C++ and SQLite read it
PROFILER_FOLDER, _COUNTS = "torch_profiler_dir", ("delay_iterations", "max_iterations")  # of --profiler-config


@dataclass(frozen=True)
class Setting:
    """The flags, the variable and the parser of one field. `parse` raises ValueError with the remedy as its text.

    `parse_env` reads the variable where its unit is not the flag's. A switch takes no value; `off_flags` turn it off:
    `--no-x`, and vLLM's name for that. `many` takes several values.
    """

    help: str
    flags: tuple[str, ...]
    off_flags: tuple[str, ...]
    env: str
    unit: str
    parse: Parse
    parse_env: Parse
    switch: bool
    many: bool


def setting(
    default: Any,
    help: str,
    *,
    flag: str = "",
    off: str = "",
    env: str = "",
    unit: str = "",
    parse: Parse | None = None,
    parse_env: Parse | None = None,
) -> Any:
    """Declare a dataclass field that can be set. `flag` and `off` may name several flags, separated by blanks."""
    switch = isinstance(default, bool)
    reader = parse or (boolean if switch else text)
    flags = tuple(flag.split())
    made = Setting(
        help=help,
        flags=flags,
        off_flags=(*(other for f in flags for other in inverses(f)), *off.split()) if switch else (),
        env=env,
        unit=unit,
        parse=reader,
        parse_env=parse_env or reader,
        switch=switch,
        many=reader in (words, separated),
    )
    return field(default=default, metadata={_KEY: made})


def inverses(flag: str) -> list[str]:
    """Return the flags that turn a switch off, as in vLLM: --no-x, and --disable-x for --enable-x or vice versa."""
    if not flag.startswith("--") or flag.startswith("--no-"):
        return []
    turned = {"--enable-": "--disable-", "--disable-": "--enable-"}
    others = [other + flag.removeprefix(prefix) for prefix, other in turned.items() if flag.startswith(prefix)]
    return [f"--no-{flag[2:]}", *others]


def settings_of(*classes: type) -> dict[str, Setting]:
    """Return every setting of these dataclasses by name; a field that several have is one setting."""
    return {f.name: f.metadata[_KEY] for c in classes for f in dataclasses.fields(c) if _KEY in f.metadata}


# --- parsers of texts; each raises a ValueError that names the remedy ---


def text(value: str) -> str:
    """Return the text unchanged."""
    return value


def boolean(value: str) -> bool:
    """Read 0 or 1, true or false, yes or no, on or off."""
    lowered = value.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("write 0 or 1")


def number(low: float, high: float = float("inf")) -> Parse:
    """Make a parser of numbers from low to high."""

    def read(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            raise ValueError(f"write a number, {bounds(low, high)}") from None
        if not low <= parsed <= high:
            raise ValueError(f"it must be {bounds(low, high)}")
        if high == float("inf") and parsed > _MOST:
            raise ValueError(f"it must be at most {_MOST}")
        return parsed

    return read


def whole(low: int, high: int | None = None) -> Parse:
    """Make a parser of whole numbers from low to high, with the units of `human_whole`."""

    def read(value: str) -> int:
        parsed = human_whole(value)
        if parsed < low or (high is not None and parsed > high):
            raise ValueError(f"it must be {bounds(low, high if high is not None else float('inf'))}")
        if parsed > _MOST_WHOLE:
            raise ValueError(f"it must be at most {_MOST_WHOLE}")
        return parsed

    return read


def bounds(low: float, high: float) -> str:
    """Describe a range in words."""
    return f"at least {low:.10g}" if high == float("inf") else f"from {low:.10g} to {high:.10g}"


_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def human_whole(value: str) -> int:
    """Read a whole number such as 4096, 4k (4000), 4K (4096) or 25.6k: k, m, g, t are decimal, K, M, G, T binary units.

    Source: `human_readable_int` of vLLM.
    """
    stripped = value.strip()
    unit = stripped[-1:]
    try:
        if unit in _THOUSANDS:
            return round(float(stripped[:-1]) * _THOUSANDS[unit])
        if unit.isupper() and unit.lower() in _THOUSANDS:
            return int(stripped[:-1]) << 10 * ("KMGT".index(unit) + 1)
        return int(stripped)
    except (ValueError, OverflowError):
        raise ValueError("write a whole number such as 4096, 4k (4000) or 4K (4096)") from None


def gibibytes(value: str) -> int | None:
    """Read a number of GiB, decimals too, as bytes; 0 means the default."""
    gib = number(0)(value)
    return int(gib * 2**30) if gib else None


def model_length(value: str) -> int | str:
    """Read a number of tokens, or auto (also -1): as long as memory allows."""
    if value.strip() in ("auto", "-1"):
        return "auto"
    return int(whole(1)(value))


@dataclass(frozen=True)
class OneOf:
    """A parser of some words; an alias stands for one of them."""

    choices: tuple[str, ...]
    aliases: Mapping[str, str]

    def __call__(self, value: str) -> str:
        """Return the word that is meant. Raises: ValueError with all words."""
        chosen = self.aliases.get(value, value)
        if chosen not in self.choices:
            raise ValueError(f"write one of {', '.join((*self.choices, *self.aliases))}")
        return chosen


def one_of(*choices: str, **aliases: str) -> Parse:
    """Make a parser of these words; an alias stands for one of them."""
    return OneOf(choices, aliases)


def hub_id(value: str) -> str:
    """Read a model's name; of the address of its page on the hub, or hf.co/owner/name as for Ollama, the id remains."""
    return re.sub(r"^(https?://)?(hf\.co|huggingface\.co)/([^?#]+?)/?$", r"\3", value)


def url_path(value: str) -> str:
    """Read a path of addresses: it begins with a slash, written or not, and does not end with one."""
    return f"/{value.strip('/')}".rstrip("/")


def words(value: str) -> tuple[str, ...]:
    """Read words separated by blanks; the flag takes several values."""
    return tuple(value.split())


def separated(value: str) -> tuple[str, ...]:
    """Read a JSON list of strings, or one string; the flag takes several values."""
    if not value.startswith("["):
        return (value,) if value else ()
    parsed = _json(value)
    if not isinstance(parsed, list) or not all(isinstance(v, str) for v in parsed):
        raise ValueError('write a JSON list of strings, for example ["*"]')
    return tuple(parsed)


def json_object(value: str) -> dict[str, Any]:
    """Read a JSON object."""
    parsed = _json(value)
    if not isinstance(parsed, dict):
        raise ValueError('write a JSON object, for example {"temperature": 0.7}')
    return parsed


def structured_outputs(value: str) -> dict[str, Any]:
    """Read vLLM's --structured-outputs-config: the keys about JSON; the others choose among vLLM's backends."""
    parsed = json_object(value)
    switches = ("disable_any_whitespace", "disable_additional_properties")
    others = ("backend", "disable_fallback", "reasoning_parser", "reasoning_parser_plugin", "enable_in_reasoning")
    for name, given in parsed.items():
        if name not in (*switches, *others) or (name in switches and not isinstance(given, bool)):
            raise ValueError(f"{name} is {given!r}; write {' or '.join(switches)} with true or false")
        if name in ("reasoning_parser_plugin", "enable_in_reasoning") and given:
            raise ValueError(f"{name} is not supported; leave it out")
    return {name: parsed[name] for name in switches if name in parsed}


def profiler(value: str) -> dict[str, Any]:
    """Read vLLM's --profiler-config, JSON or just a folder: which steps are recorded, and where; {}: none."""
    given = json_object(
        value if value.lstrip().startswith("{") else json.dumps({"profiler": "torch", PROFILER_FOLDER: value})
    )
    for name in given:
        if name not in (PROFILER_FOLDER, "profiler", "ignore_frontend", *_COUNTS) and not name.startswith(
            "torch_profiler_"
        ):
            raise ValueError(f"{name} is not supported; write profiler, {PROFILER_FOLDER}, {', '.join(_COUNTS)}")
    kind, folder = given.get("profiler"), given.get(PROFILER_FOLDER, "")
    if kind in (None, "None"):
        return {}
    if kind != "torch":
        raise ValueError(f"profiler is {kind!r}; write torch")
    if not isinstance(folder, str) or not folder or "://" in folder:
        raise ValueError(f"{PROFILER_FOLDER} is {folder!r}; name a folder of this machine")
    counts = {name: given.get(name, 0) for name in _COUNTS}
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"{name} is {count!r}; write a whole number, at least 0")
    return {"profiler": kind, PROFILER_FOLDER: str(Path(folder).expanduser().absolute()), **counts}


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


# --- from texts to a config ---


def choose(
    known: Mapping[str, Setting],
    flags: Mapping[str, Sequence[str]],
    environ: Mapping[str, str],
    file: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Parse every setting that is given somewhere: a flag wins over the environment, the environment over the file.

    `flags` and `file` hold texts by field name.

    Raises: ConfigError naming the source, the value and the remedy.
    """
    chosen: dict[str, Any] = {}
    for name, one in known.items():
        shown = one.flags[0] if one.flags else name
        if name in flags:
            source, values, parse = shown, flags[name], one.parse
        elif one.env and environ.get(one.env):
            source, values, parse = one.env, [environ[one.env]], one.parse_env
        elif name in file:
            source, values, parse = f"in the --config file, {shown.lstrip('-')}:", file[name], one.parse
        else:
            continue
        try:
            parsed = [parse(value) for value in (values if one.many else values[-1:])]
        except ValueError as error:
            raise ConfigError(f"{source} {' '.join(values)}: {error}") from None
        chosen[name] = tuple(item for items in parsed for item in items) if one.many else parsed[0]
    return chosen


def build(kind: type[Config], chosen: Mapping[str, Any]) -> Config:
    """Make a config of the chosen values that are its fields."""
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in chosen.items() if name in names})


def to_json(config: Any) -> str:
    """Write a config as text, for another process."""
    return json.dumps(dataclasses.asdict(config))


def from_json(kind: type[Config], content: str) -> Config:
    """Read a config that `to_json` wrote. Lists become tuples: JSON has no tuples, configs no lists."""
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(content).items()})
