"""Detection of outputs that repeat the same few tokens without end."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from forearm.wire import RepetitionDetection


class Repetition:
    """Looks for a pattern at the end of one output; every token costs the same, however long the output is.

    For each size of pattern it counts how many tokens in a row equal the one that many places before them.
    """

    def __init__(self, sought: RepetitionDetection) -> None:
        self._sought = sought
        self._runs: npt.NDArray[np.int64] | None = None  # made late, because thousands of outputs may wait

    def found(self, tokens: array[int], begin: int) -> bool:
        """Return whether `tokens`, an output that begins at `begin`, ends with `min_count` repetitions of one pattern.
        Call it after every token.
        """
        least, most = max(1, self._sought.min_pattern_size), self._sought.max_pattern_size
        sizes = np.arange(least, most + 1)
        if self._runs is None:
            self._runs = np.zeros(len(sizes), np.int64)
        last = len(tokens) - 1
        known = min(len(sizes), max(0, last - begin - least + 1))  # sizes that reach no further back than `begin`
        before = np.array(tokens[last - least - known + 1 : last - least + 1][::-1], np.int64)
        self._runs[:known] = np.where(before == tokens[last], self._runs[:known] + 1, 0)
        return bool((self._runs >= sizes * (self._sought.min_count - 1)).any())
