"""create_app(): routes, lifespan, the one error handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from forearm import __version__
from forearm.api.anthropic import messages
from forearm.api.anthropic.errors import MESSAGES_API
from forearm.api.http.access_log import AccessLog, AccessMiddleware, Observe
from forearm.api.http.api_keys import KeyRing
from forearm.api.http.auth import AuthenticationMiddleware, open_paths
from forearm.api.http.caller import Observer
from forearm.api.http.early_refusal import EarlyRefusal
from forearm.api.http.errors import answer_error
from forearm.api.http.head_requests import HeadAsGet
from forearm.api.http.output_log import OutputLog
from forearm.api.http.rate_limit import RateTable
from forearm.api.http.tracing import Tracer
from forearm.api.openai import chat, chat_batch, completions, models, tokenize
from forearm.api.ops import admin, docs_page, health, playground, sagemaker
from forearm.api.ops.openapi_document import DescribedApp
from forearm.api.pooling import classify, embeddings, score
from forearm.api.responses import responses
from forearm.api.services import Services, load_services
from forearm.api.worker.shortage import watch_shortages
from forearm.api.worker.signals import on_hangup
from forearm.config.api_config import ApiConfig
from forearm.config.environment import METRICS_FOLDER, api_config_path
from forearm.config.settings import from_json
from forearm.errors import ConfigError, ForearmError
from forearm.log import follow
from forearm.text.tokenizer.tokenizer import Tokenizer

_NOUNS = (
    *(chat, chat_batch, completions, responses, messages),
    *(embeddings, classify, score, models, tokenize, health),
)

log = logging.getLogger(__name__)


def create_app(config: ApiConfig) -> FastAPI:
    """The app of one worker. It answers at once; requests get 503 until an engine is there.

    Raises: ConfigError (a tokenizer, template or generation config that cannot be read).
    """
    services = load_services(config)
    name, endpoint = services.model.names[0], config.otlp_traces_endpoint
    keys = KeyRing(config.api_key, config.api_keys_file, config.priorities)
    tracer = Tracer(endpoint, config.otlp_traces_protocol, name) if endpoint else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await services.engine.start()
        if tracer is not None:
            tracer.start()
        watching = asyncio.create_task(watch_shortages(services.meter))
        with on_hangup(keys.reload, lambda: follow(config.run_folder)):
            yield
        watching.cancel()
        await responses.close(app)
        await services.engine.close()
        if tracer is not None:
            tracer.close()

    # FastAPI's own /docs and /redoc load their scripts from elsewhere.
    openapi_url = "/openapi.json" if config.docs else None
    app = DescribedApp(
        title="forearm", version=__version__, lifespan=lifespan, openapi_url=openapi_url, docs_url=None, redoc_url=None
    )
    app.state.services = services
    responses.open_store(app, config)
    offered = [noun.router for noun in _NOUNS]
    offered += [docs_page.router] if config.docs else []
    offered += [admin.tokenizer_router] if config.tokenizer_info else []
    offered += [admin.dev_router] if config.dev_mode else []
    offered += [admin.profile_router] if config.profiler_config else []
    offered += [playground.router] if config.playground else []
    for router in offered:
        app.include_router(router)
    app.router.routes.append(sagemaker.route)
    for kind in (ForearmError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, answer_error)
    _surround(app, services, keys, tracer)
    return app


def _surround(app: FastAPI, services: Services, keys: KeyRing, tracer: Tracer | None) -> None:
    """Add the middleware between the socket and the routes."""
    config, root_path = services.config, services.config.root_path.rstrip("/")
    # The last one added is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(EarlyRefusal, engine=services.engine, meter=services.meter)
    if keys:
        app.add_middleware(
            AuthenticationMiddleware,
            open_paths=open_paths(config.guard_metrics),
            keys=keys,
            table=RateTable(),
            meter=services.meter,
        )
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
        )
    app.add_middleware(
        AccessMiddleware,
        meter=services.meter,
        body_memory=services.body_memory,
        engine=services.engine,
        root_path=root_path,
        access=AccessLog(config.access_log, frozenset(",".join(config.access_log_except).split(","))),
        observe=_observe(config, services.prompts.tokenizer, tracer),
        apis={"/v1/messages": MESSAGES_API},
    )


def _observe(config: ApiConfig, tokenizer: Tokenizer, tracer: Tracer | None) -> Observe:
    """Return what makes the observers of each request."""

    def observe(headers: Headers, request_id: str) -> tuple[Observer, ...]:
        found: list[Observer] = []
        if tracer is not None:
            found.append(tracer.begin(headers, request_id))
        if config.log_outputs:
            found.append(OutputLog(tokenizer, config.max_log_len, request_id))
        return tuple(found)

    return observe


def worker_app() -> FastAPI:
    """The app as gunicorn starts it, from the config that supervisor.py has written.

    Raises: SystemExit with ConfigError's status: supervisor.py does not try such a config again.
    """
    path = Path(api_config_path())
    config = from_json(ApiConfig, path.read_text(encoding="utf-8"))
    try:
        app = create_app(replace(config, run_folder=str(path.parent), metrics_folder=str(path.parent / METRICS_FOLDER)))
    except ConfigError as error:
        log.error("%s", error)
        raise SystemExit(ConfigError.exit_status) from None
    if defaults := app.state.services.defaults:
        shown = ", ".join(f"{name} {value}" for name, value in defaults.items())
        log.info("default sampling parameters: %s (--generation-config vllm: neutral)", shown)
    return app
