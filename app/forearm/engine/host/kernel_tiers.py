"""The kernel tier in use, and the tiers that the self-test at start disabled, in the log and in the metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from forearm.engine.host import placement

log = logging.getLogger(__name__)


def tell() -> None:
    """Log tiers that gave wrong results, which means a defect of the machine or the build."""
    for tier, operation in placement.quarantined():
        log.error(
            "kernels: %s gives wrong results in %s on this machine and is not used; %s serves instead. Look for a "
            "defective CPU, an emulator or a damaged installation",
            tier, operation, placement.tier(),
        )  # fmt: skip


class Tiers:
    """A collector for prometheus_client's registry. `used` and `wrong` are by default those of this process."""

    def __init__(self, used: str | None = None, wrong: Sequence[tuple[str, str]] | None = None) -> None:
        self._used = placement.tier() if used is None else used
        self._wrong = placement.quarantined() if wrong is None else wrong

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus_client asks for them."""
        used = GaugeMetricFamily("forearm:kernel_tier_info", "The kernels in use, as a label; 1.", labels=["tier"])
        used.add_metric([self._used], 1)
        yield used
        wrong = GaugeMetricFamily("forearm:kernel_tiers_quarantined", "Tiers found wrong at start, and not used.")
        wrong.add_metric([], len(self._wrong))
        yield wrong
