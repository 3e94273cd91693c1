"""Errors in the form of Anthropic's API."""

from __future__ import annotations

from forearm.api.generation.response_bodies import ErrorBody, encoder
from forearm.api.http.caller import ApiConventions

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: ErrorBody, request_id: str) -> bytes:
    """Return an error's body; "" leaves the request id out."""
    kind = _TYPES.get(error.code, "invalid_request_error" if error.code < 500 else "api_error")
    named = {"request_id": request_id} if request_id else {}
    return encoder.encode({"type": "error", "error": {"type": kind, "message": error.message}, **named})


def broken(error: ErrorBody) -> bytes:
    """Return the event that ends a stream."""
    return b"event: error\ndata: " + messages_error(error, "") + b"\n\n"


MESSAGES_API = ApiConventions(messages_error, "request-id")
