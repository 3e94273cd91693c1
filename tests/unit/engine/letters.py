"""A tokenizer of single bytes and a few words, for grammars, and what a grammar's masks alone would choose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.history_executor import choose, logits_after
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from forearm.engine.constraints.grammar import Matcher
from forearm.engine.sequence import output_seed

_MERGES = ["t r", "u e", "tr ue", "s e", "f a", "fa l", "fal se", "n u", "l l", "nu ll"]
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_VOCABULARY = {text: i for i, text in enumerate([*_BYTES, *(merge.replace(" ", "") for merge in _MERGES), "<end>"])}
VOCAB = len(_VOCABULARY)
END = _VOCABULARY["<end>"]


def made() -> Tokenizer:
    """The tokenizer."""
    merges = [(first, second) for first, second in (merge.split() for merge in _MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=_VOCABULARY, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def save(folder: Path) -> None:
    """Write the tokenizer into a model folder."""
    made().save(str(folder / "tokenizer.json"))


def ids(text: str) -> list[int]:
    found: list[int] = made().encode(text).ids
    return found


def text(token_ids: list[int]) -> str:
    found: str = made().decode(token_ids)
    return found


def masked(
    matcher: Matcher, prompt: list[int], most: int, *, temperature: float = 0.0, seed: int = 0, index: int = 0
) -> list[int]:
    """Return the right answer of a request without an engine: token by token the best that the grammar allows.

    What ends an output is not part of it.
    """
    history = list(prompt)
    while len(history) - len(prompt) < most and not matcher.over:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[:VOCAB]
        logits = np.where(bits, logits_after(history, VOCAB), np.float32("-inf")).astype(np.float32)
        token = choose(logits, temperature, output_seed(seed, index), len(history))
        history.append(token)
        if token == END:
            break
        matcher.take(token)
    return history[len(prompt) :]
