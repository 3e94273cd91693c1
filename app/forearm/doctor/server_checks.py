"""Checks of a server's environment: allocator, settings, port, running server, hub, disks, model."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import shutil
import socket
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from forearm.config import configs, vllm_compat
from forearm.config.api_config import ApiConfig
from forearm.doctor.finding import CheckedHost, Finding
from forearm.engine.host import placement
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.placement import in_gib
from forearm.errors import ConfigError
from forearm.model.checkpoint.headers import find_headers
from forearm.model.checkpoint.hub import local_model
from forearm.supervisor.addresses import held_address, unprotected, url

ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")
WAIT_S = 3.0
SET_RIGHT = "unset it, or set what the message says"


def allocator(host: CheckedHost) -> Iterator[Finding]:
    """Check that the API's processes have an allocator for many threads."""
    preload = [part for part in host.environ.get("LD_PRELOAD", "").replace(":", " ").split() if part]
    absent = [part for part in preload if "/" in part and not host.path(part).exists()]
    if absent:
        remedy = "install it, or take it out of LD_PRELOAD"
        yield Finding("allocator", "warning", f"{', '.join(absent)} is preloaded and missing", "LD_PRELOAD", remedy)
    named = [part for part in preload if any(name in part for name in ALLOCATORS)]
    if named and not absent:
        mapped = any(name in (host.text("proc/self/maps") or "") for name in ALLOCATORS)
        what = "is in use" if mapped else "is preloaded, but not mapped into this process"
        yield Finding("allocator", "ok" if mapped else "warning", f"{Path(named[0]).name} {what}", "/proc/self/maps")
    elif not preload:
        places = ("usr/lib/*/libtcmalloc_minimal.so.4", "usr/lib64/libtcmalloc_minimal.so.4")
        found = [f"/{path.relative_to(host.path(''))}" for place in places for path in host.path("").glob(place)]
        remedy = f"LD_PRELOAD={found[0]}" if found else "apt-get install libtcmalloc-minimal4, then LD_PRELOAD it"
        what = "the C library's: API workers return less memory to the system (the engine is not affected)"
        yield Finding("allocator", "note", what, "LD_PRELOAD", remedy)


def settings(host: CheckedHost) -> Iterator[Finding]:
    """Check for variables that have no effect or ask for what can't be served."""
    known = {setting.env for setting in configs.SETTINGS.values()} | set(configs.READ_ELSEWHERE)
    try:
        lines = vllm_compat.check_variables(host.environ, known)
    except ConfigError as problem:
        yield Finding("settings", "error", str(problem), "the environment", SET_RIGHT)
        return
    for line in lines:
        yield Finding("settings", "note", line, "the environment", "unset it; docs/settings.md has what there is")
    if not lines:
        yield Finding("settings", "ok", "no variable without effect", "the environment")


def address(host: CheckedHost) -> Iterator[Finding]:
    """Check the port, who may use it, and the server that answers there."""
    if not host.is_this:
        return
    api = host.configs.api
    if warning := unprotected(api):
        yield Finding("keys", "note", warning, "--host and the keys")
    where = api.uds or f"{api.host or '0.0.0.0'}:{api.port}"
    try:
        with held_address(api):
            pass
    except ConfigError as problem:
        state = running(api)
        if state is None:
            yield Finding("port", "error", str(problem), "bind()", "stop what listens there, or choose another --port")
        else:
            yield Finding("port", "note", f"{where} is used by a running server", "bind()", "--port for a second one")
            yield state
        return
    yield Finding("port", "ok", f"{where} is free", "bind()")


def running(api: ApiConfig) -> Finding | None:
    """Return the state of the forearm server at an address; None if none answers."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(api.host, api.host)
    at = url(host, api.port, https=bool(api.ssl_certfile))
    version = _get(f"{at}/version")
    if version is None or version[0] != 200 or "version" not in version[1]:
        return None
    ready = _get(f"{at}/readyz")
    if ready is not None and ready[0] == 200:
        return Finding("server", "ok", f"{at} is ready, version {version[1]['version']}", "GET /readyz")
    said = "no answer"
    if ready is not None:
        error = ready[1].get("error")
        message = error.get("message", ready[1]) if isinstance(error, dict) else ready[1]
        said = f"{ready[0]}: {str(message)[:200]}"
    remedy = "wait while it loads; else its log says why the engine does not start"
    return Finding("server", "warning", f"{at} is not ready: {said}", "GET /readyz", remedy)


def _get(url: str) -> tuple[int, dict[str, Any]] | None:
    """Return status and JSON object of an answer of this machine, without proxy; None if there is no answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=WAIT_S) as reply:
            status, content = reply.status, reply.read(1 << 20)
    except urllib.error.HTTPError as problem:
        with problem:
            status, content = problem.code, problem.read(1 << 20)
    except (OSError, ValueError):
        return None
    with contextlib.suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict):
            return status, found
    return status, {}


