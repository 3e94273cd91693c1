"""Which of several engines a prompt goes to: where its beginning was computed before, as far as load allows.

Technique: SGLang's cache-aware load balancing (an approximate picture of each worker's prefixes, kept by the router
alone, and the shortest queue once load is out of balance; lmsys.org, "SGLang v0.4", 2024), with vLLM's hash chain over
pieces of fixed length in place of its radix tree, and rendezvous hashing (Thaler and Ravishankar 1998) for prompts that
nobody knows, so that routers which never talk to each other agree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

TOKEN_PIECE_BYTES = 32 * 4  # a block of the engines' prefix cache: 32 tokens, int32
TEXT_PIECE_BYTES = 128  # some 32 tokens of English text
MOST_PIECES = 4096  # of one prompt: 128 k tokens
KNOWN_SHARE = 0.5  # of a prompt must be known for an engine to be preferred; SGLang's cache_threshold

_DIGEST_BYTES = 8  # a collision sends a prompt to the wrong engine, where it is computed: nothing else

Key = TypeVar("Key", bound=Hashable)


def chain(prompt: bytes, piece_bytes: int, salt: str = "") -> tuple[bytes, ...]:
    """A digest for each full piece of the prompt, which covers all before it as well.

    Prompts with different salts have nothing in common.
    """
    digests = []
    digest = salt.encode("utf-8", "surrogatepass")
    for end in range(piece_bytes, min(len(prompt), MOST_PIECES * piece_bytes) + 1, piece_bytes):
        digest = blake2b(digest + prompt[end - piece_bytes : end], digest_size=_DIGEST_BYTES).digest()
        digests.append(digest)
    return tuple(digests)


class PrefixRouter(Generic[Key]):
    """Remembers, for each engine, the last `most_pieces` pieces of prompts that went there (some 150 bytes each).

    slack: requests that a preferred engine may have open beyond one and a half times those of the least loaded one.
    """

    def __init__(self, most_pieces: int = 65536, slack: int = 2) -> None:
        assert most_pieces > 0
        assert slack >= 0
        self._most_pieces = most_pieces
        self._slack = slack
        self._known: dict[Key, OrderedDict[bytes, None]] = {}

    def choose(self, pieces: Sequence[bytes], load: Mapping[Key, int]) -> Key:
        """The engine for a prompt with this `chain`, among those of `load` (open requests); it is not remembered yet.

        Where less than half of it is known: the least loaded, of several the one that its first piece names.
        """
        assert load, "without an engine there is nothing to choose"
        least = min(load.values())
        known = {key: self.known(pieces, key) for key in load if load[key] <= least + least // 2 + self._slack}
        best = max(known.values())
        if best and best >= KNOWN_SHARE * len(pieces):
            candidates = [key for key, count in known.items() if count == best]
            fewest = min(load[key] for key in candidates)
            candidates = [key for key in candidates if load[key] == fewest]
        else:
            candidates = [key for key, count in load.items() if count == least]
        if len(candidates) == 1 or not pieces:
            return candidates[0]
        return max(candidates, key=lambda key: _rank(pieces[0], key))

    def known(self, pieces: Sequence[bytes], key: Key) -> int:
        """How many pieces from the beginning on this engine has seen."""
        seen = self._known.get(key, ())
        return next((number for number, piece in enumerate(pieces) if piece not in seen), len(pieces))

    def remember(self, pieces: Sequence[bytes], key: Key) -> None:
        """The prompt has gone to this engine. What it has not seen for the longest time is forgotten, ends first."""
        seen = self._known.setdefault(key, OrderedDict())
        for piece in reversed(pieces[: self._most_pieces]):
            seen[piece] = None
            seen.move_to_end(piece)
        while len(seen) > self._most_pieces:
            seen.popitem(last=False)

    def forget(self, key: Key) -> None:
        """The engine is gone, and what it had computed."""
        self._known.pop(key, None)

    def keep(self, keys: Iterable[Key]) -> None:
        """Forget all engines but these."""
        for key in self._known.keys() - set(keys):
            self.forget(key)

    def __len__(self) -> int:
        """Pieces remembered, of all engines."""
        return sum(map(len, self._known.values()))


def _rank(piece: bytes, key: Hashable) -> bytes:
    """The same in every process: Python's own hash is not."""
    return blake2b(piece + str(key).encode(), digest_size=_DIGEST_BYTES).digest()
