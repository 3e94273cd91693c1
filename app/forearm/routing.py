"""Cache-aware routing: a prompt goes to the engine that has computed its beginning before, as far as load allows.

Technique: SGLang's cache-aware load balancing (an approximate picture of each worker's prefixes, kept by the router
alone, and the shortest queue once load is out of balance; lmsys.org, "SGLang v0.4", 2024), with vLLM's hash chain over
pieces of fixed length in place of its radix tree, and rendezvous hashing (Thaler and Ravishankar 1998) for unknown
prompts, so that routers which never talk to each other agree.
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

_DIGEST_BYTES = 8  # a collision only sends a prompt to an engine that has to compute it

EngineKey = TypeVar("EngineKey", bound=Hashable)


def chain(prompt: bytes, piece_bytes: int, salt: str = "") -> tuple[bytes, ...]:
    """Return a digest for each full piece of the prompt, which covers all pieces before it as well.

    Prompts with different salts have no digest in common.
    """
    digests = []
    digest = salt.encode("utf-8", "surrogatepass")
    for end in range(piece_bytes, min(len(prompt), MOST_PIECES * piece_bytes) + 1, piece_bytes):
        digest = blake2b(digest + prompt[end - piece_bytes : end], digest_size=_DIGEST_BYTES).digest()
        digests.append(digest)
    return tuple(digests)


class PrefixRouter(Generic[EngineKey]):
    """Remembers, for each engine, the last `most_pieces` pieces of prompts that went there (some 150 bytes each).

    slack: requests that a preferred engine may have open beyond 1.5 times those of the least loaded one.
    """

    def __init__(self, most_pieces: int = 65536, slack: int = 2) -> None:
        assert most_pieces > 0
        assert slack >= 0
        self._most_pieces = most_pieces
        self._slack = slack
        self._known: dict[EngineKey, OrderedDict[bytes, None]] = {}

    def choose(self, pieces: Sequence[bytes], load: Mapping[EngineKey, int]) -> EngineKey:
        """Choose the engine for a prompt with this `chain`, among those of `load` (open requests); remembers nothing.

        Where an engine knows less than half of the prompt it is the least loaded one, and among equally loaded ones
        the one that the first piece's rendezvous hash ranks highest.
        """
        assert load, "at least one engine is needed"
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
        # Every process needs the same hash, which Python's own is not.
        return max(
            candidates, key=lambda key: blake2b(pieces[0] + str(key).encode(), digest_size=_DIGEST_BYTES).digest()
        )

    def known(self, pieces: Sequence[bytes], key: EngineKey) -> int:
        """Count the pieces from the beginning on that this engine has seen."""
        seen = self._known.get(key, ())
        return next((number for number, piece in enumerate(pieces) if piece not in seen), len(pieces))

    def remember(self, pieces: Sequence[bytes], key: EngineKey) -> None:
        """Note that the prompt went to this engine. Least recently used pieces are forgotten, a prompt's end first."""
        seen = self._known.setdefault(key, OrderedDict())
        for piece in reversed(pieces[: self._most_pieces]):
            seen[piece] = None
            seen.move_to_end(piece)
        while len(seen) > self._most_pieces:
            seen.popitem(last=False)

    def forget(self, key: EngineKey) -> None:
        """Forget an engine that has ended, and with it what it had computed."""
        self._known.pop(key, None)

    def keep(self, keys: Iterable[EngineKey]) -> None:
        """Forget all engines but these."""
        for key in self._known.keys() - set(keys):
            self.forget(key)

    def __len__(self) -> int:
        """The number of pieces remembered, of all engines."""
        return sum(map(len, self._known.values()))
