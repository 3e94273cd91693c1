"""A replica: a `forearm serve` on a Unix socket of its own, with the methods that Ray calls."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx

from forearm.child_process import Child
from forearm.errors import EngineUnavailable
from ray import serve

GRACE_S = 10.0  # beyond the drain, before a server is killed
STUCK_S = 120.0  # without a ready engine, although serve restarts it: the replica is replaced
_OWN = frozenset(("connection", "content-length", "host", "keep-alive", "transfer-encoding"))  # of one hop: RFC 9110

Head = tuple[str, int, list[tuple[str, str]]]  # the replica, the status, the headers


class Server:
    """Runs one server and forwards requests to it. An answer is a Head, then bytes.

    argv: of `forearm serve`; bind: VLLM_CPU_OMP_THREADS_BIND. Ray assigns a replica no cores, so that several on one
    machine would pin themselves to the same ones; it sets OMP_NUM_THREADS to the replica's share of CPUs.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, argv: Sequence[str], bind: str, ready_timeout_s: float, drain_s: float
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forearm-ray-"))
        socket = self._folder / "api.sock"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket), limits=limits, verify=False),
            base_url="http://forearm",
            timeout=None,
        )
        self._drain_s = drain_s
        self._ready_s = time.monotonic()
        self._ended = False
        flags = ["--uds", str(socket), "--shutdown-timeout", str(drain_s)]
        self._child = Child(
            name="server",
            argv=[sys.executable, "-m", "forearm", "serve", *argv, *flags],
            cores=(),
            on_death=signal.SIGTERM,  # serve ends its own
            ready=socket.exists,
            environment={"VLLM_CPU_OMP_THREADS_BIND": bind},
        )
        process = await self._child.start()
        while not await self._is_ready():
            if process.poll() is not None:
                raise RuntimeError(f"forearm serve has ended with status {process.returncode}; its log says why")
            if time.monotonic() - self._ready_s > ready_timeout_s:
                await self._child.end(GRACE_S)
                raise RuntimeError(f"forearm serve was not ready after {ready_timeout_s:g} s (ready_timeout_s)")
            await asyncio.sleep(0.2)

    async def answer(
        self,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes,
        pieces: Sequence[bytes] = (),
        avoid: Sequence[str] = (),
    ) -> AsyncIterator[Head | bytes]:
        """Yield the server's answer as it arrives; `pieces` and `avoid` are for the router."""
        replica = serve.get_replica_context().replica_id.unique_id
        sent = [(name, value) for name, value in headers if name.lower() not in _OWN]
        try:
            async with self._http.stream(method, target, headers=sent, content=body) as reply:
                told = [(name, value) for name, value in reply.headers.multi_items() if name.lower() not in _OWN]
                yield replica, reply.status_code, told
                async for chunk in reply.aiter_raw():
                    yield chunk
        except httpx.TransportError as error:
            raise EngineUnavailable(f"the replica's server is gone: {error!r}") from None

    async def check_health(self) -> None:
        """Raise if the replica must be replaced; Ray calls it."""
        process = self._child.process
        if process is None or process.poll() is not None:
            raise RuntimeError("forearm serve has ended")
        if await self._is_ready():
            self._ready_s = time.monotonic()
        elif time.monotonic() - self._ready_s > STUCK_S:
            raise RuntimeError(f"no engine has taken requests for {STUCK_S:g} s")

    async def record_routing_stats(self) -> dict[str, bool]:
        """Report to the router whether the engine is ready."""
        return {"ready": await self._is_ready()}

    async def _is_ready(self) -> bool:
        try:
            return (await self._http.get("/readyz", timeout=5)).status_code == 200
        except httpx.TransportError:
            return False

    async def __del__(self) -> None:
        """End the server; Ray calls it once open requests have ended or their time is over."""
        if not self._ended:
            self._ended = True
            await self._child.end(self._drain_s + GRACE_S)
            await self._http.aclose()
            shutil.rmtree(self._folder, ignore_errors=True)
