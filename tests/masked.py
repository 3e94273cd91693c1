"""Random texts of a grammar: tokens drawn from its masks, no model; those that close something come more often."""

from __future__ import annotations

import random
from functools import cached_property
from pathlib import Path

import numpy as np

from forearm.engine.constraints.grammar import Grammars
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

_CLOSING = {b'"', b"}", b"]", b'"}', b'"]', b'",', b'":', b","}


class Writer:
    """Writes with one tokenizer."""

    def __init__(self, folder: Path, eos: int) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self.eos = eos
        self.grammars = Grammars(folder, self.tokenizer.vocab_size, [eos])

    @cached_property
    def _weights(self) -> np.ndarray:
        pieces = [self.tokenizer.token_bytes(token) for token in range(self.tokenizer.vocab_size)]
        weights = np.array([40.0 if piece in _CLOSING else 3.0 if len(piece) == 1 else 1.0 for piece in pieces])
        weights[self.eos] = 100.0
        return weights

    def text(self, grammar: str, seed: int, most: int = 400) -> str | None:
        """A whole text; None where it is not over after `most` tokens.

        Raises: InvalidRequest, EngineFailed.
        """
        chance, matcher = random.Random(seed), self.grammars.start(grammar).result()
        tokens: list[int] = []
        while len(tokens) < most:
            if matcher.over:
                break
            allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
            (token,) = chance.choices(allowed.tolist(), self._weights[allowed].tolist())
            if token == self.eos:
                break
            matcher.take(token)
            tokens.append(token)
        else:
            return None
        return b"".join(self.tokenizer.token_bytes(token) for token in tokens).decode()
