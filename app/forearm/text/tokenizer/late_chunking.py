"""Late chunking: the chunks of a text whose tokens are embedded together, and the characters of each.

Source: Günther et al. 2024, arXiv:2409.04701; names, and chunks of a fixed number of tokens, are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

from forearm.errors import InvalidRequest
from forearm.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LateChunk:
    """A chunk's tokens and characters, each from the first to behind the last; no characters: special tokens alone."""

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class LateChunkingMetadata:
    """The chunks of a text. chunk_size: tokens of each but the last. input_tokens: of the text, special ones too."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
    strategy: str = "fixed_tokens"


def late_chunks(
    tokenizer: Tokenizer, text: str | list[int], chunk_size: int, add_special_tokens: bool = True
) -> tuple[list[int], LateChunkingMetadata]:
    """Return the ids of a text, and its chunks.

    Raises: InvalidRequest if it is empty, or given as token ids, which have no characters.
    """
    if not isinstance(text, str) or not text:
        raise InvalidRequest("late chunking needs a text that is not empty; token ids have no characters", "input")
    encoding = tokenizer.encoding(text, add_special_tokens)
    ids: list[int] = encoding.ids
    chunks = []
    for at in range(0, len(ids), chunk_size):
        ends = {end for place in encoding.offsets[at : at + chunk_size] if place[0] != place[1] for end in place}
        tokens = (at, min(at + chunk_size, len(ids)))
        chunks.append(LateChunk(tokens, (min(ends), max(ends)) if ends else None))
    return ids, LateChunkingMetadata(chunk_size, len(ids), chunks)
