"""The server's processes on a host, and the kernel's figures of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ENGINE, API = "engine", "API"


@dataclass(frozen=True)
class Process:
    """One process of the container."""

    pid: int
    line: str

    @property
    def is_engine(self) -> bool:
        """Return whether it is an engine, which computes."""
        return "forearm.engine" in self.line

    @property
    def is_api(self) -> bool:
        """Return whether it answers HTTP: gunicorn's master, or a worker of it."""
        return "gunicorn" in self.line


def processes(host: Any) -> list[Process]:
    """Return the processes of the container, with the host's process ids."""
    lines = host.check_output("docker top forearm -eo pid,args").splitlines()[1:]
    return [Process(int(pid), line) for pid, line in (line.split(maxsplit=1) for line in lines)]


def of_kind(host: Any, kind: str) -> list[Process]:
    """Return the engines, or the processes of the API. A container without them fails the test."""
    found = [process for process in processes(host) if (process.is_engine if kind == ENGINE else process.is_api)]
    assert found, f"no {kind} among {[process.line for process in processes(host)]}"
    return found


def numbers(text: str) -> set[int]:
    """Return the CPUs or nodes of a list in the kernel's form, such as 0-3,8."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def allowed(host: Any, process: Process) -> dict[int, set[int]]:
    """Return the CPUs that each thread may use, by thread id; the first thread has the process's id."""
    text = host.check_output(f"grep -H ^Cpus_allowed_list /proc/{process.pid}/task/*/status")
    found = re.findall(r"^/proc/\d+/task/(\d+)/status:Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE)
    return {int(thread): numbers(cpus) for thread, cpus in found}


def variables(host: Any, process: Process) -> dict[str, str]:
    """Return the environment of a process."""
    text = host.check_output(f"tr '\\0' '\\n' < /proc/{process.pid}/environ")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def pages_of_nodes(host: Any, process: Process) -> dict[int, int]:
    """Return KiB of anonymous memory on each NUMA node: packed weights, KV cache and working memory."""
    text = host.check_output(f"cat /proc/{process.pid}/numa_maps")
    found: dict[int, int] = {}
    for line in text.splitlines():
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        if " anon=" not in line or size is None:
            continue
        for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
            found[int(node)] = found.get(int(node), 0) + int(pages) * int(size[1])
    return found
