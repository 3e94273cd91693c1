"""The block pool: sequences grow into it, share full blocks, and give them back."""

from __future__ import annotations

from array import array

from forearm.engine.prefix_cache import PrefixCache, block_digest
from forearm.engine.sequence import Sequence

BLOCK_TOKENS = 32


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """KV blocks of 32 tokens, counted by user. A block is free, in use, or idle: no user, but content still known.

    drafted  by block: of how many of its positions a draft model has keys and values
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.drafted = array("i", bytes(4 * count))
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._cache = PrefixCache()

    @property
    def available(self) -> int:
        """Count the blocks that can be allocated now; idle ones lose their content."""
        return len(self._free) + self._cache.idle

    @property
    def used(self) -> int:
        return self.count - self.available

    def fits(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether there are blocks now for `tokens` more tokens of this sequence."""
        return blocks_for(sequence.computed + tokens) - len(sequence.blocks) <= self.available

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence blocks for `tokens` more tokens than it has computed. False, and nothing done, if there
        are too few.
        """
        if not self.fits(sequence, tokens):
            return False
        while len(sequence.blocks) < blocks_for(sequence.computed + tokens):
            sequence.blocks.append(self._take())
        return True

    def trim(self, sequence: Sequence) -> None:
        """Take back the blocks beyond what is computed: rejected drafts had them."""
        while len(sequence.blocks) > blocks_for(sequence.computed):
            self._drop(sequence.blocks.pop())

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back. The last ones rest first, so that of a chain the end is evicted before its beginning,
        without which it could not be found.
        """
        for block in reversed(sequence.blocks):
            self._drop(block)
        del sequence.blocks[:]
        sequence.computed = 0

    def discard(self, sequence: Sequence) -> None:
        """Take all blocks back and remove them from the prefix cache: their content may be wrong."""
        self.forget(sequence)
        self.release(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Remove the sequence's blocks from the prefix cache. Those without users are free again, the first on top."""
        for digest in reversed(sequence.digests):
            block = self._cache.find(digest)
            if block is None:
                continue
            if not self._users[block]:
                self._cache.wake(block)
                self._free.append(block)
            self._cache.forget(block)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. Sequences that use its blocks keep them."""
        while self._cache.idle:
            self._free.append(self._cache.evict())
        for block, users in enumerate(self._users):
            if users:
                self._cache.forget(block)

    def adopt(self, sequence: Sequence) -> int:
        """Share blocks whose content is known instead of computing it; returns the tokens this saves.

        Goes on from what is computed, if that ends with a block. The last token is always computed, because its
        logits are wanted; so are prompt positions whose log-probabilities are.
        """
        before = sequence.computed
        while (digest := self.next_digest(sequence)) and (block := self._cache.find(digest)) is not None:
            self._use(block)
            sequence.blocks.append(block)
            sequence.computed += BLOCK_TOKENS
        return sequence.computed - before

    def next_digest(self, sequence: Sequence) -> bytes:
        """Digest of the next block, if the sequence could adopt it, else empty."""
        if not sequence.request.root:
            return b""
        last = len(sequence.tokens) - 1
        if sequence.to_score:
            last = len(sequence.request.prompt_logprobs) - 1
        if sequence.computed != len(sequence.blocks) * BLOCK_TOKENS or sequence.computed + BLOCK_TOKENS > last:
            return b""
        return self._digest(sequence, len(sequence.blocks))

    def coming_digests(self, sequence: Sequence, tokens: int) -> list[bytes]:
        """Digests of the blocks that become full when `tokens` more tokens are computed."""
        if not sequence.request.root:
            return []
        first, end = sequence.computed // BLOCK_TOKENS, (sequence.computed + tokens) // BLOCK_TOKENS
        return [self._digest(sequence, i) for i in range(first, end)]

    def publish(self, sequence: Sequence, start: int) -> None:
        """Make known the full blocks that were completed since `start` tokens were computed.

        Where another sequence has computed the same block meanwhile, its block takes the place of this one: what they
        hold is the same bit for bit.
        """
        if not sequence.request.root:
            return
        for i in range(start // BLOCK_TOKENS, sequence.computed // BLOCK_TOKENS):
            digest = self._digest(sequence, i)
            block = self._cache.find(digest)
            if block is None:
                self._cache.put(digest, sequence.blocks[i])
            elif block != sequence.blocks[i]:
                self._use(block)
                self._drop(sequence.blocks[i])
                sequence.blocks[i] = block

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._cache.evict()
        self._users[block] = 1
        self.drafted[block] = 0
        return block

    def _use(self, block: int) -> None:
        if self._users[block] == 0:
            self._cache.wake(block)
        self._users[block] += 1

    def _drop(self, block: int) -> None:
        self._users[block] -= 1
        if self._users[block]:
            return
        if block in self._cache:
            self._cache.rest(block)
        else:
            self._free.append(block)

    def _digest(self, sequence: Sequence, block: int) -> bytes:
        """Digest of the sequence's full block `block`; its chain is extended as far as needed."""
        for i in range(len(sequence.digests), block + 1):
            parent = sequence.digests[i - 1] if i else sequence.request.root
            sequence.digests.append(block_digest(parent, sequence.tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]))
        return sequence.digests[block]
