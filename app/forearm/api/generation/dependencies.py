"""FastAPI dependencies: the annotated types by which route handlers receive the app's services."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.chat_turn import ServingChat
from forearm.api.generation.prompt import PromptRenderer
from forearm.api.generation.request_bodies import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from forearm.api.generation.served_model import ServedModel
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.http.request_body import json_body
from forearm.config.api_config import ApiConfig


def service(name: str) -> Any:
    """Return the dependency on one of the app's services (api/services.py)."""

    async def find(request: Request) -> Any:  # a coroutine: plain functions are called on a thread
        return getattr(request.app.state.services, name)

    return Depends(find)


def path_part(name: str) -> Any:
    """Return the dependency on a part of the path, as text.

    FastAPI's own parameters are fields of pydantic: for the first one it imports pydantic 1, which takes 0.018 s.
    """

    async def find(request: Request) -> Any:
        return request.path_params[name]

    return Depends(find)


AppConfig = Annotated[ApiConfig, service("config")]
AppEngine = Annotated[EngineClient, service("engine")]
AppMeter = Annotated[HttpMeter, service("meter")]
AppModel = Annotated[ServedModel, service("model")]
AppPrompts = Annotated[PromptRenderer, service("prompts")]
AppChat = Annotated[ServingChat, service("chat")]
ChatBody = Annotated[ChatRequest, Depends(json_body(ChatRequest))]
CompletionBody = Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
TokenizeBody = Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))]
DetokenizeBody = Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
