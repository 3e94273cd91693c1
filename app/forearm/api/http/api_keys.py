"""API keys: those of --api-key, and those of --api-keys-file with their names, limits and priorities.

Keys are held and compared as SHA-256 digests, and no message ever has one in it.
"""

from __future__ import annotations

import json
import logging
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from forearm.api.http.rate_limit import KEYS, Limits
from forearm.errors import ConfigError

_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_FIELDS = {"key", "sha256", "name", "priority", *_LIMITS}
_NAME = re.compile(r"[\w.@-]{1,64}")
_HIDDEN = re.compile("sha256:([0-9a-f]{64})")
_MOST = 1 << 40

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """`name` stands in logs and metrics. `priority`: of its requests at best; lower goes first."""

    name: str
    digest: bytes
    limits: Limits
    priority: int | None


class KeyRing:
    """The keys of this server. `file` "": only `plain` ones, which have no limits. `priorities`: keys may have them."""

    def __init__(self, plain: Sequence[str], file: str, priorities: bool) -> None:
        self._priorities = priorities
        self._file = Path(file) if file else None
        self._plain = [
            Key(f"api-key-{n}", _hidden(key) or digest_of(key.encode()), Limits(), None)
            for n, key in enumerate(plain, start=1)
        ]
        self._keys = self._read()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, given: bytes) -> Key | None:
        """The key that a client has sent. How long it takes tells nothing but of digests."""
        return self._keys.get(digest_of(given))

    def reload(self) -> None:
        """Read the file again; one that has a mistake changes nothing and is told of in the log."""
        if self._file is None:
            return
        try:
            self._keys = self._read()
        except ConfigError as error:
            log.error("%s; the keys stay as they were", error)
        else:
            log.info("%d keys of %s are in force", len(self._keys) - len(self._plain), self._file)

    def _read(self) -> dict[bytes, Key]:
        """Raises: ConfigError naming the entry and the field."""
        keys = list(self._plain)
        if self._file is not None:
            keys += read_keys(self._file)
        found: dict[bytes, Key] = {}
        for key in keys:
            if key.priority is not None and not self._priorities:
                raise ConfigError(
                    f"--api-keys-file {self._file}: {key.name} has a priority; start the server with "
                    "--scheduling-policy priority, or leave it out"
                )
            if key.digest in found:
                raise ConfigError(
                    f"{self._file}: {key.name} and {found[key.digest].name} are the same key; give each its own"
                )
            found[key.digest] = key
        return found


def digest_of(key: bytes) -> bytes:
    """SHA-256. Keys are long and random, so that a slow hash would protect nothing."""
    return sha256(key).digest()


def _hidden(key: str) -> bytes | None:
    """The digest that stands for a key; None for a key itself. serve writes no key to disk."""
    found = _HIDDEN.fullmatch(key)
    return bytes.fromhex(found[1]) if found else None


def read_keys(path: Path) -> list[Key]:
    """The keys of a file: a list, or an object with a list `keys`.

    Raises: ConfigError naming the file, the entry and the field, never a key.
    """
    content = _content(path)
    entries = content.get("keys") if isinstance(content, Mapping) else content
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"--api-keys-file {path}: write a list `keys` with an entry for each (docs/keys.md)")
    if len(entries) > KEYS // 2:
        raise ConfigError(f"--api-keys-file {path}: {len(entries)} keys; the limit is {KEYS // 2}")
    keys = [_key(entry, f"--api-keys-file {path}: entry {number}") for number, entry in enumerate(entries, start=1)]
    names = [key.name for key in keys]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--api-keys-file {path}: two keys are named {doubled}; give each its own name")
    return keys


def _content(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        if "key" in text and path.stat().st_mode & stat.S_IROTH:
            log.warning("%s can be read by everybody on this machine: chmod 600, or write sha256 instead of key", path)
        if path.suffix == ".toml":
            return _toml(text)
        if path.suffix in (".yaml", ".yml"):
            import yaml

            return yaml.safe_load(text)
        return json.loads(text)
    except OSError as error:
        raise ConfigError(f"--api-keys-file {path}: {error.strerror}") from None
    except Exception as error:
        # Where it broke, and nothing of the text: it has keys in it.
        mark = getattr(error, "problem_mark", None)
        line = (
            f" near line {mark.line + 1}" if mark else f" near line {error.lineno}" if hasattr(error, "lineno") else ""
        )
        raise ConfigError(f"--api-keys-file {path}: it cannot be read as {path.suffix or 'JSON'}{line}") from None


def _toml(text: str) -> Any:
    if sys.version_info < (3, 11):
        raise OSError(0, "TOML needs Python 3.11; write JSON or YAML")
    import tomllib

    return tomllib.loads(text)


def _key(entry: Any, where: str) -> Key:
    """Raises: ConfigError."""
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is no object; write name, key (or sha256) and limits")
    if unknown := entry.keys() - _FIELDS:  # not by name: it could be a key
        raise ConfigError(f"{where} has {len(unknown)} unknown fields; known are {', '.join(sorted(_FIELDS))}")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: name must be 1 to 64 letters, digits, or any of _ . @ -")
    where = f"{where} ({name})"
    limits = Limits(**{field: _whole(entry, field, 1, where) for field in _LIMITS})
    return Key(name, _digest(entry, where), limits, _whole(entry, "priority", -_MOST, where))


def _digest(entry: Mapping[str, Any], where: str) -> bytes:
    plain, digest = entry.get("key"), entry.get("sha256")
    if (plain is None) == (digest is None):
        raise ConfigError(f"{where}: write either key or sha256")
    if plain is not None:
        if not isinstance(plain, str) or len(plain) < 8:
            raise ConfigError(f"{where}: key must be a text of at least 8 characters")
        return digest_of(plain.encode())
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise ConfigError(f"{where}: sha256 must be 64 hexadecimal digits, as `printf %s KEY | sha256sum` writes them")
    return bytes.fromhex(digest)


def _whole(entry: Mapping[str, Any], field: str, low: int, where: str) -> int | None:
    value = entry.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MOST:
        raise ConfigError(f"{where}: {field} must be a whole number from {low} to {_MOST}")
    return value
