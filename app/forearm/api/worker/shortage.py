"""Report once a second when a worker has no file descriptors left, or nothing reads its log."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time

from forearm.api.http.http_metrics import HttpMeter
from forearm.log import QueuedLines

_CHECK_S = 1.0
_REPEAT_S = 60.0

log = logging.getLogger(__name__)


async def watch_shortages(meter: HttpMeter) -> None:
    """Watch until the task is cancelled."""
    dropped, said_s = 0, -_REPEAT_S
    while True:
        await asyncio.sleep(_CHECK_S)
        now = sum(one.dropped for one in logging.getLogger().handlers if isinstance(one, QueuedLines))
        if now > dropped:
            meter.count("forearm:log_lines_dropped", by=now - dropped)
            dropped = now
        try:
            os.close(os.dup(0))
        except OSError as error:
            meter.count("forearm:out_of_descriptors_seconds", by=_CHECK_S)
            if time.monotonic() - said_s >= _REPEAT_S:
                said_s, why = time.monotonic(), error.strerror
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                log.error("no connection can be accepted: %s (limit %d, `ulimit -Hn` or LimitNOFILE=)", why, most)
