"""The ends of blocks at which copies of layers' states are of use to later sequences."""

from __future__ import annotations

from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.sequence import Sequence


def kept_ends(sequence: Sequence) -> list[int]:
    """Return, in order, the ends of blocks where copies of a prompt's states are of use to later sequences."""
    return sorted((system_end(sequence), sequence.shared, prompt_end(sequence)))


def system_end(sequence: Sequence) -> int:
    """Return where the last full block of the system prompt ends; 0: the prompt has none, or it is not known."""
    return min(sequence.request.system_tokens // BLOCK_TOKENS * BLOCK_TOKENS, prompt_end(sequence))


def prompt_end(sequence: Sequence) -> int:
    """Return where the last full block before the last token ends, which every sequence with these tokens can adopt."""
    return (len(sequence.tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
