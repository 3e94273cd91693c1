"""GET /health, /livez, /readyz, /startupz, /ping, /version, /load, /metrics: what operators and load balancers ask,
without a key.

/livez: this worker answers (else: restart it). /startupz: an engine has loaded the model once (until then: wait).
/readyz: an engine takes requests and its last step is not long ago (else: send requests elsewhere, restart nothing).
"""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from forearm import __version__
from forearm.api.generation.dependencies import Served
from forearm.api.generation.serving_context import Served as ServedState
from forearm.api.ops.exposition import labelled, merged
from forearm.errors import EngineUnavailable
from forearm.wire import State

router = APIRouter()


@router.get("/livez")
async def live() -> Response:
    """This worker answers."""
    return Response()


@router.get("/readyz")
async def ready(served: Served) -> Response:
    """An engine is there, moves, and takes requests.

    Raises: EngineUnavailable.
    """
    running, waiting = await _ready(served)
    return JSONResponse({"status": "ready", "running": running, "waiting": waiting})


@router.get("/startupz")
async def started(served: Served) -> Response:
    """The model has been loaded once since this worker's start; whether it can answer now is /readyz' to tell.

    Raises: EngineUnavailable.
    """
    if not any(connection.was_there for connection in served.engine.connections):
        raise EngineUnavailable("the model is being loaded")
    return Response()


@router.get("/load")
async def load(served: Served) -> Response:
    """Requests that are being answered now, of all workers, as vLLM tells them."""
    return JSONResponse({"server_load": served.meter.load()})


@router.get("/health")
async def health(served: Served) -> Response:
    """As /readyz, with nothing in it: what vLLM's users ask.

    Raises: EngineUnavailable.
    """
    await _ready(served)
    return Response()


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping(served: Served) -> Response:
    """As /health, under SageMaker's name."""
    return await health(served)


@router.get("/version")
async def version() -> Response:
    """The version of this software."""
    return JSONResponse({"version": __version__})


@router.get("/metrics")
async def metrics(served: Served) -> Response:
    """The engines' metrics and, of all workers together, HTTP's. While an engine is away, the rest."""
    texts = [served.meter.text()]
    for index, connection in enumerate(served.engine.connections):
        with suppress(EngineUnavailable):
            text = await connection.ask_metrics()
            texts.append(text if len(served.engine.connections) == 1 else labelled(text, "engine", str(index)))
    return Response(merged(texts), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _ready(served: ServedState) -> tuple[int, int]:
    """Requests that run and wait, over all engines that take more.

    Raises: EngineUnavailable if there is none, saying why the last one does not.
    """
    why = EngineUnavailable("no engine is running; it is starting, or being restarted")
    states = []
    for connection in served.engine.connections:
        try:
            states.append(_fit(await connection.ask_state(), served.config.execute_model_timeout_s))
        except EngineUnavailable as error:  # noqa: PERF203  (one or two engines)
            why = error
    if not states:
        raise why
    return sum(state.running for state in states), sum(state.waiting for state in states)


def _fit(state: State, longest_step_s: float) -> State:
    """The same, of an engine that takes requests and moves.

    Raises: EngineUnavailable.
    """
    if state.draining:
        raise EngineUnavailable("the engine is shutting down")
    if state.last_step_age_s > longest_step_s:
        raise EngineUnavailable(f"the engine has been in one step for {state.last_step_age_s:.0f} s")
    return state
