"""Prompts of random tokens that are texts: an exact number of tokens, also after the server has read them again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forearm.errors import ConfigError
from forearm.text.tokenizer.tokenizer import Tokenizer

TRIES = 10  # of getting the number of tokens right; as in vLLM


class RandomPrompts:
    """Draws tokens of a vocabulary that are text: no special ones."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = np.random.default_rng(seed)
        # Parts of characters are no text.
        ids = (i for i in range(tokenizer.vocab_size) if i not in tokenizer.added)
        self._allowed = [i for i in ids if "\ufffd" not in tokenizer.token_text(i)]
        self._offset = int(self._rng.integers(len(self._allowed)))

    def lengths(self, mean: int, range_ratio: float, count: int) -> list[int]:
        """Draw uniform whole numbers from mean * (1 - range_ratio) to mean * (1 + range_ratio), both included.

        Raises: ConfigError.
        """
        if not 0 <= range_ratio < 1:
            raise ConfigError(f"--random-range-ratio {range_ratio:g}: it must be at least 0 and less than 1")
        low, high = math.floor(mean * (1 - range_ratio)), math.ceil(mean * (1 + range_ratio))
        return [int(length) for length in self._rng.integers(low, high + 1, size=count)]

    def tokens(self, count: int) -> list[int]:
        """Draw token ids one by one."""
        return [self._allowed[i] for i in self._rng.integers(len(self._allowed), size=count)]

    def run(self, count: int, number: int) -> list[int]:
        """Return neighbours in the vocabulary from a place that the prompt's number determines: no two begin alike."""
        begin = self._offset + number * 7919  # a prime: consecutive prompts are far apart
        return [self._allowed[(begin + i) % len(self._allowed)] for i in range(count)]

    def text(self, ids: Sequence[int]) -> tuple[str, int]:
        """Return a text of as many tokens as `ids` has, and how many it came to.

        Neighbouring tokens merge into others when a text is read again, so it is cut and filled up until it is right.
        """
        wanted, again = len(ids), list(ids)
        text = ""
        for attempt in range(TRIES):
            text = self._tokenizer.decode(again, skip_special_tokens=False)
            again = self._tokenizer.encode(text, add_special_tokens=False)
            if len(again) == wanted:
                break
            kept = again[: max(0, wanted - attempt)]  # what is at the end may be what does not come out even
            again = [*kept, *self.tokens(wanted - len(kept))]
        return text, len(self._tokenizer.encode(text, add_special_tokens=False))
