"""Groups of layers with KV blocks of their own, so that those of layers with a window are freed behind it."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_TOKENS = 32
_PAIR_TOKENS = 64  # kernels read keys by pairs of blocks (kernels.h)


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


@dataclass(frozen=True)
class KvGroups:
    """The groups of a model: a block holds 32 tokens of the layers of one group, and all blocks have one size.

    Layers of `whole` groups see all tokens, those of `windowed` ones the last `reach`, a query's own among them. If all
    layers have a window, they are one windowed group, and there is no whole one. A sequence has a block of each whole
    group for 32 tokens, and of each windowed one for the last `held` * 32 at most.
    """

    whole: int = 1
    windowed: int = 0
    reach: int = 0
    held: int = 0

    @classmethod
    def of(cls, reaches: list[int], step_tokens: int, max_model_len: int) -> KvGroups:
        """Return the groups of a model with these reaches (_native.kv_reaches), 0: all tokens; one whole group if no
        context is so long that a window leaves blocks behind.
        """
        windowed = sum(reach > 0 for reach in reaches)
        reach = max(2, *reaches)  # the last full block is seen from behind it: states may be kept there
        held = blocks_for(reach + _PAIR_TOKENS + step_tokens) + 1
        if not windowed or held >= blocks_for(max_model_len):
            return cls()
        return cls(len(reaches) - windowed, windowed, reach, held)

    @property
    def count(self) -> int:
        return self.whole + self.windowed

    def first_seen(self, position: int) -> int:
        """Return the first block that layers with a window read for tokens at `position` or later."""
        return max(0, position - self.reach + 1) // _PAIR_TOKENS * (_PAIR_TOKENS // BLOCK_TOKENS)

    def blocks(self, tokens: int) -> int:
        """Return the most blocks, of all groups, that a sequence of so many tokens has at a time."""
        blocks = blocks_for(tokens)
        return self.whole * blocks + self.windowed * min(blocks, self.held)

    def longest(self, blocks: int, most: int) -> int:
        """Return the tokens of the longest sequence for which so many blocks suffice, at most `most`."""
        if not self.windowed or blocks < self.count * self.held:
            return min(most, blocks // self.count * BLOCK_TOKENS)
        if not self.whole:
            return most
        return min(most, (blocks - self.windowed * self.held) // self.whole * BLOCK_TOKENS)

    def sequences(self, blocks: int, tokens: int) -> float:
        """Return how many sequences of so many tokens the blocks hold."""
        length = tokens / BLOCK_TOKENS
        return blocks / (self.whole * length + self.windowed * min(length, self.held))


ONE_GROUP = KvGroups()
