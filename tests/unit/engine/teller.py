"""A drafter that knows HistoryExecutor's next tokens and is sometimes wrong; and one that takes every draft."""

from __future__ import annotations

from collections.abc import Sequence as Row
from hashlib import blake2b

import numpy as np
from tests.history_executor import HistoryExecutor, choose, logits_after

from forearm.engine.cache.blocks import BlockPool
from forearm.engine.sequence import Sequence
from forearm.engine.speculation.draft_length import Gain
from forearm.engine.speculation.speculation import Speculation

VOCAB = HistoryExecutor().vocab_size


class Teller:
    """A drafter that is right with probability `rightness`, by all tokens before, and ignores constraints."""

    round_s = 0.0
    vocab = VOCAB

    def __init__(self, rightness: float) -> None:
        self._rightness = rightness

    def available(self, sequence: Sequence, most: int) -> int:
        return most

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> list[list[int]]:
        return [self._continue(sequence, count) for sequence, count in wanted]

    def _continue(self, sequence: Sequence, count: int) -> list[int]:
        history = list(sequence.tokens)
        temperature = sequence.request.params.temperature
        for _ in range(count):
            token = choose(logits_after(history, self.vocab), temperature, sequence.seed, len(history))
            if _chance(history) >= self._rightness:
                token = (token + 1) % self.vocab
            history.append(token)
        return history[len(sequence.tokens) :]


class Eager(Gain):
    """Speculation that takes every available draft, whatever it costs."""

    def lengths(self, tokens: int, shares: Row[float], available: Row[int], round_s: float) -> list[int]:
        return list(available)


def told(rightness: float, tokens: int = 4) -> Speculation:
    """Every step has drafts of so many tokens, right with this probability."""
    return Speculation(Teller(rightness), tokens, Eager())


def _chance(history: list[int]) -> float:
    digest = blake2b(np.array(history, np.int32).tobytes(), digest_size=4, key=b"chance").digest()
    return int.from_bytes(digest, "little") / 2**32
