"""gunicorn, the first process of `forearm serve`, whose imports take longest.

It is started before serve imports its settings and reads the command line. It imports the API meanwhile, and then waits
for its config (gunicorn_conf.py). Imports of this file delay the first answer; those of serve.py do not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from subprocess import Popen
from typing import NamedTuple, TextIO

from forearm.config.environment import METRICS_FOLDER
from forearm.descriptors import raise_limit
from forearm.spawn import spawn
from forearm.supervisor.run_folder import RunFolder, run_folder

API_CONFIG = "api.json"
# Not inherited: child processes find what they need of these in their configs.
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY")
# numpy's OpenBLAS would start a spinning thread on each core, although it multiplies nothing here.
NO_BLAS = {"OPENBLAS_NUM_THREADS": "1"}
GUNICORN = [sys.executable, "-m", "gunicorn", "--config", "python:forearm.api.worker.gunicorn_conf"]
ON_DEATH = signal.SIGTERM  # gunicorn passes it on, and its workers drain


class FirstProcess(NamedTuple):
    """gunicorn as it waits for its config, which it reads once `config` is closed.

    process: None if the kernel had no memory or process for it; supervisor.py tries it again.
    """

    runtime: RunFolder
    config: TextIO
    process: Popen[bytes] | None


def gunicorn_environment(runtime: RunFolder) -> dict[str, str]:
    """Return the variables of gunicorn besides those that it inherits."""
    return {
        "FOREARM_API_CONFIG": str(runtime.path / API_CONFIG),
        "PROMETHEUS_MULTIPROC_DIR": str(runtime.path / METRICS_FOLDER),  # prometheus_client's import reads it
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # else every log has a warning that torch is missing
        "PYDANTIC_DISABLE_PLUGINS": "__all__",  # else each start reads the metadata of all installed packages
        **NO_BLAS,
    }


def first_process(runtime: RunFolder) -> FirstProcess:
    """Start gunicorn. Raises: ConfigError if the run folder has no room."""
    config, process = runtime.held(API_CONFIG), None
    with contextlib.suppress(OSError):
        process = spawn(GUNICORN, ON_DEATH, gunicorn_environment(runtime), SECRETS, pass_fds=(runtime.lock,))
    return FirstProcess(runtime, config, process)


@contextlib.contextmanager
def started_early() -> Iterator[FirstProcess]:
    """Make a run folder and start gunicorn there; at the end kill it if it still runs, as after a wrong flag.

    Raises: ConfigError if too few files may be open, or no run folder can be made.
    """
    raise_limit()
    with run_folder() as runtime:
        first = first_process(runtime)
        try:
            yield first
        finally:
            if first.process is not None and first.process.poll() is None:
                os.killpg(first.process.pid, signal.SIGKILL)
                first.process.wait()
            first.config.close()  # not before: gunicorn would read an empty config, and say so