def hub(host: CheckedHost) -> Iterator[Finding]:
    """Check the source of models: the hub and its token, the cache, room for downloads."""
    if not host.is_this:
        return
    from huggingface_hub import constants, get_token

    cache = Path(host.configs.engine.download_dir or constants.HF_HUB_CACHE)
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(there).free
    yield Finding(
        "disk", "ok" if free > 10 << 30 else "note", f"{in_gib(free)} free for models in {cache}", "statvfs()"
    )
    token = "a token is set" if host.configs.engine.hf_token or get_token() else "no token for gated models"
    if constants.HF_HUB_OFFLINE:
        yield Finding("hub", "note", f"offline: only models in the cache are served; {token}", "HF_HUB_OFFLINE")
        return
    endpoint = urlsplit(constants.ENDPOINT)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        with socket.create_connection((endpoint.hostname or "", port), WAIT_S):
            pass
    except OSError as problem:
        what = f"{constants.ENDPOINT} is not reached directly ({problem}); {token}"
        remedy = "fine with local folders and cached models; else the network, HTTPS_PROXY or HF_ENDPOINT"
        yield Finding("hub", "note", what, "connect()", remedy)
    else:
        yield Finding("hub", "ok", f"{constants.ENDPOINT} is reached; {token}", "connect()")


def model(host: CheckedHost) -> Iterator[Finding]:
    """Check that the named model exists, has room on disk, and fits into memory."""
    engine = host.configs.engine
    if not engine.model:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="forearm-doctor-") as into:
            folder = find_headers(
                engine.model,
                Path(into),
                revision=engine.revision,
                download_dir=engine.download_dir,
                token=engine.hf_token,
            )
            placed = placement.plan(engine, host.root)
            found = fit(engine, folder, placement.memory(engine, host.root), placed.threads)
            to_load = found.checkpoint.stored_bytes if folder.is_relative_to(into) else 0
    except ConfigError as problem:
        remedy = f"see the message; forearm plan {engine.model} --machine TYPE shows what it takes"
        yield Finding("model", "error", str(problem), "config.json and headers", remedy)
        return
    weights, kv = found.checkpoint.packed_bytes, found.blocks * found.block_bytes
    length = found.checkpoint.max_model_len
    contexts = found.limits.groups.sequences(found.blocks, length)
    what = f"fits: weights {in_gib(weights)}, KV cache {in_gib(kv)}: {contexts:.1f} sequences of {length} tokens"
    yield Finding("model", "ok", what, "config.json and headers")
    if to_load:
        from huggingface_hub import constants

        cache = Path(engine.download_dir or constants.HF_HUB_CACHE)
        there = next(path for path in (cache, *cache.parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < to_load:
            what = f"{in_gib(to_load)} to download, {in_gib(free)} free in {there}"
            yield Finding("disk", "error", what, "statvfs()", "make room, or --download-dir on a larger disk")
    elif local_model(engine.model) is not None:
        share = resident_share(folder)
        what = f"{folder} is here; {100 * share:.0f} % of its weights are in the page cache"
        yield Finding("model", "ok", what, "mincore()", "" if share > 0.99 else "the first start reads the disk")


def resident_share(model: Path) -> float:
    """Return the share of a model's files that is in the page cache.

    Raises: OSError if the kernel does not tell.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    pages = cached = 0
    for path in [model] if model.is_file() else sorted(model.glob("*.safetensors")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            found = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
            at, size = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view))
            failed = libc.mincore(at, size, ctypes.c_void_p(found.ctypes.data))
            del view  # the mapping can't be closed before
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore({path.name})")
        pages, cached = pages + len(found), cached + int((found & 1).sum())
    return cached / max(1, pages)
