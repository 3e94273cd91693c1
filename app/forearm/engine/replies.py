"""The loop's replies to clients, as wire messages."""

from __future__ import annotations

from forearm import wire
from forearm.array_types import Float32Array
from forearm.engine.advance import NewTokens
from forearm.engine.sequence import Request, Sequence
from forearm.errors import ForearmError


def tokens(sequence: Sequence, new: NewTokens, drafted: int) -> wire.Tokens:
    """Return an output's newest tokens, `drafted` of them tried as drafts; the first message has the prompt's data."""
    request = sequence.request
    first = sequence.index == 0 and sequence.output_length == len(new.token_ids)
    scored = first and request.params.prompt_logprobs is not None
    return wire.Tokens(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=new.token_ids,
        logprobs=new.logprobs,
        finish_reason=new.finish_reason,
        stop_reason=new.stop_reason,
        cached_tokens=sequence.cached_tokens if first else None,
        queue_s=(request.scheduled_s or request.arrived_s) - request.arrived_s if first else None,
        prompt_logprobs=request.prompt_logprobs if scored else None,
        drafted=drafted,
        accepted=new.accepted if drafted else 0,
    )


def embedded(sequence: Sequence, vector: Float32Array) -> wire.Embedded:
    """Return the vector of a request's text, or a vector or value for each token."""
    return wire.Embedded(
        request_id=sequence.request.request_id,
        index=sequence.index,
        vector=vector.tobytes(),
        rows=len(vector) if vector.ndim == 2 else None,
    )


def end(request: Request, index: int, reason: str) -> wire.Tokens:
    """Return the end message of an output, without further tokens."""
    return wire.Tokens(request_id=request.request_id, index=index, token_ids=[], finish_reason=reason)


def refusal(request_id: str, error: ForearmError) -> wire.Refused:
    """Return the refusal of a request, by which it ends."""
    return wire.Refused(
        request_id=request_id,
        error=type(error).__name__,
        message=str(error),
        param=getattr(error, "param", None),
        retry_after_s=getattr(error, "retry_after_s", 1),
    )
