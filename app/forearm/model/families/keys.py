"""A JSON object of a model folder, read key by key: what is wrong is a ConfigError that names file, key and value."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError

_MOST = sys.float_info.max


class Keys:
    """One JSON object and which of its keys were read.

    A key that is absent gives the default; so does null, but for the `optional_` readers, where null is an answer
    (Mistral's `sliding_window: null` means none, its absence 4096).
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = dict(values)
        self.source = source
        self.read: set[str] = set()

    def with_defaults(self, **defaults: Any) -> Keys:
        """The same object with these values where a key is absent. Keys read there count as read here."""
        filled = Keys(defaults | self.values, self.source)
        filled.read = self.read
        return filled

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        """The value as it stands; None if absent."""
        self.read.add(key)
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._or_default(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number")
        return value

    def optional_integer(self, key: str, absent: int | None = None) -> int | None:
        """A whole number, or None where the file says null (or says nothing and `absent` is None)."""
        if self.get(key) is None:
            return None if key in self.values else absent
        return self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        value = self._or_default(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "a number")
        try:
            found = float(value)
        except OverflowError:  # 400 digits
            found = math.inf
        if not math.isfinite(found):
            raise self.wrong(key, "a finite number")
        return found

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
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
        """true or false."""
        value = self._or_default(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def numbers(self, key: str, length: int) -> list[float]:
        """A list of `length` numbers."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length or not all(map(_is_finite, value)):
            raise self.wrong(key, f"a list of {length} numbers")
        return [float(v) for v in value]

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: a number, a list of numbers, null or nothing."""
        value = self.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in ids):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(ids)

    def object(self, key: str) -> Keys | None:
        """A nested object; None where it is absent, null or empty."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Keys(value, f"{self.source}: {key}") if value else None

    def wrong(self, key: str, remedy: str) -> ConfigError:
        """The error to raise for the value of `key`; `remedy` says what it should be."""
        if key not in self.values:
            return ConfigError(f"{self.source}: {key} is missing; it should be {remedy}")
        shown = json.dumps(self.values[key])
        shown = shown if len(shown) <= 200 else shown[:200] + " ..."
        return ConfigError(f"{self.source}: {key} = {shown}; it should be {remedy}")

    def _or_default(self, key: str, default: Any) -> Any:
        value = self.get(key)
        return default if value is None else value


def _is_finite(value: object) -> bool:
    """Whether it is a number that a float holds."""
    return isinstance(value, (int, float)) and abs(value) < _MOST


def _agreeing(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values, of which some real files have one twice.

    Raises: ConfigError if the values of a key differ: JSON does not say which one counts.
    """
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and made[key] != value:
            raise ConfigError(f"{path}: {key!r:.200} is there twice, with different values; remove the wrong one")
        made[key] = value
    return made


def read_json(path: Path) -> Keys:
    """The object in a JSON file.

    Raises: ConfigError if the file is not there or is not a JSON object.
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
    """Refuse a pipe, a socket or a device, whose opening or reading might never end.

    Raises: ConfigError. A file that is not there is for who opens it.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a regular file; a model's files are read from a disk")
