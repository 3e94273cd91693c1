"""Log lines: `12:00:01 INFO engine: text`, on standard error, from every process alike."""

from __future__ import annotations

import json
import logging
import logging.config
from pathlib import Path

from forearm.config import Common

QUIET = ("httpx", "httpcore", "urllib3", "filelock", "asyncio", "transformers", "huggingface_hub")


def set_up(config: Common, process: str) -> None:
    """Send the logs of this process to standard error; `process` (serve, engine, api) stands in every line.

    VLLM_CONFIGURE_LOGGING=0 leaves logging as it is; VLLM_LOGGING_CONFIG_PATH replaces all of this.
    """
    if not config.configure_logging:
        return
    if config.logging_config_path:
        logging.config.dictConfig(json.loads(Path(config.logging_config_path).read_text()))
        return
    prefix = f"{config.logging_prefix} " if config.logging_prefix else ""
    logging.basicConfig(
        level=config.logging_level,
        format=f"{prefix.replace('%', '%%')}%(asctime)s %(levelname)s {process}: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in QUIET:  # what libraries say at INFO is not about this server
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(config.logging_level)))
