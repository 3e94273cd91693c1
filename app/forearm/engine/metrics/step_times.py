"""Step times of this machine, learnt from computed steps, for the choice of drafts and of prefill chunks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float64Array

PROMPT_TILE = 16  # tokens; matrices are multiplied by panels of 16 rows (kernels.h)
_FIRST_PROMPT_TOKENS = 32  # prompt tokens of a step with decodes, before any prompt was measured
_AIM = 0.85  # share of the target: the next chunk's context is longer, and steps vary by a few percent
_PLAIN_AFTER = 64  # steps with prompts, after which a step without measures the decodes' time
_NEW = 0.2  # weight of a newly measured time; steps of one kind differ by a few percent
_NEW_PROMPT = 0.4  # the same for a token of a prompt, which costs more from chunk to chunk
# The assumed cost of another token, as a share of the step's mean time per token, if no larger step was measured:
# a small step mostly reads weights. An estimate that is too low is corrected by the first step that tries it.
_FIRST_SLOPE, _LEAST_SLOPE = 0.25, 0.05


class StepTimes:
    """A model of the time that a step takes.

    Without prompts: measured seconds by the number of tokens, interpolated linearly. With prompts: in addition a
    recently measured time per prompt token, which rises with the context and so lags by one chunk.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._prompt_token_s = 0.0  # 0: not measured yet
        self._since_plain = 0  # steps with prompts since the last one without

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step without prompts. The time of a delayed one is capped at twice the usual."""
        self._since_plain = 0
        size = rounded(tokens)
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + _NEW * (min(seconds, 2 * known) - known)

    def of(self, tokens: npt.NDArray[np.int64]) -> Float64Array:
        """Return the seconds of steps of these sizes; more tokens never take less time."""
        sizes = sorted(self._seconds)
        seconds = np.maximum.accumulate([self._seconds[size] for size in sizes])
        last, mean = sizes[-1], seconds[-1] / sizes[-1]
        slope = _FIRST_SLOPE * mean
        if len(sizes) > 1:
            slope = max(_LEAST_SLOPE * mean, (seconds[-1] - seconds[-2]) / (last - sizes[-2]))
        return np.asarray(np.interp(tokens, sizes, seconds) + slope * np.maximum(0, tokens - last))

    def observe_prompts(self, tokens: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step of `prompt_tokens` beside `tokens` others. A delayed one is capped at twice."""
        self._since_plain += tokens > 0
        if self._prompt_token_s and prompt_tokens < PROMPT_TILE:
            return  # mostly reads weights
        each_s = max(seconds - self._decode_s(tokens), 0.0) / prompt_tokens
        known = self._prompt_token_s or each_s
        self._prompt_token_s = known + _NEW_PROMPT * (min(each_s, 2 * known) - known)

    def prompt_tokens(self, tokens: int, target_s: float) -> int:
        """Return how many prompt tokens a step may have beside `tokens` others to take at most `target_s`, or twice its
        time without prompts if that is more; at least PROMPT_TILE, and otherwise so many that all tokens of the step
        fill whole tiles, since a part of a tile costs as much. Occasionally 0, to measure a step without prompts.
        """
        if self._since_plain >= _PLAIN_AFTER:
            self._since_plain = 0
            return 0
        if not self._prompt_token_s:
            return _FIRST_PROMPT_TOKENS
        decode_s = self._decode_s(tokens)
        room_s = _AIM * max(target_s, 2 * decode_s) - decode_s
        rows = tokens + int(room_s / self._prompt_token_s)
        return max(PROMPT_TILE, rows // PROMPT_TILE * PROMPT_TILE - tokens)

    def _decode_s(self, tokens: int) -> float:
        """Return the time without prompts; 0 while unknown, so that a step's whole time counts for its prompts."""
        return float(self.of(np.array([tokens]))[0]) if tokens and self._seconds else 0.0


def rounded(tokens: int) -> int:
    """Round a number of tokens to five binary digits. Steps of one rounded size count as equal."""
    step = 1 << max(0, tokens.bit_length() - 5)
    return (tokens + step // 2) // step * step
