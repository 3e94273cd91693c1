"""The constraint of one output: the end of its thinking once the budget is used up, then what its grammar allows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from forearm.engine.constraints.grammar import Matcher
from forearm.wire import SamplingParams

# The allowed tokens at one place: a mask (uint32 [words], a bit per token), one forced token, or None for any token.
AllowedTokens = npt.NDArray[np.uint32] | int | None


class Mark:
    """Finds a sequence of tokens (Knuth, Morris and Pratt 1977). `reached`: how many of them have just come."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self.reached = 0
        self._shorter = [0] * len(self.tokens)  # of the first i + 1: the longest beginning that is also their end
        for i in range(1, len(self.tokens)):
            self._shorter[i] = self._longer(self._shorter[i - 1], self.tokens[i])

    @property
    def seen(self) -> bool:
        return self.reached == len(self.tokens)

    def take(self, token: int) -> None:
        """Advance by a token; once all were seen, nothing changes."""
        if not self.seen:
            self.reached = self._longer(self.reached, token)

    def _longer(self, reached: int, token: int) -> int:
        while reached and self.tokens[reached] != token:
            reached = self._shorter[reached - 1]
        return reached + (self.tokens[reached] == token)


class Constraint:
    """Follows one output token by token. `matcher`: start state of its grammar; outputs of one request may share it, as
    each makes a copy with its first token.
    """

    def __init__(self, params: SamplingParams, matcher: Matcher | None) -> None:
        self._matcher = matcher
        self._shared = True
        self._begin = Mark(params.grammar_after) if matcher and params.grammar_after else None
        # If a grammar constrains the first token, there is no thinking.
        thinks = params.thinking_end and (matcher is None or self._begin)
        self._end = Mark(params.thinking_end) if thinks and params.thinking_end else None
        self._left = params.thinking_token_budget or 0

    @property
    def over(self) -> bool:
        """Return whether only the end of the output may follow."""
        return self._constrains and self._matcher is not None and self._matcher.over

    @property
    def _constrains(self) -> bool:
        """Return whether the grammar has begun."""
        return self._matcher is not None and (self._begin is None or self._begin.seen)

    def take(self, token: int) -> None:
        """Advance by a token of the output.

        Raises: ConstraintFailed, EngineFailed as Matcher.take.
        """
        if self._constrains:
            assert self._matcher is not None
            if self._shared:
                self._matcher, self._shared = self._matcher.fork(), False
            self._matcher.take(token)
        else:
            self._think(token)

    def forced(self) -> list[int]:
        """Return the forced tokens; none if there is a choice."""
        if self._constrains:
            assert self._matcher is not None
            return [] if self._matcher.over else self._matcher.forced()
        ahead, forced = self._ahead(), []
        while (token := ahead._thinking_ends()) is not None and not ahead._constrains:
            forced.append(token)
            ahead._think(token)
        return forced

    def cut(self, drafts: Sequence[int]) -> Sequence[int]:
        """Return the first of these drafts that are allowed, at most up to the beginning of the grammar."""
        if self._constrains:
            assert self._matcher is not None
            return drafts[: self._matcher.allowed_prefix(drafts)]
        ahead = self._ahead()
        for count, token in enumerate(drafts):
            if ahead._constrains or ahead._thinking_ends() is not None:
                return drafts[:count]
            ahead._think(token)
        return drafts

    def choices(self, drafts: Sequence[int]) -> list[AllowedTokens]:
        """Return the tokens allowed here and after each draft: those that `cut` leaves, or the first of `forced`.

        Raises: ConstraintFailed when the grammar has become too large to go on with.
        """
        if self._constrains:
            assert self._matcher is not None
            masks: list[AllowedTokens] = [*self._matcher.masks(drafts)]
            return masks + [None] * (1 + len(drafts) - len(masks))  # where it is over before the last draft
        ahead, found = self._ahead(), [self._thinking_ends()]
        for token in drafts:
            ahead._think(token)
            found.append(ahead._thinking_ends())
        if not ahead._constrains:
            return [*found]
        assert self._matcher is not None
        return [*found[:-1], self._matcher.mask()]

    def _ahead(self) -> Constraint:
        """Return a copy for looking ahead, with the same matcher."""
        ahead = copy(self)
        ahead._begin, ahead._end = copy(self._begin), copy(self._end)
        return ahead

    def _think(self, token: int) -> None:
        self._left -= 1
        for mark in (self._begin, self._end):
            if mark is not None:
                mark.take(token)

    def _thinking_ends(self) -> int | None:
        """Return the token that is forced because the thinking budget is used up; None if there is none."""
        if self._end is None or self._end.seen or self._constrains or self._left > 0:
            return None
        return self._end.tokens[self._end.reached]
