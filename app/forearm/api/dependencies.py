"""What handlers ask for by type."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from forearm.api.body import json_body
from forearm.api.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from forearm.api.served import Served as ServedState


def _served(request: Request) -> ServedState:
    served: ServedState = request.app.state.served
    return served


Served = Annotated[ServedState, Depends(_served)]
ChatBody = Annotated[ChatRequest, Depends(json_body(ChatRequest))]
CompletionBody = Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
TokenizeBody = Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))]
DetokenizeBody = Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
