"""The prefix cache: finds blocks by a hash chain over the tokens of full blocks. LRU eviction.

A block's digest covers its own tokens and, through its parent's digest, all before them: equal digests mean equal keys
and values. Unused blocks keep their content until they are evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256


def root_digest(salt: str | None) -> bytes:
    """Return the start of a hash chain. Requests with different salts share nothing."""
    return sha256(b"" if salt is None else b"salt " + salt.encode()).digest()


class PrefixCache:
    """Maps digests to blocks and back, and keeps the idle blocks (used by no sequence), oldest first."""

    def __init__(self) -> None:
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
        del self._block_of[self._digest_of.pop(block)]
        return block

    def forget(self, block: int) -> None:
        """Remove `block`, which is in use, from the cache, if it is there."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]
