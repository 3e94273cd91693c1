"""Advance of an output after a step: append sampled tokens, accepted drafts and forced tokens, and check stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from forearm.engine.sampling import finish
from forearm.engine.sequence import Sequence
from forearm.engine.step import SliceOutcome
from forearm.errors import ConstraintFailed, EngineFailed, ForearmError
from forearm.wire import PositionLogprobs


@dataclass(slots=True)
class NewTokens:
    """The tokens that a step adds to one output.

    logprobs   of each token, where they are wanted
    accepted   drafts that were right: their keys and values are computed
    over       the grammar allows nothing more, so the output ends with its last token
    failed     the error that ends the output after these tokens
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


def append_tokens(outcome: SliceOutcome) -> NewTokens:
    """Append the step's tokens to the output of a slice that samples."""
    piece, sequence = outcome.piece, outcome.piece.sequence
    new = NewTokens(failed=outcome.failed)
    if sequence.request.params.logprobs is not None:
        new.logprobs = []
    # After the last draft there is no draft to compare with; a slice that does not sample has no sampled tokens.
    for one, draft in zip(outcome.sampled, (*piece.drafts, None), strict=False):
        if new.ended:
            break
        if one.nan:
            new.failed = nothing_to_choose(sequence)
            break
        if new.logprobs is not None:
            assert one.logprobs is not None
            new.logprobs.append(one.logprobs)
        _append(sequence, one.token, new)
        if one.token != draft:
            break
        new.accepted += 1
    if new.logprobs is None and sequence.constraint is not None:
        # Tokens that the grammar forces need no forward pass. If log-probabilities are wanted, which need one, these
        # tokens are computed as drafts instead.
        while not new.ended and (forced := sequence.constraint.forced()):
            for token in forced:
                _append(sequence, token, new)
                if new.ended:
                    break
    return new


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


def _append(sequence: Sequence, token: int, new: NewTokens) -> None:
    sequence.append(token)
    new.token_ids.append(token)
    new.finish_reason, new.stop_reason = finish(sequence)
    if new.finish_reason is None and sequence.constraint is not None:
        try:
            sequence.constraint.take(token)
            new.over = sequence.constraint.over
        except ForearmError as error:
            new.failed = error
