"""Step times of this machine, learnt from computed steps, for the choice of drafts and of prefill chunks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float64Array

PROMPT_TILE = 16  # tokens; matrices are multiplied by panels of 16 rows (kernels.h)
_FIRST_PROMPT_TOKENS = 32  # prompt tokens of a step with decodes, before any prompt was measured
_AIM = 0.84  # share of the target: steps vary by a few percent, and 99 of 100 shall keep it
_PLAIN_AFTER = 64  # steps with prompts, after which a step without measures the decodes' time
_NEW = 0.2  # weight of a newly measured time; steps of one kind differ by a few percent
_NEW_PROMPT = 0.4  # the same for a token of a prompt of that context; for others, _NEW
_DELAYED = 0.8  # a step with prompts that takes less than this share of one without: what is known was a delayed one's
_LEAST_S = 1e-6  # time for prompt tokens in a step that takes too long without them
# Least share of its step that the first measured prompt takes. Where the decodes' known time is a delayed step's, the
# difference is about nothing: a whole budget followed, and 30 more until a token's time had doubled often enough.
_FIRST_SHARE = 0.5
_CONTEXT = 256  # tokens; times per prompt token are learnt for multiples of it
# The assumed cost of another token, as a share of the step's mean time per token, if no larger step was measured:
# a small step mostly reads weights. An estimate that is too low is corrected by the first step that tries it.
_FIRST_SLOPE, _LEAST_SLOPE = 0.25, 0.05


class StepTimes:
    """A model of the time that a step takes.

    Without prompts: measured seconds by the number of tokens, interpolated linearly. With prompts: in addition seconds
    per prompt token by its context, the number of tokens before it; interpolated likewise.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._prompt_token_s: dict[int, float] = {}  # by context in multiples of _CONTEXT
        self._bounds: set[int] = set()  # numbers of tokens of which no step took so long, but steps with prompts
        self._since_plain = 0  # steps with prompts since the last one without

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step without prompts. The time of a delayed one is capped at twice the usual."""
        self._since_plain = 0
        size = rounded(tokens)
        if size in self._bounds:
            self._bounds.remove(size)
            self._seconds[size] = min(seconds, self._seconds[size])
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + _NEW * (min(seconds, 2 * known) - known)
        for smaller in [other for other in self._seconds if other < size]:  # whatever a delayed one took
            self._seconds[smaller] = min(self._seconds[smaller], self._seconds[size])

    def of(self, tokens: npt.NDArray[np.int64]) -> Float64Array:
        """Return the seconds of steps of these sizes; more tokens never take less time."""
        sizes = sorted(self._seconds)
        seconds = np.maximum.accumulate([self._seconds[size] for size in sizes])
        last, mean = sizes[-1], seconds[-1] / sizes[-1]
        slope = _FIRST_SLOPE * mean
        if len(sizes) > 1:
            slope = max(_LEAST_SLOPE * mean, (seconds[-1] - seconds[-2]) / (last - sizes[-2]))
        return np.asarray(np.interp(tokens, sizes, seconds) + slope * np.maximum(0, tokens - last))

    def observe_prompts(self, tokens: int, prompt_tokens: int, context: float, seconds: float) -> None:
        """Learn from a step of `prompt_tokens` with a mean context of `context` tokens, beside `tokens` others.

        The time of a delayed one is capped at twice the usual. If it takes more or less than before at that context, it
        will at others, too.
        """
        self._since_plain += tokens > 0
        delayed = seconds < _DELAYED * self._decode_s(tokens)
        if delayed:
            self._limit(tokens, seconds)  # without prompts it would take no longer
        if prompt_tokens < PROMPT_TILE:
            return  # mostly reads weights
        if self._prompt_token_s:
            least = _LEAST_SLOPE * prompt_tokens / (tokens + prompt_tokens)
        else:
            least = 1.0 if delayed else _FIRST_SHARE
        each_s = max(seconds - self._decode_s(tokens), least * seconds) / prompt_tokens
        known_s = self._each_s(context) if self._prompt_token_s else each_s
        more = min(each_s / known_s, 2.0) - 1
        at = rounded(round(context / _CONTEXT))
        if at not in self._prompt_token_s:
            self._prompt_token_s[at] = known_s * (1 + max(more, -0.5))
            return
        for other in self._prompt_token_s:
            self._prompt_token_s[other] *= 1 + (_NEW_PROMPT if other == at else _NEW) * more

    def room_s(self, tokens: int, target_s: float) -> float:
        """Return the seconds for prompts in a step beside `tokens` others that takes `target_s`, or twice its time
        without prompts if that is more. Occasionally 0, to measure a step without prompts.
        """
        if self._since_plain >= _PLAIN_AFTER:
            self._since_plain = 0
            return 0.0
        decode_s = self._decode_s(tokens)
        return max(_AIM * max(target_s, 2 * decode_s) - decode_s, _LEAST_S)

    def prompt_tokens(self, room_s: float, tokens: int, context: int) -> int:
        """Return how many tokens of a prompt, after `context` computed ones, take `room_s`; at least PROMPT_TILE, and
        otherwise so many that with `tokens` others they fill whole tiles, since a part of a tile costs as much.
        """
        if not self._prompt_token_s:
            return _FIRST_PROMPT_TOKENS
        most = room_s / self._each_s(context)  # if the context did not grow
        rows = tokens + int(room_s / self._each_s(context + most / 2))
        return max(PROMPT_TILE, rows // PROMPT_TILE * PROMPT_TILE - tokens)

    def left_s(self, room_s: float, prompt_tokens: int, context: int) -> float:
        """Return what so many tokens of a prompt, after `context` computed ones, leave of `room_s`; 0 if no other
        PROMPT_TILE has room in it.
        """
        if not self._prompt_token_s:
            return 0.0
        each_s = self._each_s(context + prompt_tokens / 2)
        left_s = room_s - prompt_tokens * each_s
        return left_s if left_s >= PROMPT_TILE * each_s else 0.0

    def _limit(self, tokens: int, seconds: float) -> None:
        """Bound the time of steps of so many tokens and fewer without prompts, and have the next step measure one."""
        for size in [size for size in self._seconds if size <= tokens] + [rounded(tokens)]:
            self._seconds[size] = min(self._seconds.get(size, seconds), seconds)
            self._bounds.add(size)
        self._since_plain = _PLAIN_AFTER

    def _each_s(self, context: float) -> float:
        """Return the seconds of a prompt token after `context` tokens. At least one was measured."""
        contexts = sorted(self._prompt_token_s)
        return float(np.interp(context / _CONTEXT, contexts, [self._prompt_token_s[one] for one in contexts]))

    def _decode_s(self, tokens: int) -> float:
        """Return the time without prompts; 0 while unknown, so that a step's whole time counts for its prompts."""
        return float(self.of(np.array([tokens]))[0]) if tokens and self._seconds else 0.0


def rounded(tokens: int) -> int:
    """Round a number of tokens to five binary digits. Steps of one rounded size count as equal."""
    step = 1 << max(0, tokens.bit_length() - 5)
    return (tokens + step // 2) // step * step
