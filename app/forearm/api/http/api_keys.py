"""Read API keys from --api-key, and from --api-keys-file with names, limits and priorities.

Keys are stored and compared as SHA-256 digests, and no message ever contains one.
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

from forearm.api.http.rate_limit import KEYS, RateLimits
from forearm.errors import ConfigError

_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_FIELDS = {"key", "sha256", "name", "priority", *_LIMITS}
_NAME = re.compile(r"[\w.@-]{1,64}")
_HIDDEN = re.compile("sha256:([0-9a-f]{64})")
_HIGHEST = 1 << 40

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ApiKey:
    """One API key. name: for logs and metrics. priority: the highest one of its requests; lower numbers go first."""

    name: str
    digest: bytes
    limits: RateLimits
    priority: int | None


class KeyRing:
    """The keys of this server. plain: keys of --api-key, without limits. priorities: whether keys may have
    priorities.
    """

    def __init__(self, plain: Sequence[str], file: str, priorities: bool) -> None:
        self._priorities = priorities
        self._file = Path(file) if file else None
        self._plain = [
            # serve writes no key to disk, only its digest.
            ApiKey(
                f"api-key-{n}",
                bytes.fromhex(hidden[1]) if (hidden := _HIDDEN.fullmatch(key)) else digest_of(key.encode()),
                RateLimits(),
                None,
            )
            for n, key in enumerate(plain, start=1)
        ]
        self._keys = self._read()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, given: bytes) -> ApiKey | None:
        """Return the key that a client has sent. The time that this takes depends only on digests."""
        return self._keys.get(digest_of(given))

    def reload(self) -> None:
        """Read the file again; if it has an error, the error is logged and the keys stay as they were."""
        if self._file is None:
            return
        try:
            self._keys = self._read()
        except ConfigError as error:
            log.error("%s; the keys stay as they were", error)
        else:
            log.info("%d keys of %s are active", len(self._keys) - len(self._plain), self._file)

    def _read(self) -> dict[bytes, ApiKey]:
        """Return the keys by their digests.

        Raises: ConfigError naming the entry and the field.
        """
        keys = list(self._plain)
        if self._file is not None:
            keys += read_keys(self._file)
        found: dict[bytes, ApiKey] = {}
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
    """Return the SHA-256 digest. Keys are long and random, so a slow hash would not add protection."""
    return sha256(key).digest()


def read_keys(path: Path) -> list[ApiKey]:
    """Return the keys of a file: a list, or an object with a list `keys`.

    Raises: ConfigError naming the file, the entry and the field, never a key.
    """
    content = _content(path)
    entries = content.get("keys") if isinstance(content, Mapping) else content
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"--api-keys-file {path}: write a list `keys` with an entry for each key (docs/keys.md)")
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
            log.warning("%s can be read by every user of this machine: chmod 600, or write sha256 instead of key", path)
        if path.suffix == ".toml":
            if sys.version_info < (3, 11):
                raise OSError(0, "TOML needs Python 3.11; write JSON or YAML")
            import tomllib

            return tomllib.loads(text)
        if path.suffix in (".yaml", ".yml"):
            import yaml

            return yaml.safe_load(text)
        return json.loads(text)
    except OSError as error:
        raise ConfigError(f"--api-keys-file {path}: {error.strerror}") from None
    except Exception as error:
        # Only the line number: the text contains keys.
        mark = getattr(error, "problem_mark", None)
        line = (
            f" near line {mark.line + 1}" if mark else f" near line {error.lineno}" if hasattr(error, "lineno") else ""
        )
        raise ConfigError(f"--api-keys-file {path}: it cannot be read as {path.suffix or 'JSON'}{line}") from None


def _key(entry: Any, where: str) -> ApiKey:
    """Return the key of one entry.

    Raises: ConfigError.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is not an object; write name, key (or sha256) and limits")
    if unknown := entry.keys() - _FIELDS:  # not named, because it could be a key
        raise ConfigError(f"{where} has {len(unknown)} unknown fields; known are {', '.join(sorted(_FIELDS))}")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: name must be 1 to 64 letters, digits, or any of _ . @ -")
    where = f"{where} ({name})"
    limits = RateLimits(**{field: _whole(entry, field, 1, where) for field in _LIMITS})
    return ApiKey(name, _digest(entry, where), limits, _whole(entry, "priority", -_HIGHEST, where))


def _digest(entry: Mapping[str, Any], where: str) -> bytes:
    plain, digest = entry.get("key"), entry.get("sha256")
    if (plain is None) == (digest is None):
        raise ConfigError(f"{where}: write either key or sha256")
    if plain is not None:
        if not isinstance(plain, str) or len(plain) < 8:
            raise ConfigError(f"{where}: key must be a string of at least 8 characters")
        return digest_of(plain.encode())
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise ConfigError(f"{where}: sha256 must be 64 hexadecimal digits, as `printf %s KEY | sha256sum` writes them")
    return bytes.fromhex(digest)


def _whole(entry: Mapping[str, Any], field: str, low: int, where: str) -> int | None:
    value = entry.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _HIGHEST:
        raise ConfigError(f"{where}: {field} must be a whole number from {low} to {_HIGHEST}")
    return value
