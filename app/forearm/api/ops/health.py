"""GET /health, /livez, /readyz, /startupz, /ping, /version, /load, /metrics, for operators and load balancers, without
a key.

/livez: this worker answers (otherwise restart it). /startupz: an engine has loaded the model once (until then wait).
/readyz: an engine accepts requests and its last step is recent (otherwise send requests elsewhere; do not restart).
"""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from forearm import __version__
from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.dependencies import AppConfig, AppEngine, AppMeter
from forearm.api.ops.exposition import labelled, merged
from forearm.errors import EngineUnavailable

router = APIRouter()


@router.get("/livez")
async def live() -> Response:
    """Answer that this worker is alive."""
    return Response()


@router.get("/readyz")
async def ready(engine: AppEngine, config: AppConfig) -> Response:
    """Answer whether an engine is running, makes progress and accepts requests.

    Raises: EngineUnavailable.
    """
    running, waiting = await _ready(engine, config.execute_model_timeout_s)
    return JSONResponse({"status": "ready", "running": running, "waiting": waiting})


@router.get("/startupz")
async def started(engine: AppEngine) -> Response:
    """Answer whether the model has been loaded once since this worker's start; /readyz tells whether it can serve now.

    Raises: EngineUnavailable.
    """
    if not any(connection.was_there for connection in engine.connections):
        raise EngineUnavailable("the model is being loaded")
    return Response()


@router.get("/load")
async def load(meter: AppMeter) -> Response:
    """Return the number of requests being answered now by all workers, in vLLM's form."""
    return JSONResponse({"server_load": meter.load()})


@router.get("/health")
async def health(engine: AppEngine, config: AppConfig) -> Response:
    """Answer as /readyz, with an empty body: the endpoint of vLLM.

    Raises: EngineUnavailable.
    """
    await _ready(engine, config.execute_model_timeout_s)
    return Response()


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping(engine: AppEngine, config: AppConfig) -> Response:
    """Answer as /health, under SageMaker's name."""
    return await health(engine, config)


@router.get("/version")
async def version() -> Response:
    """Return the version of this software."""
    return JSONResponse({"version": __version__})


@router.get("/metrics")
async def metrics(engine: AppEngine, meter: AppMeter) -> Response:
    """Return the engines' metrics and the HTTP metrics of all workers. An engine that does not answer is left out."""
    texts = [meter.text()]
    for index, connection in enumerate(engine.connections):
        with suppress(EngineUnavailable):
            text = await connection.ask_metrics()
            texts.append(text if len(engine.connections) == 1 else labelled(text, "engine", str(index)))
    return Response(merged(texts), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _ready(engine: EngineClient, longest_step_s: float) -> tuple[int, int]:
    """Return how many requests run and wait in all engines that accept requests and complete their steps.

    Raises: EngineUnavailable if there is none, with the reason of the last one.
    """
    await engine.reach()
    why = EngineUnavailable("no engine is running; it is starting, or being restarted")
    states = []
    for connection in engine.connections:
        try:
            state = await connection.ask_state()
        except EngineUnavailable as error:
            why = error
            continue
        if state.draining:
            why = EngineUnavailable("the engine is shutting down")
        elif state.last_step_age_s > longest_step_s:
            why = EngineUnavailable(f"the engine has been in one step for {state.last_step_age_s:.0f} s")
        else:
            states.append(state)
    if not states:
        raise why
    return sum(state.running for state in states), sum(state.waiting for state in states)
