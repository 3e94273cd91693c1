"""Convert words that may not be generated to the token ids that the engine forbids."""

from __future__ import annotations

from collections.abc import Sequence

from forearm.text.tokenizer.tokenizer import Tokenizer


def bad_words_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return each word as tokens: at the start of a text, and after a space where that is another token.

    Source: vLLM's SamplingParams.update_from_tokenizer.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        plain = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        found.append(plain)
        if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
            found.append(spaced)
    return tuple(ids for ids in found if ids)
