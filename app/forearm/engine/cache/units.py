"""Units of KV blocks with reference counts, allocated, shared through the prefix cache, and evicted as a whole."""

from __future__ import annotations

from forearm.engine.cache.prefix_cache import PrefixCache, StateSlots


class Units:
    """The KV blocks, in units: each is some blocks for the same 32 tokens, known by its first one. A unit is free, in
    use, or idle: unused, but its content is known.

    states: the copies of states at the end of units; None: the model's layers keep none.
    """

    def __init__(self, count: int, states: StateSlots | None = None) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._others: list[tuple[int, ...]] = [()] * count  # by the first block of a unit
        self._idle = 0  # blocks of idle units
        self._cache = PrefixCache(states)

    @property
    def available(self) -> int:
        """Count the blocks that can be allocated now; idle ones lose their content."""
        return len(self._free) + self._idle

    def allocate(self, size: int) -> tuple[int, ...]:
        """Return the blocks of a unit of `size` blocks, in use. So many must be available; none are needed for 0."""
        if size == 0:
            return ()
        while len(self._free) < size:
            self._evict()
        unit = self._free.pop()
        self._others[unit] = tuple(self._free.pop() for _ in range(size - 1))
        self._users[unit] = 1
        return self.blocks(unit)

    def blocks(self, unit: int) -> tuple[int, ...]:
        """Return the blocks of a unit, the first one first."""
        return unit, *self._others[unit]

    def drop(self, unit: int) -> None:
        """Count one user less; without users, a unit is idle if its content is known, and free otherwise."""
        self._users[unit] -= 1
        if self._users[unit]:
            return
        if unit in self._cache:
            self._cache.rest(unit)
            self._idle += len(self.blocks(unit))
        else:
            self._give_back(unit)

    def share(self, digest: bytes) -> tuple[int, ...]:
        """Return the blocks of the unit with this digest, which must be known, and count one user more of it."""
        unit = self._cache.find(digest)
        assert unit is not None
        if self._users[unit] == 0:
            self._wake(unit)
        self._users[unit] += 1
        return self.blocks(unit)

    def find(self, digest: bytes) -> int | None:
        """Return the unit whose content has this digest; None: none is known."""
        return self._cache.find(digest)

    def publish(self, digest: bytes, unit: int) -> int:
        """Record that `unit`, which is in use, has the content of `digest`. If another one has it, that is used
        instead: their contents are equal bit for bit. Returns: the unit in use now.
        """
        known = self._cache.find(digest)
        if known is None:
            self._cache.put(digest, unit)
            return unit
        if known != unit:
            self.share(digest)
            self.drop(unit)
        return known

    def forget(self, digest: bytes) -> None:
        """Remove the unit of a digest from the prefix cache. An unused one becomes free and is allocated next."""
        unit = self._cache.find(digest)
        if unit is None:
            return
        if not self._users[unit]:
            self._wake(unit)
            self._give_back(unit)
        self._cache.forget(unit)

    def forget_all(self) -> None:
        """Empty the prefix cache. Units in use stay so."""
        while self._cache.idle:
            self._evict()
        for unit, users in enumerate(self._users):
            if users:
                self._cache.forget(unit)

    def _wake(self, unit: int) -> None:
        self._cache.wake(unit)
        self._idle -= len(self.blocks(unit))

    def _evict(self) -> None:
        unit = self._cache.evict()
        self._idle -= len(self.blocks(unit))
        self._give_back(unit)

    def _give_back(self, unit: int) -> None:
        """Free a unit's blocks; they are allocated next."""
        self._free.extend(reversed(self.blocks(unit)))
