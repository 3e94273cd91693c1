"""The digests of a sequence's full blocks, by which the prefix cache finds blocks that it can share."""

from __future__ import annotations

from hashlib import sha256

from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.sequence import Sequence


def digest_of(sequence: Sequence, block: int) -> bytes:
    """Return the digest of the sequence's full block number `block`, and extend its chain as far as needed.

    A block's digest is the hash of its parent's and of its tokens, int32. The hash is cryptographic: an attacker who
    could make two prompts collide would read another client's context.
    """
    for i in range(len(sequence.digests), block + 1):
        parent = sequence.digests[i - 1] if i else sequence.request.root
        tokens = sequence.tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]
        sequence.digests.append(sha256(parent + tokens.tobytes()).digest())
    return sequence.digests[block]


def next_digest(sequence: Sequence, ahead: int = 0) -> bytes:
    """Return the digest of the next block, or of the one so many behind it; empty: it could not be adopted."""
    if not sequence.request.root:
        return b""
    last = len(sequence.tokens) - 1
    if sequence.to_score:
        last = len(sequence.request.prompt_logprobs) - 1
    block = len(sequence.blocks) + ahead
    if sequence.computed != len(sequence.blocks) * BLOCK_TOKENS or (block + 1) * BLOCK_TOKENS > last:
        return b""
    return digest_of(sequence, block)


def window_of(digest: bytes) -> bytes:
    """Return the digest of a block's unit of windowed groups."""
    return digest + b"windowed"
