"""How a loop goes round: take in, step, publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forearm.engine.inbox import Inbox
from forearm.engine.messages import Inward, Outward
from forearm.engine.metrics.step_trace import StepTrace

# One broken step may be its requests' fault; three in a row are the engine's, and a fresh process is the remedy.
MAX_FAILED_STEPS = 3


class Loop(Protocol):
    """State and step of one engine, of text or of vectors.

    outbox: what the last step has to say, and to whom. over: it was told to end at once. draining: it takes nothing
    new. busy: there is something to compute. trace: of its steps.
    """

    trace: StepTrace
    outbox: list[Outward]
    over: bool
    draining: bool

    @property
    def busy(self) -> bool: ...

    def take(self, inward: Inward) -> None:
        """One message in."""

    def look(self) -> None:
        """Show the outside how full the engine is."""

    def step(self) -> None:
        """Compute one step, if there is anything to compute."""


def run(loop: Loop, inbox: Inbox, publish: Callable[[list[Outward]], None]) -> None:
    """Step until told to end and, if drained, until all is finished. With nothing to do it sleeps in the queue.

    Raises: EngineFailed after MAX_FAILED_STEPS broken steps in a row.
    """
    try:
        while True:
            if _take_all(loop, inbox):
                loop.look()  # of several workers each sees in time what the others have filled
            _publish(loop, publish)  # a client learns that it was taken in before a step that may be long
            loop.step()
            _publish(loop, publish)
            if loop.over or (loop.draining and not loop.busy):
                return
    finally:
        loop.trace.close()


def _take_all(loop: Loop, inbox: Inbox) -> int:
    """Returns: how many there were."""
    count = 0
    while not inbox.empty() or not (count or loop.busy or loop.draining):  # this thread alone takes from it
        loop.take(inbox.get())
        count += 1
    return count


def _publish(loop: Loop, publish: Callable[[list[Outward]], None]) -> None:
    if loop.outbox:
        publish(loop.outbox)
        loop.outbox = []
