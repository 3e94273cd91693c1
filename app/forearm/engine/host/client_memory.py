"""Limits on the memory that clients' requests and grammars may take, in proportion to the machine's memory."""

from __future__ import annotations

from forearm.config.engine_config import EngineConfig
from forearm.engine.host.placement import Memory

_SHARE, _GRAMMARS_SHARE = 32, 16  # limits are 1 / n of all memory; a grammar of 200 fields counts as 1.5 MB
_GRAMMARS_BYTES, _INBOX_BYTES = 512 << 20, 64 << 20


def portion(most: int, memory: Memory, share: int = _SHARE) -> int:
    """Return `most` bytes, or 1 / `share` of memory if that is less."""
    return min(most, memory.total_bytes // share)


def grammar_bytes(config: EngineConfig, memory: Memory) -> int:
    """Return the limit for compiled grammars, in use or cached."""
    asked = config.grammar_cache_bytes
    return portion(_GRAMMARS_BYTES, memory, _GRAMMARS_SHARE) if asked is None else asked


def inbox_bytes(memory: Memory) -> int:
    """Return the limit for requests that wait in the inbox for the end of a step."""
    return portion(_INBOX_BYTES, memory)
