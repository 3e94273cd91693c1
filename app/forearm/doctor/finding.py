"""The finding of a check, and the host that is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forearm.config.configs import Configs

Status = Literal["ok", "note", "warning", "error"]
ORDER: tuple[Status, ...] = ("error", "warning", "note", "ok")  # as they are printed


@dataclass(frozen=True)
class Finding:
    """One finding. how: the file, call or variable it comes from; remedy: empty where none is needed.

    error: a server cannot run; warning: it wastes or risks something; note: worth knowing.
    """

    check: str
    status: Status
    what: str
    how: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckedHost:
    """The host that is checked. root: prefix of /proc, /sys and /usr; empty is this machine."""

    configs: Configs
    environ: Mapping[str, str]
    root: str = ""

    @property
    def is_this(self) -> bool:
        """Return whether it is this machine itself, whose sockets, disks and kernels can be checked, too."""
        return not self.root

    def path(self, name: str) -> Path:
        """Return a file of the host, named from /."""
        return Path(f"{self.root}/{name}")

    def text(self, name: str) -> str | None:
        """Return a file's content without the final newline; None where it cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Return the number that a file contains, if it does."""
        text = self.text(name)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def fields(self, name: str) -> dict[str, str]:
        """Return a file's lines `key: value` or `key value`, the first one of each key."""
        found: dict[str, str] = {}
        for line in (self.text(name) or "").splitlines():
            key, _, value = line.partition(":") if ":" in line else line.partition(" ")
            found.setdefault(key.strip(), value.strip())
        return found

    def cgroup(self, name: str) -> tuple[str, str] | None:
        """Return name and text of a file of this process's cgroup, or of its nearest ancestor that has the file.

        Version 2, or of version 1 the controller that the name begins with (cpu.stat: cpu).
        """
        for line in (self.text("proc/self/cgroup") or "").splitlines():
            _, controllers, at = line.split(":", 2)
            if controllers and name.partition(".")[0] not in controllers.split(","):
                continue
            parts = [part for part in at.split("/") if part and part != ".."]
            for depth in range(len(parts), -1, -1):
                file = "/".join(filter(None, ["sys/fs/cgroup", controllers, *parts[:depth], name]))
                text = self.text(file)
                if text is not None:
                    return f"/{file}", text
        return None


Check = Callable[[CheckedHost], Iterator[Finding]]
