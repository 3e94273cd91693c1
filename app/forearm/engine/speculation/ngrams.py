"""Drafts by prompt lookup: the tokens that followed an earlier occurrence of the last tokens in prompt or output.

Technique: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; chains of equal beginnings as in LZ77
implementations (RFC 1951, section 4), so that a token costs the same however long the text is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Row
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from forearm.engine.cache.blocks import BlockPool
from forearm.engine.sequence import Sequence

_MULTIPLIER = 6364136223846793005  # of Knuth's MMIX generator: the hash of n tokens is a polynomial in it
_WORD = (1 << 64) - 1
_MOST_LOOKED_AT = 16  # earlier places with the same hash that are compared, latest first


class Index:
    """An index of the places where each n-gram of a text came before. Grows with the text; nothing is read twice.

    _latest  by hash of an n-gram: the end of its last occurrence
    _before  by position: the end of the previous occurrence of the n-gram that ends there; below 0: none
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._latest: dict[int, int] = {}
        self._before: array[int] = array("i")

    def extend(self, tokens: array[int]) -> None:
        """Index the new tokens at the end of `tokens`, whose beginning is indexed already."""
        begin = len(self._before)
        if len(tokens) - begin <= 8 * self._least:
            for end in range(begin, len(tokens)):
                key = self._key(tokens, end)
                self._before.append(self._latest.get(key, -1) if key else -1)
                if key:
                    self._latest[key] = end
            return
        # All at once, with the same result as one by one: 100,000 tokens take about 30 ms.
        first = max(begin, self._least - 1)
        self._before.extend([-1] * (first - begin))
        keys = _keys(np.array(tokens[first - self._least + 1 :], np.uint64), self._least)
        order = np.argsort(keys, kind="stable")
        same = keys[order[1:]] == keys[order[:-1]]
        before = np.full(len(keys), -1, np.int64)
        before[order[1:][same]] = order[:-1][same] + first
        listed = before.tolist()
        for i in np.flatnonzero(before < 0).tolist() if self._latest else ():
            listed[i] = self._latest.get(int(keys[i]), -1)
        self._before.extend(listed)
        self._latest.update(zip(keys.tolist(), range(first, len(tokens)), strict=True))

    def after(self, tokens: array[int], most: int) -> list[int]:
        """Return the tokens that followed the longest earlier occurrence of the end of `tokens`, which is indexed.

        At most `most` tokens; empty if not even the shortest n-gram occurred before.
        """
        last, best, matched = len(tokens) - 1, -1, 0
        place = self._before[-1] if self._before else -1
        for _ in range(_MOST_LOOKED_AT):
            if place < 0 or matched == self._most:
                break
            length = 0
            while length < self._most and length <= place and tokens[place - length] == tokens[last - length]:
                length += 1
            if length > matched:
                best, matched = place, length
            place = self._before[place]
        if matched < self._least:
            return []
        distance = last - best
        found = list(tokens[best + 1 : best + 1 + most])
        while len(found) < most:  # the text repeats itself
            found.append(found[-distance] if len(found) >= distance else tokens[len(found) - distance])
        return found

    def _key(self, tokens: array[int], end: int) -> int:
        """Return the hash of the n-gram that ends at `end`; 0 if there is none."""
        if end + 1 < self._least:
            return 0
        key = 0
        for token in tokens[end + 1 - self._least : end + 1]:
            key = (key * _MULTIPLIER + token + 1) & _WORD
        return key


def _keys(tokens: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint64]:
    """Return the hashes of all n-grams of `count` tokens."""
    keys = np.zeros(len(tokens) - count + 1, np.uint64)
    for i in range(count):
        keys = keys * np.uint64(_MULTIPLIER) + tokens[i : i + len(keys)] + np.uint64(1)
    return keys


class Ngrams:
    """The drafter. least, most: lengths of the shortest and the longest n-gram to look up."""

    round_s = 0.0  # the time of a lookup is negligible

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._indices: WeakKeyDictionary[Sequence, Index] = WeakKeyDictionary()

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft: all or none."""
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = Index(self._least, self._most)
        index.extend(sequence.tokens)
        return most if index.after(sequence.tokens, 1) else 0

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> list[list[int]]:
        """Return the tokens that followed earlier occurrences of the last tokens."""
        return [self._indices[sequence].after(sequence.tokens, count) for sequence, count in wanted]
