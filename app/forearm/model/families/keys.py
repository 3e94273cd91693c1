"""A JSON object of a model folder, read key by key; a wrong value raises a ConfigError naming file, key and value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError

# Sizes are 64-bit integers and factors float32 in the executor: beyond these bounds they would be other numbers there.
_MOST_WHOLE = 1 << 53
_MOST = 3.4e38
# Keys of config.json that --rope-scaling, --rope-theta and --hf-overrides change.
ROPE = ("rope_parameters", "rope_scaling", "rope_theta")


class Keys:
    """One JSON object and the set of its keys that were read.

    A reader returns the default for an absent key and for null. Only the `optional_` readers tell the two apart
    (Mistral's `sliding_window: null` means no window, its absence 4096).
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = dict(values)
        self.source = source
        self.read: set[str] = set()

    def with_defaults(self, **defaults: Any) -> Keys:
        """Return the object with these values for absent keys; keys that are read from it count as read here too."""
        filled = Keys(defaults | self.values, self.source)
        filled.read = self.read
        return filled

    def with_values(self, **values: Any) -> Keys:
        """Return the object with these values instead of its own; keys that are read from it count as read here too."""
        changed = Keys(self.values | values, self.source)
        changed.read = self.read
        return changed

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        """Return the value unchecked; None if the key is absent."""
        self.read.add(key)
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self._or_default(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_WHOLE:
            raise self.wrong(key, "a whole number of at most 2^53")
        return value

    def optional_integer(self, key: str, absent: int | None = None) -> int | None:
        """A whole number, or None where the file says null (or says nothing and `absent` is None)."""
        if self.get(key) is None:
            return None if key in self.values else absent
        return self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number that is finite in float32."""
        value = self._or_default(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "a number")
        if not abs(value) < _MOST:
            raise self.wrong(key, "a finite number, below 3.4e38")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above 0."""
        found = self.number(key, default)
        if found <= 0:
            raise self.wrong(key, "more than 0")
        return found

    def optional_number(self, key: str, absent: float | None = None) -> float | None:
        """A number, or None where the file says null (or says nothing and `absent` is None)."""
        if self.get(key) is None:
            return None if key in self.values else absent
        return self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._or_default(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def numbers(self, key: str, length: int) -> list[float]:
        """Return a list of `length` numbers."""
        value = self.get(key)
        numbers = isinstance(value, list) and all(isinstance(v, int | float) and abs(v) < _MOST for v in value)
        if not numbers or len(value) != length:
            raise self.wrong(key, f"a list of {length} numbers")
        return [float(v) for v in value]

    def only(self, **values: Any) -> None:
        """Refuse other values of these keys than the ones given, which transformers computes, and null."""
        for key, value in values.items():
            if self.get(key) not in (None, value):
                raise self.wrong(key, f"{json.dumps(value).strip(chr(34))}: transformers computes no other")

    def ids(self, key: str) -> tuple[int, ...]:
        """Return token ids, written as a number, a list of numbers or null; none if the key is absent."""
        value = self.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in ids):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(ids)

    def object(self, key: str) -> Keys | None:
        """Return a nested object; None if it is absent, null or empty."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Keys(value, f"{self.source}: {key}") if value else None

    def wrong(self, key: str, remedy: str) -> ConfigError:
        """Return the error to raise for the value of `key`; `remedy` describes a right value."""
        if key not in self.values:
            return ConfigError(f"{self.source}: {key} is missing; it should be {remedy}")
        shown = json.dumps(self.values[key])
        shown = shown if len(shown) <= 200 else shown[:200] + " ..."
        return ConfigError(f"{self.source}: {key} = {shown}; it should be {remedy}")

    def _or_default(self, key: str, default: Any) -> Any:
        value = self.get(key)
        return default if value is None else value


def text_part(outer: Keys) -> Keys | None:
    """Return the object that describes a multimodal model's text part in its config.json; None in other models."""
    thinks = outer.object("thinker_config") or outer  # Qwen Omni, whose other parts speak
    return thinks.object("text_config") or thinks.object("llm_config")


def _agreeing(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys and values; some real files repeat a key.

    Raises: ConfigError if a key has two different values, because JSON does not define which one counts.
    """
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and made[key] != value:
            raise ConfigError(f"{path}: {key!r:.200} appears twice, with different values; remove the wrong one")
        made[key] = value
    return made


def read_json(path: Path) -> Keys:
    """Return the object in a JSON file.

    Raises: ConfigError if the file is missing or is not a JSON object.
    """
    check_regular(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=partial(_agreeing, path))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; is {path.parent} a model folder?") from None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} can't be read: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path} can't be read: it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return Keys(values, str(path))


def check_regular(path: Path) -> None:
    """Refuse a pipe, a socket or a device, because opening or reading it might never end, and what can't be read.

    Raises: ConfigError. A missing file passes: the caller that opens it reports it.
    """
    try:
        wrong = path.exists() and not path.is_file()
    except OSError as problem:  # such as a name that is too long
        raise ConfigError(f"{str(path)[:300]} can't be read: {problem.strerror}") from None
    if wrong:
        raise ConfigError(f"{path} is not a regular file; a model's files are read from a disk")
    if path.exists() and not os.access(path, os.R_OK):
        raise ConfigError(f"{path} can't be read: this user has no right to; chmod a+r it, or start as its owner")
