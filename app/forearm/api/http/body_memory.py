"""Bound the bytes of request bodies that one worker holds at once."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.api.http.caller import Caller
from forearm.errors import BodyMemoryFull


@dataclass
class BodyMemory:
    """Counts the bytes held; a body that does not fit is refused before it is read."""

    limit: int
    held: int = 0

    def check(self, count: int) -> None:
        """Check that this many more bytes fit.

        Raises: BodyMemoryFull.
        """
        if self.held + count > self.limit:
            raise BodyMemoryFull(
                f"the bodies of other requests take {self.held} of {self.limit} bytes (FOREARM_BODY_MEMORY_BYTES), and "
                f"{count} more do not fit; try again later"
            )

    def hold(self, count: int, caller: Caller) -> None:
        """Count this many more bytes, of this caller's request.

        Raises: BodyMemoryFull if they do not fit.
        """
        self.check(count)
        self.held += count
        caller.held_bytes += count

    def release(self, caller: Caller) -> None:
        """Stop counting the bytes of this caller's request."""
        self.held -= caller.held_bytes
        caller.held_bytes = 0
