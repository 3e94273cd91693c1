"""Endpoints that show or change the server's internals: /tokenizer_info with its flag, /server_info and
/reset_prefix_cache for developers, /start_profile and /stop_profile with --profiler-config.

All of them need a key if the server has keys.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from forearm import __version__, wire
from forearm.api.generation.dependencies import AppConfig, AppEngine, AppPrompts
from forearm.config.api_config import ApiConfig

tokenizer_router = APIRouter()
dev_router = APIRouter()
profile_router = APIRouter()

_SECRETS = ("api_key", "hf_token", "api_keys_file", "ssl_keyfile")


@tokenizer_router.get("/tokenizer_info")
async def tokenizer_info(config: AppConfig, prompts: AppPrompts) -> Response:
    """Return the model's tokenizer_config.json, its class, and the chat template in use."""
    folder = Path(config.tokenizer or config.model_folder)
    path = folder / "tokenizer_config.json"
    own: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    told = {**own, "tokenizer_class": own.get("tokenizer_class") or "PreTrainedTokenizerFast"}
    if prompts.template is not None:
        told["chat_template"] = prompts.template.source
    return JSONResponse(told)


@dev_router.get("/server_info")
async def server_info(config: AppConfig, engine: AppEngine) -> Response:
    """Return the settings of the API, and the state that the engines report."""
    states = [msgspec.structs.asdict(one.state) for one in engine.connections if one.state is not None]
    about = {"version": __version__, "python": platform.python_version(), "machine": platform.machine()}
    return JSONResponse({"forearm": about, "api": _shown(config), "engines": msgspec.to_builtins(states)})


@dev_router.post("/reset_prefix_cache")
async def reset_prefix_cache(engine: AppEngine) -> Response:
    """Discard the engines' prefix caches; requests that use them continue."""
    for connection in engine.connections:
        connection.send(wire.ForgetPrefixes())
    return Response()


@profile_router.post("/start_profile")
async def start_profile(engine: AppEngine) -> Response:
    """Start recording every engine's steps."""
    await engine.profile(start=True)
    return Response()


@profile_router.post("/stop_profile")
async def stop_profile(engine: AppEngine) -> Response:
    """Stop recording, and answer once the files are complete."""
    await engine.profile(start=False)
    return Response()


def _shown(config: ApiConfig) -> dict[str, Any]:
    """Return the settings with secrets hidden."""
    settings = dataclasses.asdict(config)
    return {name: ("***" if value else value) if name in _SECRETS else value for name, value in settings.items()}
