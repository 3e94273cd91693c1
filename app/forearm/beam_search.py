"""Beam search: the most likely continuations of a prompt, kept side by side and grown by one token at a time.

The search only decides. Its caller computes: each round it generates one token after every live beam, by the sampling
parameters of `step_params`, and hands back the log-probabilities. Scores and order are vLLM's: a beam's cumulative
log-probability, divided by its length (with the prompt, without the end token) to the power of `length_penalty`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from forearm.wire import PositionLogprobs, SamplingParams, TokenLogprob


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's fields and defaults. `temperature` has no effect: beams compare log-probabilities before temperature."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False


_NO_TOKEN = TokenLogprob(-1, 0.0, 0)


@dataclass(frozen=True, eq=False)
class Beam:
    """One continuation: a token after the beam `before` it. An end token that finished the beam is its last token."""

    before: Beam | None = None
    chosen: TokenLogprob = _NO_TOKEN
    position: Sequence[TokenLogprob] = ()
    length: int = 0
    cum_logprob: float = 0.0
    finish_reason: str | None = None

    def grown(self, one: TokenLogprob, position: PositionLogprobs, ends: bool) -> Beam:
        """The beam with one more token, a candidate of this position."""
        total = self.cum_logprob + one.logprob
        return Beam(self, one, position, self.length + 1, total, "stop" if ends else None)

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return [beam.chosen.token_id for beam in self._links()]

    @property
    def logprobs(self) -> list[PositionLogprobs]:
        """One position for each token: that token, then the alternatives, most likely first."""
        return [[beam.chosen, *beam.position[1:]] for beam in self._links()]

    @property
    def stop_reason(self) -> int | None:
        """The end token that finished the beam, if one did."""
        return self.chosen.token_id if self.finish_reason == "stop" else None

    def _links(self) -> list[Beam]:
        """The chain of beams from the first token to the last."""
        links, beam = [], self
        while beam.before is not None:
            links.append(beam)
            beam = beam.before
        return links[::-1]


def step_params(params: BeamSearchParams, alternatives: int = 0) -> SamplingParams:
    """Sampling parameters for the next token of a live beam. The client wants `alternatives` at each token."""
    count = max(2 * params.beam_width, alternatives)
    return SamplingParams(max_tokens=1, temperature=0.0, logprobs=count)


class BeamSearch:
    """The search after one prompt.

    end_ids: tokens that end a beam (the model's own, and stop tokens), ignored with `ignore_eos`.
    """

    def __init__(self, prompt_tokens: int, params: BeamSearchParams, end_ids: Collection[int]) -> None:
        self.live = [Beam()]
        self._params = params
        self._prompt_tokens = prompt_tokens
        self._end_ids = frozenset(() if params.ignore_eos else end_ids)
        self._completed: list[Beam] = []
        self._rounds = 0

    def add(self, positions: Sequence[PositionLogprobs]) -> None:
        """Extend every live beam by the candidates at its next position, given in the order of `live`.

        Twice the beam width of candidates are looked at, so that enough are left when half of them end their beam.
        """
        grown: list[Beam] = []
        for beam, position in zip(self.live, positions, strict=True):
            for one in position[1 : 1 + 2 * self._params.beam_width]:
                ends = one.token_id in self._end_ids
                (self._completed if ends else grown).append(beam.grown(one, position, ends))
        self.live = self._ranked(grown)
        self._completed = self._ranked(self._completed)
        self._rounds += 1
        # A beam's log-probability only falls: its score stays below what it would be at the greatest length with the
        # log-probability it has now; where longer beams score lower (a negative penalty), at the length it has now.
        longest = self._params.max_tokens if self._params.length_penalty > 0 else self._rounds
        full = len(self._completed) == self._params.beam_width
        worst = self.score(self._completed[-1]) if full else 0.0
        decided = full and all(self._scored(beam.cum_logprob, longest) <= worst for beam in self.live)
        if self._rounds == self._params.max_tokens or decided:  # else no live beam can become one of the best
            self._completed = self._ranked([*self._completed, *self.live])
            self.live = []

    @property
    def best(self) -> list[Beam]:
        """The beams found, best first, once no beam is live. `max_tokens` ends a beam with finish_reason "length"."""
        return [beam if beam.finish_reason else replace(beam, finish_reason="length") for beam in self._completed]

    def score(self, beam: Beam) -> float:
        """The score that beams are ordered by."""
        return self._scored(beam.cum_logprob, beam.length - (beam.finish_reason == "stop"))

    def _scored(self, cum_logprob: float, tokens: int) -> float:
        return float(cum_logprob / (self._prompt_tokens + tokens) ** self._params.length_penalty)

    def _ranked(self, beams: list[Beam]) -> list[Beam]:
        """The `beam_width` best beams; of equal ones the earlier."""
        return sorted(beams, key=self.score, reverse=True)[: self._params.beam_width]
