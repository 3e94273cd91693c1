"""The number of requests that may still come, and the time to retry after."""

from __future__ import annotations

import pytest

from forearm.engine import request_queue
from forearm.engine.request_queue import RequestQueue


class Clock:
    """time.monotonic(), as the test says."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(request_queue, "time", clock)
    return clock


def test_room_is_the_limit_and_the_places_that_are_free() -> None:
    queue = RequestQueue(limit=10, places=4)
    assert queue.load(0).room == 14
    for _ in range(6):
        queue.enter()
    queue.begin()
    queue.begin()
    assert queue.load(2).room == 14 - 2 - 4
    queue.leave(begun=False)
    queue.leave(begun=True)
    assert (queue.length, queue.load(1).room) == (3, 14 - 1 - 3)


def test_retry_after_is_the_queue_at_the_rate_at_which_requests_end(clock: Clock) -> None:
    queue = RequestQueue(limit=100, places=1)
    assert queue.load(0).retry_after_s == 1, "no rate is known"
    for _ in range(20):
        queue.enter()
        queue.begin()
        clock.now_s += 0.5  # two a second
        queue.leave(begun=True)
    for _ in range(30):
        queue.enter()
    assert queue.load(1).retry_after_s == 15

    clock.now_s += 40  # no request has ended since
    assert queue.load(1).retry_after_s == 60, "more than a minute no client waits"


def test_time_without_requests_does_not_lower_the_rate(clock: Clock) -> None:
    queue = RequestQueue(limit=2, places=2)
    for _ in range(5):  # clients that retry after the time that they were told
        for _ in range(4):
            queue.enter()
            queue.begin()
        for _ in range(4):
            clock.now_s += 0.5
            queue.leave(begun=True)
        clock.now_s += 60
    for _ in range(4):
        queue.enter()

    assert queue.load(0).retry_after_s == 2
