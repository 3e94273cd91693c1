"""Report once a second when a worker has no file descriptors left, or nothing reads its log."""

from __future__ import annotations

import asyncio
import logging

from forearm.api.http.http_metrics import HttpMeter
from forearm.descriptors import CHECK_S, DescriptorWatch
from forearm.log import QueuedLines


async def watch_shortages(meter: HttpMeter) -> None:
    """Watch until the task is cancelled."""
    dropped, descriptors = 0, DescriptorWatch("no connection can be accepted")
    while True:
        await asyncio.sleep(CHECK_S)
        now = sum(one.dropped for one in logging.getLogger().handlers if isinstance(one, QueuedLines))
        if now > dropped:
            meter.count("forearm:log_lines_dropped", by=now - dropped)
            dropped = now
        if descriptors.short():
            meter.count("forearm:out_of_descriptors_seconds", by=CHECK_S)
