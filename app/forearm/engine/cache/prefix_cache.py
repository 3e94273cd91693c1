"""The prefix cache: finds blocks by a hash chain over the tokens of full blocks. LRU eviction.

A block's digest covers its own tokens and, through its parent's digest, all before them: equal digests mean equal keys
and values. Unused blocks keep their content until they are evicted.

Layers that keep a state know it after the last computed token alone. A sequence can go on after a cached block only if
the states at that block's end were copied to a slot when a step ended there (BlockPool says for which blocks).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256


def root_digest(salt: str | None) -> bytes:
    """Return the start of a hash chain. Requests with different salts share nothing."""
    return sha256(b"" if salt is None else b"salt " + salt.encode()).digest()


class StateSlots:
    """The slots of layers' states: one for each running sequence, `kept` ones for copies at the end of blocks, and
    some for those before drafts.

    sequences: slots of running sequences and before drafts. copy: copies the states in one slot to another. The copy
    at the end of a block that was used least recently is evicted first.
    """

    def __init__(self, sequences: int, kept: int, copy: Callable[[int, int], None]) -> None:
        self.kept = kept
        self._copy = copy
        self._unused = list(range(sequences - 1, -1, -1))
        self._free = list(range(sequences + kept - 1, sequences - 1, -1))
        self._slot_of: OrderedDict[int, int] = OrderedDict()  # by block, the least recently used first

    def __contains__(self, block: int | None) -> bool:
        return block in self._slot_of

    def take(self) -> int:
        """Return a slot for a sequence that begins to run. One is free: there are as many as running sequences."""
        return self._unused.pop()

    def save(self, slot: int) -> int | None:
        """Copy the states in `slot` before drafts are computed. Returns: the slot of the copy; None if none is free."""
        if not self._unused:
            return None
        saved = self._unused.pop()
        self._copy(slot, saved)
        return saved

    def give_back(self, slot: int) -> None:
        """Free a slot that `take` or `save` returned."""
        self._unused.append(slot)

    def has_room(self, *, evict: bool) -> bool:
        """Return whether a copy more can be kept. evict: in place of the oldest one, if no slot is free."""
        return len(self._free) > 0 or (evict and self.kept > 0)

    def keep(self, block: int, slot: int) -> None:
        """Copy the states in `slot`, which are those at the end of `block`. There must be room (has_room)."""
        target = self._free.pop() if self._free else self._slot_of.popitem(last=False)[1]
        self._copy(slot, target)
        self._slot_of[block] = target

    def restore(self, block: int, slot: int) -> None:
        """Copy the states kept at the end of `block` to `slot`."""
        self._copy(self._slot_of[block], slot)
        self.touch(block)

    def touch(self, block: int) -> None:
        """Mark the copy at the end of `block` as used most recently."""
        self._slot_of.move_to_end(block)

    def drop(self, block: int | None) -> None:
        """Free the slot of the copy at the end of `block`, if there is one."""
        if block is not None and block in self._slot_of:
            self._free.append(self._slot_of.pop(block))


class PrefixCache:
    """Maps digests to blocks and back, and keeps the idle blocks (used by no sequence), oldest first.

    states: the copies of states at the end of its blocks, which leave with them; None: the model's layers keep none.
    """

    def __init__(self, states: StateSlots | None = None) -> None:
        self._states = states
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    @property
    def idle(self) -> int:
        """Count the blocks that could be evicted now."""
        return len(self._idle)

    def find(self, digest: bytes) -> int | None:
        """Return the block with this digest; None if there is none."""
        return self._block_of.get(digest)

    def put(self, digest: bytes, block: int) -> None:
        """Record that `block`, which is in use, holds the tokens of `digest`."""
        assert digest not in self._block_of, "a digest has one block"
        assert block not in self._digest_of, "a block has one digest"
        self._block_of[digest] = block
        self._digest_of[block] = digest

    def rest(self, block: int) -> None:
        """Mark `block` as idle: no sequence uses it any more."""
        assert block in self._digest_of, "only blocks with known content can rest"
        self._idle[block] = None

    def wake(self, block: int) -> None:
        """Mark the idle `block` as in use again."""
        del self._idle[block]

    def evict(self) -> int:
        """Remove the block that has been idle longest, and return it. There must be one."""
        block, _ = self._idle.popitem(last=False)
        self.forget(block)
        return block

    def forget(self, block: int) -> None:
        """Remove `block`, which is not idle, from the cache, if it is there."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]
            if self._states is not None:
                self._states.drop(block)
