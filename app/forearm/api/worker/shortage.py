"""Tells, once a second, what a worker runs short of and nothing else would say: descriptors, and readers of its log."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time

from forearm.api.http.http_metrics import HttpMeter
from forearm.log import dropped_lines

_LOOK_S = 1.0
_SAY_AGAIN_S = 60.0

log = logging.getLogger(__name__)


async def watch_shortages(meter: HttpMeter) -> None:
    """Until it is cancelled."""
    dropped, said_s = 0, -_SAY_AGAIN_S
    while True:
        await asyncio.sleep(_LOOK_S)
        if (now := dropped_lines()) > dropped:
            meter.log_lines_dropped(now - dropped)
            dropped = now
        if (why := _cannot_open()) is not None:
            meter.out_of_descriptors(_LOOK_S)
            if time.monotonic() - said_s >= _SAY_AGAIN_S:
                said_s = time.monotonic()
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                log.error("no connection can be taken: %s (limit %d, `ulimit -Hn` or LimitNOFILE=)", why, most)


def _cannot_open() -> str | None:
    """Why no descriptor is left, if none is."""
    try:
        os.close(os.dup(0))
    except OSError as error:
        return error.strerror
    return None
