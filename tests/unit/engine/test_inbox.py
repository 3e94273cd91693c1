"""The inbox is bounded in messages and in bytes."""

from __future__ import annotations

from forearm.engine.inbox import Disconnected, Drain, Inbox


def test_bytes_that_wait_are_bounded() -> None:
    inbox = Inbox(most_bytes=1200)
    assert inbox.most_frame_bytes == 100
    assert not inbox.too_much(100)
    assert inbox.too_much(101)
    inbox.put(Disconnected(1), 60)
    assert not inbox.too_much(40)
    assert "1200 bytes" in inbox.too_much(41)
    inbox.put(Drain())

    assert isinstance(inbox.get(), Disconnected)
    assert not inbox.too_much(100)
    assert isinstance(inbox.get(), Drain)
    assert inbox.empty()
