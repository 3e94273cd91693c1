"""The prefix cache: a hash chain over full blocks tells which block holds which tokens. LRU eviction.

A block's digest covers its own tokens and, through its parent's digest, all before them: equal digests mean equal keys
and values. Blocks without users keep their content until the room is needed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from hashlib import sha256


def root_digest(salt: str | None) -> bytes:
    """Return the start of a hash chain. Requests with different salts share nothing."""
    return sha256(b"" if salt is None else b"salt " + salt.encode()).digest()


def block_digest(parent: bytes, tokens: array[int]) -> bytes:
    """Digest of a full block: its tokens, int32, after all that `parent` stands for.

    A cryptographic hash: an attacker who could make two prompts collide would read another's context.
    """
    return sha256(parent + tokens.tobytes()).digest()


class PrefixCache:
    """Digest to block and back, and the blocks among them that are idle (used by no sequence), oldest first."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    @property
    def idle(self) -> int:
        """Blocks that could be evicted now."""
        return len(self._idle)

    def find(self, digest: bytes) -> int | None:
        """The block that holds these tokens, if there is one."""
        return self._block_of.get(digest)

    def put(self, digest: bytes, block: int) -> None:
        """`block`, in use, now holds what `digest` stands for."""
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
        """Forget the block that has been idle longest, and give it away. There must be one."""
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._digest_of.pop(block)]
        return block

    def forget(self, block: int) -> None:
        """The content of `block`, in use, is not to be found any more, if it was."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]
