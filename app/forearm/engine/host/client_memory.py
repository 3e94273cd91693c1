"""Memory for what clients make a server hold beside keys and values, in proportion to what there is."""

from __future__ import annotations

from forearm.config.engine_config import EngineConfig
from forearm.engine.host.placement import Memory

_SHARE, _GRAMMARS_SHARE = 32, 16  # of all memory, at most: a grammar of 200 fields is taken for 1.5 MB
_GRAMMARS_BYTES, _INBOX_BYTES = 512 << 20, 64 << 20


def portion(most: int, memory: Memory, share: int = _SHARE) -> int:
    """Return `most` bytes, or fewer where there is little memory."""
    return min(most, memory.total_bytes // share)


def grammar_bytes(config: EngineConfig, memory: Memory) -> int:
    """Compiled grammars, those in use and those kept."""
    asked = config.grammar_cache_bytes
    return portion(_GRAMMARS_BYTES, memory, _GRAMMARS_SHARE) if asked is None else asked


def inbox_bytes(memory: Memory) -> int:
    """Requests that wait for the end of a step to be looked at."""
    return portion(_INBOX_BYTES, memory)
