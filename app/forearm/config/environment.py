"""The environment of this process, which is read in this file alone: variables, and the folders that they name."""

from __future__ import annotations

import os
from pathlib import Path

from forearm.errors import ConfigError

METRICS_FOLDER = "metrics"  # of the API workers, beside their config


def environment() -> dict[str, str]:
    """Return the environment variables by name, for vllm_compat.py to check and for child processes."""
    return dict(os.environ)


def api_config_path() -> str:
    """Return the path of the ApiConfig that the supervisor writes as JSON for the gunicorn that it starts."""
    return os.environ["FOREARM_API_CONFIG"]


def let_torch_sleep() -> None:
    """Make torch's threads sleep between its operations, unless OMP_WAIT_POLICY says otherwise.

    By default they spin for milliseconds on the cores that forearm's threads compute on: a prompt of 512 tokens took
    three times as long. It counts before torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def client_api_key() -> str:
    """Return the API key that `forearm chat` sends when none is given."""
    return os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY") or ""


def cache_folder(chosen: str) -> Path | None:
    """Return the folder that --weight-cache names; None if nothing is to be kept, or auto's folder can't be written.

    auto's folder is made for this user alone; it lies beside the downloaded models, so that a volume holds both.
    """
    if chosen != "auto":
        return Path(chosen) if chosen else None
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(os.environ.get("HF_HOME") or caches / "huggingface").expanduser() / "forearm"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there may be no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def state_folder() -> Path:
    """Return the folder for what the commands keep of this user, made if it is missing: histories, logs.

    Raises: ConfigError if it cannot be made.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "forearm"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{folder}: {error}; set XDG_STATE_HOME to a folder that can be written") from None
    return folder
