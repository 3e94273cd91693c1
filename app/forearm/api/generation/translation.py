"""Requests of other APIs as chat requests: their fields by our names, and complaints by theirs."""

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
    """A chat whose `most_tokens` is a bound: where the context leaves less, the answer is just shorter."""

    most_tokens: int | None = None

    @property
    def asked_max_tokens(self) -> int | None:
        return self.most_tokens


def chat_request(fields: Mapping[str, Any], names: Mapping[str, str]) -> BoundedChat:
    """The chat of these fields; `names` says what the client calls them.

    Raises: InvalidRequest.
    """
    try:
        return BoundedChat.model_validate(fields)
    except ValidationError as error:
        raise renamed(invalid(error), names) from None


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The same complaint about what the client wrote."""
    ours, message = error.param, str(error)
    if ours is None or ours not in names:
        return error
    theirs = names[ours]
    if message.startswith(ours):
        message = theirs + message[len(ours) :]
    return InvalidRequest(message.replace(f"`{ours}`", f"`{theirs}`"), theirs)


async def complaining(work: Awaitable[Result], names: Mapping[str, str]) -> Result:
    """The result of work on a chat; what it complains of is told by the client's names.

    Raises: what `work` raises.
    """
    try:
        return await work
    except InvalidRequest as error:
        raise renamed(error, names) from None


def owner_of(request: Request) -> str:
    """Who asks, by the API key, without keeping the key. Where there are no keys, all are one."""
    config = request.app.state.services.config
    if not config.api_key and not config.api_keys_file:
        return ""
    return hashlib.sha256(given_key(request.headers)).hexdigest()
