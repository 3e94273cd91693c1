"""`forearm serve` up to its first process: gunicorn, whose imports take longest.

It is started before this process has imported the supervisor and planned memory and cores. It imports the API
meanwhile, and then waits for its config (gunicorn_conf.py). Imports of this file delay the first answer; those of
supervisor.py do not.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forearm import log as logs
from forearm.child_process import Child
from forearm.config.api_config import METRICS_FOLDER, ApiConfig
from forearm.config.configs import Configs
from forearm.config.speculative import drafting_asked
from forearm.descriptors import raise_limit
from forearm.model.checkpoint.hub import find_model, find_tokenizer
from forearm.supervisor.addresses import api_answers, check_tls, held_address, unprotected
from forearm.supervisor.run_folder import RunFolder, run_folder
from forearm.supervisor.users import ServerUsers
from forearm.supervisor.watchdog import is_stopped

API_CONFIG = "api.json"
# Not inherited: child processes find what they need of these in their configs.
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY")
# numpy's OpenBLAS would start a spinning thread on each core, although it multiplies nothing here.
NO_BLAS = {"OPENBLAS_NUM_THREADS": "1"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFiles:
    """Folders, or .gguf files, on this machine. tokenizer, draft: "" if the model has its own, and no draft model."""

    model: Path
    tokenizer: str = ""
    draft: str = ""


def serve(configs: Configs, notes: Sequence[str], user_fd: int | None = None) -> int:
    """Run until SIGTERM, SIGINT or a failure that no restart can repair. Returns: the exit status.

    user_fd: the socket of the first user (users.py); None: it does not end with its users.
    Raises: ConfigError for a wrong setting that is found before an engine is started.
    """
    logs.set_up(configs.serve, "serve")
    for note in notes:
        log.info("%s", note)
    raise_limit()
    check_tls(configs.api)
    if warning := unprotected(configs.api):
        log.warning("%s", warning)
    if (drafting := drafting_asked(configs.engine)) is not None:
        log.info("drafts: %s, at most %d tokens", drafting.method, drafting.tokens)
    with closing(ServerUsers(user_fd)) as users, held_address(configs.api), run_folder() as runtime:
        return asyncio.run(users.during(server(configs, runtime), runtime.path))


def server(configs: Configs, runtime: RunFolder) -> Coroutine[Any, Any, int]:
    """Find the files of all models; return what then starts all processes, with sockets and configs in `runtime`.

    Raises: ConfigError naming the setting, here or when it is awaited.
    """
    # Downloads happen here, once, with their progress at the terminal; in an event loop Ctrl-C would not end them.
    serving, hub = configs.serve, configs.serve.hub
    folder, tokenizer, draft = find_model(serving.model, revision=serving.revision, **hub), "", ""
    if configs.api.tokenizer:
        tokenizer = str(find_tokenizer(configs.api.tokenizer, revision=configs.api.tokenizer_revision, **hub))
    if (drafting := drafting_asked(configs.engine)) is not None and drafting.model:
        draft = str(find_model(drafting.model, revision=drafting.revision, **hub))
    return _started(configs, runtime, ModelFiles(folder, tokenizer, draft))


async def _started(configs: Configs, runtime: RunFolder, files: ModelFiles) -> int:
    api = _api_child(configs.api, runtime, configs.serve.answer_timeout_s)
    with runtime.held(API_CONFIG):
        await api.start()
        try:
            from forearm.supervisor import supervisor  # imported late: gunicorn is starting meanwhile

            engines = supervisor.prepare(configs, runtime, files, api)
        except BaseException:
            api.kill()
            await api.gone()
            raise
    return await supervisor.watch(engines, api, configs, runtime.path)


def _api_child(config: ApiConfig, runtime: RunFolder, answer_timeout_s: float) -> Child:
    return Child(
        name="API",
        argv=[sys.executable, "-m", "gunicorn", "--config", "python:forearm.api.worker.gunicorn_conf"],
        cores=(),  # supervisor.py plans them
        on_death=signal.SIGTERM,  # gunicorn passes it on, and its workers drain
        ready=lambda: api_answers(config),
        withheld=SECRETS,
        pass_fds=(runtime.lock,),
        hangs=lambda pid: is_stopped(pid, answer_timeout_s),
        environment={
            "FOREARM_API_CONFIG": str(runtime.path / API_CONFIG),
            "PROMETHEUS_MULTIPROC_DIR": str(runtime.path / METRICS_FOLDER),  # prometheus_client's import reads it
            "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # else every log has a warning that torch is missing
            "PYDANTIC_DISABLE_PLUGINS": "__all__",  # else each start reads the metadata of all installed packages
            **NO_BLAS,
        },
    )
