"""Every setting of a server: read from the command line, the environment and the --config file.

A flag wins over the environment, the environment over the --config file, the file over the default. Names are vLLM's
wherever the meaning is the same; vllm_compat.py has vLLM's names without an effect here. A field without flag and
variable is filled in by the supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forearm.config.api_config import ApiConfig
from forearm.config.common import Common
from forearm.config.engine_config import EngineConfig
from forearm.config.environment import environment
from forearm.config.serve_config import ServeConfig
from forearm.config.settings import build, choose, settings_of

CONFIGS = (EngineConfig, ApiConfig, ServeConfig)
SETTINGS = settings_of(*CONFIGS)
GROUPS = {"common": Common, "engine": EngineConfig, "api": ApiConfig, "supervisor": ServeConfig}  # of --help
# What commands other than serve use of these settings; their help has the flags of these alone.
DOWNLOAD = frozenset(("model", "revision", "download_dir", "hf_token"))
# An engine in this process, without clients: nothing waits, is measured or recorded.
OFFLINE = frozenset(settings_of(EngineConfig)) - {
    *("log_stats", "shutdown_timeout_s", "max_logprobs", "max_num_queued_reqs", "old_metric_names", "profiler_config"),
}
_LOG = {"logging_level", "log_format", "logging_config_path"}
STARTUP = OFFLINE - _LOG
# The memory and speed of a server, which these don't change.
PLAN = (OFFLINE | {"workers"}) - {
    *_LOG,
    *("tokenizer", "tokenizer_revision", "weight_cache", "weight_cache_bytes", "generation_config"),
    *("override_generation_config", "scheduling_policy", "enable_prefix_caching", "seed"),
}
# A server on a private socket, without keys, TLS, browsers or a drain.
RUN_BATCH = frozenset(SETTINGS) - {
    *("uds", "root_path", "api_key", "api_keys_file", "guard_metrics", "playground", "docs", "tokenizer_info"),
    *("allowed_origins", "allowed_methods", "allowed_headers", "allow_credentials", "sse_keep_alive_interval_s"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "ssl_refresh"),
    *("profiler_config", "shutdown_timeout_s"),
}
# Variables that are known but read elsewhere: by tiers.cpp, and by gunicorn_conf.py through `api_config_path`.
READ_ELSEWHERE = ("FOREARM_TIER", "FOREARM_API_CONFIG")


@dataclass(frozen=True)
class Configs:
    """The configs that a command line, the environment and a file give together."""

    engine: EngineConfig
    api: ApiConfig
    serve: ServeConfig


def read(flags: Mapping[str, Sequence[str]], file: Mapping[str, Sequence[str]]) -> Configs:
    """Read the configs; `flags` and `file` have texts by field name.

    Raises: ConfigError naming the value and the remedy.
    """
    chosen = choose(SETTINGS, flags, environment(), file)
    return Configs(build(EngineConfig, chosen), build(ApiConfig, chosen), build(ServeConfig, chosen))


def engine_config(**given: Any) -> EngineConfig:
    """Make the config of an offline engine of a caller's values and the environment; the caller's win.

    Texts and numbers are parsed like a flag's, with its bounds.

    Raises: ConfigError naming the value and the remedy; TypeError for a name that is no setting.
    """
    texts = {
        name: (str(value),) for name, value in given.items() if type(value) in (str, int, float) and name in SETTINGS
    }
    chosen = choose(settings_of(EngineConfig), texts, environment(), {})
    return EngineConfig(**{**chosen, **{n: v for n, v in given.items() if v is not None and n not in texts}})
