"""Requests of other APIs as chat requests: fields renamed to the chat's names, and back in error messages."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from forearm.api.generation.request_bodies import ChatRequest
from forearm.api.http.auth import given_key
from forearm.api.http.request_body import invalid
from forearm.errors import InvalidRequest

Result = TypeVar("Result")


class BoundedChat(ChatRequest):
    """A chat whose `most_tokens` is only a bound: if the context leaves less, the answer is shorter."""

    most_tokens: int | None = None

    @property
    def asked_max_tokens(self) -> int | None:
        return self.most_tokens


def chat_request(fields: Mapping[str, Any], names: Mapping[str, str]) -> BoundedChat:
    """Return the chat request with these fields; `names`: the client's names of fields, for error messages.

    Raises: InvalidRequest.
    """
    try:
        return BoundedChat.model_validate(fields)
    except ValidationError as error:
        raise renamed(invalid(error), names) from None


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """Return the error with the client's names of fields."""
    ours, message = error.param, str(error)
    if ours is None or ours not in names:
        return error
    theirs = names[ours]
    if message.startswith(ours):
        message = theirs + message[len(ours) :]
    return InvalidRequest(message.replace(f"`{ours}`", f"`{theirs}`"), theirs)


async def complaining(work: Awaitable[Result], names: Mapping[str, str]) -> Result:
    """Return the result of work on a chat; errors have the client's names of fields.

    Raises: as `work`.
    """
    try:
        return await work
    except InvalidRequest as error:
        raise renamed(error, names) from None


def owner_of(request: Request) -> str:
    """Return a hash of the API key as the owner of responses; without API keys all clients are one owner."""
    config = request.app.state.services.config
    if not config.api_key and not config.api_keys_file:
        return ""
    return hashlib.sha256(given_key(request.headers)).hexdigest()
