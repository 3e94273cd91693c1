"""Arguments of LLM and AsyncLLMEngine by EngineConfig's names."""

from __future__ import annotations

import dataclasses
import json
import logging
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from forearm.config import configs, vllm_compat
from forearm.config.engine_config import EngineConfig
from forearm.config.flags import shown
from forearm.config.settings import Parse, inverses, structured_outputs
from forearm.config.settings import settings_of as declared
from forearm.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

_RENAMED = {"gpu_memory_utilization": "memory_utilization", "task": "runner", "override_pooler_config": "pooler_config"}
# The server's arguments that vLLM's LLM has as well.
_SHARED = ("served_model_name", "data_parallel_size", "reasoning_parser", "structured_outputs_config")
_SETTINGS = declared(EngineConfig) | {name: configs.SETTINGS[name] for name in _SHARED}
_DEFAULTS = {field.name: field.default for field in fields(EngineConfig)}

log = logging.getLogger(__name__)


class EngineArgs:
    """The arguments of LLM as attributes; vLLM's name. Those that are not given read as their defaults."""

    def __init__(self, model: str = "", **others: Any) -> None:
        vars(self).update(model=model, **others)

    def __getattr__(self, name: str) -> Any:
        if not _is_argument(name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return _DEFAULTS.get(_RENAMED.get(name, name))

    @staticmethod
    def add_cli_args(parser: ArgumentParser, **_: Any) -> ArgumentParser:
        """Add a flag for each argument in vLLM's notation, those without an effect here too, and return the parser.

        Flags that the parser has already are left to it. LLM(**vars(args)) and `from_cli_args` take what it reads.
        """
        group = parser.add_argument_group("engine arguments")
        for name, setting in _SETTINGS.items():
            dest, default = _argument(name), None if setting.env else _DEFAULTS.get(name)
            flags, off = _untaken(parser, setting.flags), _untaken(parser, setting.off_flags)
            text = shown(setting, default)
            if setting.switch and flags:
                group.add_argument(*flags, action="store_true", dest=dest, default=default, help=text)
                group.add_argument(*off, action="store_false", dest=dest, default=SUPPRESS, help=SUPPRESS)
            elif flags:
                read, nargs = _typed(setting.parse), "+" if setting.many else None
                group.add_argument(*flags, type=read, nargs=nargs, dest=dest, default=default, help=text)
        for flag, one in (vllm_compat.FLAGS | vllm_compat.REFUSED).items():
            if flag.startswith("--") and _untaken(parser, (flag,)):
                if one.values:
                    group.add_argument(flag, nargs="+" if one.values > 1 else None, help=SUPPRESS)
                else:
                    group.add_argument(flag, action="store_true", help=SUPPRESS)
                    off, dest = _untaken(parser, inverses(flag)), flag[2:].replace("-", "_")
                    group.add_argument(*off, action="store_false", dest=dest, default=SUPPRESS, help=SUPPRESS)
        return parser

    @classmethod
    def from_cli_args(cls, args: Namespace) -> Self:
        """Return the arguments of a parsed command line; what else it has is left out."""
        return cls(**{name: value for name, value in vars(args).items() if _is_argument(name)})


class AsyncEngineArgs(EngineArgs):
    """The arguments of AsyncLLMEngine, those of LLM; vLLM's name."""


def _is_argument(name: str) -> bool:
    flag = "--" + name.replace("_", "-")
    known = flag in vllm_compat.FLAGS or flag in vllm_compat.REFUSED
    return known or name == "disable_log_stats" or _RENAMED.get(name, name) in _SETTINGS


def _argument(name: str) -> str:
    """Return a setting's name among LLM's arguments, vLLM's if that is another."""
    flag = _SETTINGS[name].flags[:1]
    return next(
        (vllm for vllm, own in _RENAMED.items() if own == name and flag == ("--" + vllm.replace("_", "-"),)), name
    )


def _untaken(parser: ArgumentParser, flags: Iterable[str]) -> list[str]:
    return [flag for flag in flags if flag not in parser._option_string_actions]


def _typed(parse: Parse) -> Callable[[str], Any]:
    """Return a parser for argparse, whose error says what to write."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text}: {error}") from None

    return read


def settings_of(others: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by EngineConfig's names; those without a meaning here are logged and left out.

    Raises: ConfigError for what would be needed but is not there; TypeError for unknown names.
    """
    known = {field.name for field in fields(EngineConfig)}
    of_the_server = {flag for setting in configs.SETTINGS.values() for flag in setting.flags}
    settings: dict[str, Any] = {}
    for name, value in others.items():
        flag = "--" + name.replace("_", "-")
        if name == "disable_log_stats":
            settings["log_stats"] = not value
        elif (field := _RENAMED.get(name, name)) in known:
            settings[field] = value
        elif flag in vllm_compat.FLAGS:
            if value not in (None, False):  # a switch that is off asks for nothing
                for line in vllm_compat.check_flag(flag, str(value)):
                    log.info("%s", line)
        elif flag in vllm_compat.REFUSED:
            if value:
                raise ConfigError(f"{name}={value!r:.100}: {vllm_compat.REFUSED[flag].reason}")
        elif flag in of_the_server:
            if value:
                log.info("%s has no effect: it concerns the server", name)
        else:
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}")
    return settings


def any_whitespace(structured_outputs_config: Mapping[str, Any] | None) -> bool:
    """Return whether constrained JSON may have white space between its parts. Raises: ConfigError."""
    try:
        given = structured_outputs(json.dumps(dict(structured_outputs_config or {})))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"structured_outputs_config: {error}") from None
    return not given.get("disable_any_whitespace")


def for_throughput(config: EngineConfig) -> EngineConfig:
    """Return the config for answers that nobody waits for token by token: prompts take whole steps, unless told."""
    return replace(config, target_itl_s=0.0) if config.target_itl_s is None else config


def changed_settings(config: EngineConfig) -> dict[str, Any]:
    """Return the settings of `config` that are not at their default, by field name."""
    default = EngineConfig()
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
