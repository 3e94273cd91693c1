"""gunicorn's settings (`--config python:forearm.api.worker.gunicorn_conf`), made from the supervisor's ApiConfig.

The app is loaded once, in the master: a wrong setting ends the start, and a replaced worker is ready at once.
serve starts the master before it knows cores and memory, and holds the config's lock until it has written it and bound
the master to the cores that are reserved for HTTP; the workers inherit that.
"""

from __future__ import annotations

import fcntl
import gc
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

gc.disable()  # until when_ready: the imports that follow make 80,000 objects that stay, and nothing to collect

from forearm.api.http.protocol import Protocol
from forearm.api.worker.worker import FINAL_ANSWERS_S, Worker, hold_signals_while_forking
from forearm.config.api_config import ApiConfig
from forearm.config.environment import METRICS_FOLDER, api_config_path
from forearm.config.settings import from_json
from forearm.log import set_up
from forearm.spawn import die_with

_serve = os.getppid()
_path = Path(api_config_path())
with _path.open(encoding="utf-8") as _file:
    fcntl.flock(_file, fcntl.LOCK_SH)
    _config = from_json(ApiConfig, _file.read())
_metrics = _path.parent / METRICS_FOLDER
_metrics.mkdir(exist_ok=True)
set_up(_config, "api")

wsgi_app = "forearm.api.app:worker_app()"
worker_class = "forearm.api.worker.worker.Worker"
preload_app = True
_host = f"[{_config.host}]" if ":" in _config.host else _config.host
bind = [f"unix:{_config.uds}" if _config.uds else f"{_host or '0.0.0.0'}:{_config.port}"]
workers = _config.workers or 1

timeout = 60  # seconds without a heartbeat from a worker's event loop until it is killed and replaced
graceful_timeout = math.ceil(_config.shutdown_timeout_s) + FINAL_ANSWERS_S
keepalive = math.ceil(_config.keep_alive_s)
backlog = 2048
# Heartbeats go through a file, in memory where possible, because a disk may be slow.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(_path.parent)
control_socket_disable = True
proc_name = "forearm-api"

# At INFO gunicorn and uvicorn log every socket and worker; supervisor.py logs what an operator needs.
loglevel = "debug" if _config.logging_level == "DEBUG" else "warning"
logger_class = "forearm.api.worker.worker.Log"
accesslog = None  # AccessMiddleware writes it

Protocol.receive_timeout_s, Protocol.send_timeout_s = _config.receive_timeout_s, _config.send_timeout_s
Protocol.body_timeout_s = _config.body_timeout_s
Worker.ssl_refresh = _config.ssl_refresh and bool(_config.ssl_certfile)
hold_signals_while_forking()
keyfile = _config.ssl_keyfile or None
certfile = _config.ssl_certfile or None
ca_certs = _config.ssl_ca_certs or None
cert_reqs = _config.ssl_cert_reqs
ciphers = _config.ssl_ciphers or None


def on_starting(server: Any) -> None:
    """Remove what killed workers had in flight: serve starts a master when no worker of the one before is left.

    A master that is killed, as by the kernel for memory or by serve's watchdog, calls no `child_exit`, and /load and
    forearm:http_requests_in_flight would count its workers' requests until serve ends.
    """
    for gauges in _metrics.glob("gauge_live*.db"):
        if gauges.name != f"gauge_livesum_{os.getpid()}.db":
            gauges.unlink()


def when_ready(server: Any) -> None:
    """Exclude the app's objects from the workers' garbage collection before the workers are forked.

    There are 106,000 of them. Scanning them would block a worker for 0.1 s (two cores of an EPYC with other load)
    and copy their pages. A collection before would scan them once, for 0.045 s of every start, to free 2 MB.
    """
    gc.freeze()
    gc.enable()


def post_fork(server: Any, worker: Any) -> None:
    """End the worker with the master: otherwise it would keep the port, and nothing could reach it."""
    die_with(worker.ppid, signal.SIGTERM)


def on_exit(server: Any) -> None:
    """Remove the run folder if serve was killed and cannot do it."""
    if os.getppid() != _serve:
        shutil.rmtree(_path.parent, ignore_errors=True)


def child_exit(server: Any, worker: Any) -> None:
    """Keep the counters of a worker that has ended, so that no sum decreases."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(worker.pid, str(_metrics))  # type: ignore[no-untyped-call]
