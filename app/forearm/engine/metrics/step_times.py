"""Step times of this machine, learnt from computed steps, for the choice of drafts and of prefill chunks."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median_low

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float64Array

LEAST_CHUNK = 16  # tokens of a prompt in a step, whatever they cost, so that each prompt goes on
_NEW = 0.2  # weight of a newly measured time; steps of one kind differ by a few percent
_RECENT = 5  # the latest times of a step size, whose median counts beside prompts: of a delayed step nothing remains
_LEAST_S = 1e-6  # time of the prompt tokens of a step that takes no longer with them
_PLAIN_AFTER = 64  # steps with prompts, after which a step without measures the decodes' time
_KEEPS = 0.8  # weight that the measured prompt tokens retain after one more step with prompts
# A measured slope over the context counts by how far the contexts lie apart, compared with 64 tokens. As far as it does
# not, a token is assumed to cost twice as much behind 1024 more tokens, as in SmolLM2-135M, and no less before them.
_NEAR_CONTEXTS, _DOUBLED_AFTER = 64.0**2, 1024.0
_DELAYED = 1.25  # the most that a step counts of what was predicted for it
_LATE = 0.01  # share of the steps that may take longer than asked
# The target divided by the predicted time that it allows: at first, its change if a step is late, and the most.
_FIRST_MARGIN, _MARGIN_STEP, _MOST_MARGIN = 1.06, 0.03, 1.2
# The assumed cost of another token, as a share of the step's mean time per token, if no larger step was measured:
# a small step mostly reads weights. An estimate that is too low is corrected by the first step that tries it.
_FIRST_SLOPE, _LEAST_SLOPE = 0.25, 0.05


class StepTimes:
    """A model of the time that a step takes.

    Without prompts: measured seconds by the number of tokens, interpolated linearly. With prompts: in addition a time
    per prompt token, on a line over its context that is fitted to the latest steps with falling weights.
    """

    def __init__(self) -> None:
        self._recent: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._seconds: dict[int, float] = {}
        self._since_plain = _PLAIN_AFTER  # steps with prompts since the last one without
        # Weighted means of contexts and of seconds per prompt token, their variance and covariance, the sum of weights.
        self._context = self._token_s = self._variance = self._covariance = self._weight = 0.0
        self._largest = 0.0  # prompt tokens of a step, of late; 0: none was measured
        self._margin = _FIRST_MARGIN

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step without prompts. The time of a delayed one is capped at twice the usual."""
        self._since_plain = 0
        size = rounded(tokens)
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + _NEW * (min(seconds, 2 * known) - known)
        self._recent[size].append(seconds)

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
        """Learn from a step of `prompt_tokens`, with `context` tokens before each in the mean, beside `tokens` others.

        A chunk larger than those of late says more than they do, so that the line goes through it from then on. Of any
        other the time is capped at a little more than was predicted, because it may have been delayed.
        """
        self._since_plain += tokens > 0
        if prompt_tokens < LEAST_CHUNK and (tokens or self._largest):
            return  # mostly reads weights
        decode_s = self._decode_s(tokens)
        predicted_s = decode_s + self._prompt_s(prompt_tokens, context)
        if tokens and self._largest:
            # The quantile by stochastic approximation (Robbins and Monro 1951).
            late = seconds > self._margin * predicted_s
            self._margin = min(max(1.0, self._margin + _MARGIN_STEP * (late - _LATE)), _MOST_MARGIN)
        if prompt_tokens <= self._largest:
            seconds = min(seconds, _DELAYED * predicted_s)
        each_s = max(seconds - decode_s, _LEAST_S) / prompt_tokens
        if prompt_tokens > self._largest:
            self._context, self._token_s = context, each_s
        self._largest = max(_KEEPS * self._largest, prompt_tokens)
        # A regression weighted by tokens, by West's update of means and variances (1979).
        self._weight = _KEEPS * self._weight + prompt_tokens
        new = prompt_tokens / self._weight
        from_context, from_s = context - self._context, each_s - self._token_s
        self._context += new * from_context
        self._token_s += new * from_s
        self._variance = (1 - new) * (self._variance + new * from_context**2)
        self._covariance = (1 - new) * (self._covariance + new * from_context * from_s)

    def span_s(self, tokens: int, target_s: float) -> tuple[float, float]:
        """Return the predicted seconds of a step of `tokens` decoded tokens, and those that it may take with prompts.

        The latter are as many as let one of a hundred steps take longer than `target_s`, or than twice its time without
        prompts if that is more. Occasionally both are equal, to measure a step without prompts.
        """
        decode_s = self._decode_s(tokens)
        if self._since_plain >= _PLAIN_AFTER:
            self._since_plain = 0
            return decode_s, decode_s
        least_s = decode_s + self._prompt_s(LEAST_CHUNK, 0)
        return decode_s, max(target_s / self._margin, 2 * decode_s / self._margin, least_s)

    def chunk(self, begun_s: float, end_s: float, context: int) -> int:
        """Return how many tokens of a prompt, after `context` computed ones, make a step of `begun_s` last `end_s`; at
        least LEAST_CHUNK.

        A chunk larger than those of late is assumed to make the whole step longer in proportion. Small steps mostly
        read weights, so that the measured time of their tokens may be almost nothing.
        """
        if not self._largest:
            return LEAST_CHUNK
        most = (end_s - begun_s) / self._prompt_s(1, context)
        fits = (end_s - begun_s) / self._prompt_s(1, context + most / 2)
        if fits > self._largest:
            fits = min(fits, self._largest * end_s / (begun_s + self._prompt_s(self._largest, context)))
        return max(LEAST_CHUNK, int(fits))

    def after_s(self, begun_s: float, end_s: float, tokens: int, context: int) -> float:
        """Return the predicted seconds of a step of `begun_s` with `tokens` tokens of a prompt after `context` ones;
        `end_s` if no other chunk has room until then.
        """
        seconds = begun_s + self._prompt_s(tokens, context + tokens / 2)
        return seconds if 0 < self._prompt_s(LEAST_CHUNK, 0) <= end_s - seconds else end_s

    def _prompt_s(self, tokens: float, context: float) -> float:
        """Return the predicted seconds of `tokens` tokens of prompts, with `context` tokens before each in the mean."""
        apart = self._variance + _NEAR_CONTEXTS
        slope = max(0.0, self._covariance / apart)
        if context > self._context:
            slope += self._token_s / _DOUBLED_AFTER * _NEAR_CONTEXTS / apart
        return tokens * max(self._token_s + slope * (context - self._context), self._token_s / 4)

    def _decode_s(self, tokens: int) -> float:
        """Return the time without prompts, as of the nearest measured size beyond them: what is too low leads to small
        chunks. 0 while unknown, so that a step's whole time counts for its prompts.
        """
        if not tokens or not self._recent:
            return 0.0
        sizes = sorted(self._recent)
        medians = [median_low(self._recent[size]) for size in sizes]
        return float(np.interp(tokens, sizes, np.maximum.accumulate(medians)))


def rounded(tokens: int) -> int:
    """Round a number of tokens to five binary digits. Steps of one rounded size count as equal."""
    step = 1 << max(0, tokens.bit_length() - 5)
    return (tokens + step // 2) // step * step
