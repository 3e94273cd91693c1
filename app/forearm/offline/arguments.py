"""Arguments of LLM and AsyncLLMEngine by EngineConfig's names."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from forearm.config import configs, vllm_compat
from forearm.config.engine_config import EngineConfig
from forearm.errors import ConfigError

_RENAMED = {"gpu_memory_utilization": "memory_utilization", "task": "runner", "override_pooler_config": "pooler_config"}
# Arguments of vLLM's LLM that are no flags: right as long as they ask for nothing.
_NOT_BUILT = ("logits_processors", "skip_tokenizer_init")

log = logging.getLogger(__name__)


class EngineArgs:
    """The arguments of LLM, kept for later; vLLM's name."""

    def __init__(self, model: str = "", **others: Any) -> None:
        self.given: dict[str, Any] = {"model": model, **others}


class AsyncEngineArgs(EngineArgs):
    """The arguments of AsyncLLMEngine, those of LLM; vLLM's name."""


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
            if value is not None:
                for line in vllm_compat.check_flag(flag, str(value)):
                    log.info("%s", line)
        elif flag in vllm_compat.REFUSED or name in _NOT_BUILT:
            if value:
                reason = vllm_compat.REFUSED[flag].reason if flag in vllm_compat.REFUSED else "it is not built yet"
                raise ConfigError(f"{name}={value!r}: {reason}")
        elif flag in of_the_server:
            if value:
                log.info("%s has no effect: it concerns the server", name)
        else:
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}")
    return settings


def for_throughput(config: EngineConfig) -> EngineConfig:
    """Return the config for answers that nobody waits for token by token: prompts take whole steps, unless told."""
    return replace(config, target_itl_s=0.0) if config.target_itl_s is None else config


def changed_settings(config: EngineConfig) -> dict[str, Any]:
    """Return the settings of `config` that are not at their default, by field name."""
    default = EngineConfig()
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
