"""`forearm serve` from its settings to the supervisor: checks, the files of all models, and the configs' folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forearm import log as logs
from forearm.child_process import Child
from forearm.config.configs import Configs
from forearm.config.speculative import drafting_asked
from forearm.model.checkpoint.hub import find_model, find_tokenizer
from forearm.supervisor.addresses import api_answers, check_tls, held_address, unprotected
from forearm.supervisor.first_process import (
    GUNICORN,
    ON_DEATH,
    SECRETS,
    FirstProcess,
    gunicorn_environment,
)
from forearm.supervisor.users import ServerUsers
from forearm.supervisor.watchdog import is_stopped

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFiles:
    """Folders, or .gguf files, on this machine. tokenizer, draft: "" if the model has its own, and no draft model."""

    model: Path
    tokenizer: str = ""
    draft: str = ""


def serve(configs: Configs, notes: Sequence[str], first: FirstProcess, user_fd: int | None = None) -> int:
    """Run until SIGTERM, SIGINT or a failure that no restart can repair. Returns: the exit status.

    user_fd: the socket of the first user (users.py); None: it does not end with its users.
    Raises: ConfigError for a wrong setting that is found before an engine is started.
    """
    logs.set_up(configs.serve, "serve")
    for note in notes:
        log.info("%s", note)
    check_tls(configs.api)
    if (drafting := drafting_asked(configs.engine)) is not None:
        log.info("drafts: %s, at most %d tokens", drafting.method, drafting.tokens)
    with closing(ServerUsers(user_fd)) as users, held_address(configs.api) as port:
        configs = replace(configs, api=replace(configs.api, port=port))
        if warning := unprotected(configs.api):
            log.warning("%s", warning)
        return asyncio.run(users.during(server(configs, first), first.runtime.path))


def server(configs: Configs, first: FirstProcess) -> Coroutine[Any, Any, int]:
    """Find the files of all models; return what then starts all processes, with sockets and configs in the run folder.

    Raises: ConfigError naming the setting, here or when it is awaited.
    """
    # Downloads happen here, once, with their progress at the terminal; in an event loop Ctrl-C would not end them.
    serving, hub = configs.serve, configs.serve.hub
    folder, tokenizer, draft = find_model(serving.model, revision=serving.revision, **hub), "", ""
    if configs.api.tokenizer:
        tokenizer = str(find_tokenizer(configs.api.tokenizer, revision=configs.api.tokenizer_revision, **hub))
    if (drafting := drafting_asked(configs.engine)) is not None and drafting.model:
        draft = str(find_model(drafting.model, revision=drafting.revision, **hub))
    return _started(configs, first, ModelFiles(folder, tokenizer, draft))


async def _started(configs: Configs, first: FirstProcess, files: ModelFiles) -> int:
    from forearm.supervisor import supervisor

    runtime, answer_timeout_s = first.runtime, configs.serve.answer_timeout_s
    api = Child(
        name="API",
        argv=GUNICORN,
        cores=(),  # supervisor.py plans them
        on_death=ON_DEATH,
        ready=lambda: api_answers(configs.api),
        withheld=SECRETS,
        pass_fds=(runtime.lock,),
        hangs=lambda pid: is_stopped(pid, answer_timeout_s),
        environment=gunicorn_environment(runtime),
        process=first.process,
    )
    try:
        with first.config:
            engines = supervisor.prepare(configs, runtime, files, api)
    except BaseException:
        api.kill()
        await api.gone()
        raise
    return await supervisor.watch(engines, api, configs, runtime.path)
