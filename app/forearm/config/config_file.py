"""Reads the --config file, YAML with flags without their dashes as keys, into texts by field name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forearm.config import configs, vllm_compat
from forearm.config.unknown_flags import remedy
from forearm.errors import ConfigError

FieldTexts = dict[str, Sequence[str]]


def read_file(path: Path, notes: list[str]) -> FieldTexts:
    """Read a --config file as texts by field name.

    Raises: ConfigError naming the file and the key.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; name a YAML file") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        told = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:  # whose text has six lines
            told = f"line {error.problem_mark.line + 1}: {error.problem}"
        raise ConfigError(f"--config {path}: it is not YAML: {told}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: write flags without their dashes as keys, for example port: 8080")
    fields = {flag: name for name, setting in configs.SETTINGS.items() for flag in setting.flags}
    off = {flag: name for name, setting in configs.SETTINGS.items() for flag in setting.off_flags}
    objects: dict[str, Any] = {}
    for key, value in content.items():
        if value is None:
            continue  # `model:` with nothing after it is not given
        put(objects, str(key).split("."), value)  # a key with points is an object
    texts: FieldTexts = {}
    for key, value in objects.items():
        flag = "--" + key.replace("_", "-")
        if value is not False:
            vllm_compat.refuse(flag)
        if flag in fields:
            texts[fields[flag]] = [as_text(v) for v in value] if isinstance(value, list) else [as_text(value)]
        elif flag in off:  # `disable-log-stats: true`, as in vLLM
            if not isinstance(value, bool):
                raise ConfigError(f"--config {path}: {key}: {value}: it turns a switch off; write true or false")
            texts[off[flag]] = [as_text(not value)]
        elif flag in vllm_compat.FLAGS:
            notes += vllm_compat.check_flag(flag, None if isinstance(value, bool) else as_text(value))
        elif flag in vllm_compat.REFUSED:
            continue  # a switch that is turned off
        else:
            raise ConfigError(f"--config {path}: unknown key {key}{remedy(flag, [*fields, *off], dashes='')}")
    return texts


def as_text(value: object) -> str:
    """Return a YAML value as the text of a flag."""
    return json.dumps(value) if isinstance(value, (dict, bool)) else str(value)


def put(target: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set target[a][b]… to a value; lists are extended."""
    for key in keys[:-1]:
        inner = target.get(key)
        target[key] = target = inner if isinstance(inner, dict) else {}
    before = target.get(keys[-1])
    target[keys[-1]] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
