"""The bytes of request bodies that one worker holds at once, and their bound."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.errors import BodyMemoryFull


@dataclass
class BodyMemory:
    """Counts the bytes that are held; what does not fit is refused before it is read."""

    limit: int
    held: int = 0

    def check(self, count: int) -> None:
        """Raises: BodyMemoryFull where this many more bytes do not fit."""
        if self.held + count > self.limit:
            raise BodyMemoryFull(
                f"the bodies of other requests take {self.held} of {self.limit} bytes (FOREARM_BODY_MEMORY_BYTES), and "
                f"{count} more do not fit; try again later"
            )

    def hold(self, count: int) -> None:
        """Raises: BodyMemoryFull where this many more bytes do not fit."""
        self.check(count)
        self.held += count

    def release(self, count: int) -> None:
        """Give back what `hold` took."""
        self.held -= count
