"""Advance of an output after a step: append sampled tokens, accepted drafts and forced tokens, and check stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from forearm.engine.constraints.output_constraint import Constraint
from forearm.engine.sampling import finish
from forearm.engine.sequence import Sequence
from forearm.engine.step import SliceOutcome
from forearm.errors import ConstraintFailed, EngineFailed, ForearmError
from forearm.wire import PositionLogprobs


@dataclass(slots=True)
class Growth:
    """The tokens that a step adds to one output.

    logprobs   of each token, where they are wanted
    accepted   drafts that were right: their keys and values are computed
    over       the grammar allows nothing more, so the output ends with its last token
    failed     why it cannot go on after these tokens
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    accepted: int = 0
    finish_reason: str | None = None
    stop_reason: int | None = None
    over: bool = False
    failed: ForearmError | None = None

    @property
    def ended(self) -> bool:
        return self.over or self.finish_reason is not None or self.failed is not None


def grow(outcome: SliceOutcome) -> Growth:
    """Append to the output of a slice that samples what the step gave."""
    piece, sequence = outcome.piece, outcome.piece.sequence
    growth = Growth(failed=outcome.failed)
    if sequence.request.params.logprobs is not None:
        growth.logprobs = []
    # After the last draft there is no draft to compare with; a slice that does not sample has no prospects.
    for prospect, draft in zip(outcome.prospects, (*piece.drafts, None), strict=False):
        if growth.ended:
            break
        if prospect.nan:
            growth.failed = nothing_to_choose(sequence)
            break
        if growth.logprobs is not None:
            assert prospect.logprobs is not None
            growth.logprobs.append(prospect.logprobs)
        _append(sequence, prospect.token, growth)
        if prospect.token != draft:
            break
        growth.accepted += 1
    if growth.logprobs is None and sequence.constraint is not None:
        _force(sequence, sequence.constraint, growth)
    return growth


def nothing_to_choose(sequence: Sequence) -> ForearmError:
    """Return the error that ends the output after its last token."""
    params = sequence.request.params
    if sequence.constraint is not None and (
        params.allowed_token_ids or params.bad_words_token_ids or params.logit_bias
    ):
        return ConstraintFailed(
            f"after token {len(sequence.tokens)} allowed_token_ids, bad_words and logit_bias leave none of the tokens "
            "that the grammar (regex, schema) allows"
        )
    return EngineFailed(
        f"request {sequence.request.request_id}: the model's logits after token {len(sequence.tokens)} have a NaN, "
        "or every token is forbidden; nothing can be chosen"
    )


def _force(sequence: Sequence, constraint: Constraint, growth: Growth) -> None:
    """Append what must come next: it takes no forward of its own to know it. Log-probabilities do, so where they are
    wanted these tokens come as drafts.
    """
    while not growth.ended and (forced := constraint.forced()):
        for token in forced:
            _append(sequence, token, growth)
            if growth.ended:
                return


def _append(sequence: Sequence, token: int, growth: Growth) -> None:
    sequence.append(token)
    growth.token_ids.append(token)
    growth.finish_reason, growth.stop_reason = finish(sequence)
    if growth.finish_reason is None and sequence.constraint is not None:
        try:
            sequence.constraint.take(token)
            growth.over = sequence.constraint.over
        except ForearmError as error:
            growth.failed = error
