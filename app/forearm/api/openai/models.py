"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.dependencies import AppEngine, AppModel, path_part, service
from forearm.api.generation.response_bodies import ModelCard, ModelList, Permission
from forearm.api.generation.served_model import ServedModel
from forearm.api.generation.usage import json_response
from forearm.errors import EngineUnavailable

router = APIRouter()
Defaults = Annotated[Mapping[str, Any], service("defaults")]
ModelId = Annotated[str, path_part("model_id")]


@router.get("/v1/models")
async def list_models(model: AppModel, engine: AppEngine, defaults: Defaults) -> Response:
    """List the served model under each of its names."""
    return json_response(ModelList(data=[_card(name, model, engine, defaults) for name in model.names]))


@router.get("/v1/models/{model_id:path}")
async def retrieve_model(model_id: ModelId, model: AppModel, engine: AppEngine, defaults: Defaults) -> Response:
    """Return the model under one of its names; ids may have slashes.

    Raises: ModelNotFound.
    """
    return json_response(_card(model.name(model_id), model, engine, defaults))


def _card(name: str, model: ServedModel, engine: EngineClient, defaults: Mapping[str, Any]) -> ModelCard:
    try:
        state = engine.state
        length, details = state.max_model_len, state.model
    except EngineUnavailable:
        length, details = None, None
    permission = Permission(id=f"modelperm-{name}", created=model.created)
    return ModelCard(
        id=name,
        created=model.created,
        root=model.root,
        max_model_len=length,
        permission=[permission],
        default_sampling_params=dict(defaults),
        tasks=list(model.tasks),
        details=details,
    )
