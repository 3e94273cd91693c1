"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from forearm.api.generation.dependencies import Served
from forearm.api.generation.response_bodies import ModelCard, ModelList, Permission
from forearm.api.generation.serving_context import Served as ServedState
from forearm.api.generation.usage import json_response
from forearm.errors import EngineUnavailable

router = APIRouter()


@router.get("/v1/models")
async def list_models(served: Served) -> Response:
    """Every name of the one model that is served."""
    return json_response(ModelList(data=[_card(name, served) for name in served.names]))


@router.get("/v1/models/{model_id:path}")
async def retrieve_model(model_id: str, served: Served) -> Response:
    """One of them; ids may have slashes.

    Raises: ModelNotFound.
    """
    return json_response(_card(served.model_name(model_id), served))


def _card(name: str, served: ServedState) -> ModelCard:
    try:
        length = served.engine.state.max_model_len
    except EngineUnavailable:
        length = None
    permission = Permission(id=f"modelperm-{name}", created=served.created)
    root = served.config.model or served.names[0]
    return ModelCard(
        id=name,
        created=served.created,
        root=root,
        max_model_len=length,
        permission=[permission],
        default_sampling_params=served.defaults,
    )
