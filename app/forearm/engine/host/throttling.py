"""CPU throttling: how often and how long a quota has stopped this process, which explains a slow container.

Source: cpu.stat of the process's cgroup (Documentation/admin-guide/cgroup-v2.rst of Linux: nr_periods, nr_throttled,
throttled_usec; of version 1 throttled_time, in nanoseconds).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

_ROOT = Path("/sys/fs/cgroup")


class Throttling:
    """A collector for prometheus_client's registry. Without a quota, and without a cgroup, everything is 0."""

    def __init__(self, root: Path = _ROOT, membership: Path = Path("/proc/self/cgroup")) -> None:
        self._root = root
        self._membership = membership

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus_client asks for them.

        The process's own cgroup may be at its path or, in a container, at the root.
        """
        stat: dict[str, int] = {}
        with suppress(OSError, ValueError):
            places: list[str] = []
            for line in self._membership.read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if not controllers:
                    places.append(path)
                elif "cpu" in controllers.split(","):
                    places += [f"{controllers}/{path}", f"cpu/{path}"]
            files = [self._root / place.lstrip("/") / "cpu.stat" for place in (*places, "", "cpu")]
            file = next((file for file in files if file.is_file()), None)
            lines = file.read_text().splitlines() if file is not None else []
            stat = {name: int(value) for name, value in map(str.split, lines)}
        seconds = stat.get("throttled_usec", 0) / 1e6 or stat.get("throttled_time", 0) / 1e9
        periods = CounterMetricFamily("forearm:cpu_throttled_periods", "Periods in which the CPU quota was used up.")
        periods.add_metric([], stat.get("nr_throttled", 0))
        yield periods
        stopped = CounterMetricFamily("forearm:cpu_throttled_seconds", "Time that the CPU quota has stopped threads.")
        stopped.add_metric([], seconds)
        yield stopped
