"""What handlers ask for by type."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from forearm.api.generation.request_bodies import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from forearm.api.generation.serving_context import Served as ServedState
from forearm.api.http.request_body import json_body


def _served(request: Request) -> ServedState:
    served: ServedState = request.app.state.served
    return served


Served = Annotated[ServedState, Depends(_served)]
ChatBody = Annotated[ChatRequest, Depends(json_body(ChatRequest))]
CompletionBody = Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
TokenizeBody = Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))]
DetokenizeBody = Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
