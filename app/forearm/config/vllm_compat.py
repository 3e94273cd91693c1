"""vLLM's flags and variables that set nothing here: accepted with one log line, or refused with the reason.

Scripts written for vLLM on CPU keep working, and no setting that would change answers is ignored silently. The flags
are in vllm_flags.py.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from forearm.config.vllm_flags import FLAGS, NO_JIT, REFUSED
from forearm.errors import ConfigError

__all__ = ["FLAGS", "REFUSED", "VARIABLES", "check_flag", "check_variables", "refuse"]

OWN_POOL = "the engine has its own threads"
CHOSEN_AT_START = "instructions are chosen at start from what the CPU has (FOREARM_TIER forces a tier)"
NOTHING_SENT = "forearm sends no usage statistics"


# Patterns of variables that have no effect, with the reason.
VARIABLES: dict[str, str] = {
    "VLLM_CPU_ATTN_SPLIT_KV": "attention is split by the length of the context",
    "VLLM_CPU_CI_ENV": NO_JIT,
    "VLLM_CPU_SIM_MULTI_NUMA": "engines divide any cores; see --data-parallel-size",
    "VLLM_ZENTORCH_WEIGHT_PREPACK": "weights are always packed",
    "VLLM_CPU_MOE_PREPACK": "weights are always packed",
    "VLLM_CPU_SGL_KERNEL": CHOSEN_AT_START,
    "VLLM_CPU_AVX512*": CHOSEN_AT_START,
    "VLLM_CPU_AMXBF16": CHOSEN_AT_START,
    "VLLM_CPU_DISABLE_AVX512": CHOSEN_AT_START,
    "VLLM_CPU_ARM_*": CHOSEN_AT_START,
    "VLLM_MLA_DISABLE": "attention is what the model says",
    "VLLM_USE_V1": "it was removed from vLLM",
    "VLLM_ATTENTION_BACKEND": "it was removed from vLLM",
    "VLLM_HOST_IP": "processes talk over Unix sockets; see --host",
    "VLLM_PORT": "processes talk over Unix sockets; see --port",
    "VLLM_LOGGING_COLOR": "logs have no colour",
    "VLLM_USAGE_STATS_SERVER": NOTHING_SENT,
    "VLLM_NO_USAGE_STATS": NOTHING_SENT,
    "VLLM_DO_NOT_TRACK": NOTHING_SENT,
    "VLLM_USAGE_SOURCE": NOTHING_SENT,
    "VLLM_CACHE_ROOT": "downloads lie in Hugging Face's cache; see --download-dir",
    "VLLM_CONFIG_ROOT": "nothing is kept there",
    "VLLM_ASSETS_CACHE": "nothing is kept there",
    "VLLM_MODEL_REDIRECT_PATH": "give the model's folder instead",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a dead engine is started again",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "LoRA adapters are not built yet",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "LoRA adapters are not built yet",
    "VLLM_PLUGINS": "no plugins are loaded",
    "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": "tool calls are parsed in time proportional to their length",
    "VLLM_IMAGE_FETCH_TIMEOUT": "only text is served",
    "VLLM_AUDIO_FETCH_TIMEOUT": "only text is served",
    "VLLM_MEDIA_LOADING_THREAD_COUNT": "only text is served",
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "only text is served",
    "VLLM_WORKER_MULTIPROC_METHOD": "processes are always spawned",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "the engine is a process of its own",
    "VLLM_RINGBUFFER_WARNING_INTERVAL": "processes talk over Unix sockets",
    "VLLM_DP_*": "serve starts all engines itself; see --data-parallel-size",
    "VLLM_RPC_*": "processes talk over Unix sockets",
    "VLLM_USE_RUST_FRONTEND": "gunicorn serves HTTP",
    "VLLM_BATCH_INVARIANT": "answers never depend on the batch",
    "VLLM_DISABLE_COMPILE_CACHE": NO_JIT,
    "VLLM_DISABLE_SHARED_EXPERTS_STREAM": "it concerns GPUs",
    "VLLM_TARGET_DEVICE": "forearm always runs on the CPU",
    "VLLM_USE_MODELSCOPE": "models come from Hugging Face",
    "KMP_*": OWN_POOL,
    "GOMP_CPU_AFFINITY": OWN_POOL,
    "OMP_PLACES": OWN_POOL,
    "OMP_PROC_BIND": OWN_POOL,
    "ONEDNN_*": "oneDNN is not used",
    "DNNL_*": "oneDNN is not used",
    "ARM_COMPUTE_*": "the Arm Compute Library is not used",
    "TORCHINDUCTOR_*": "torch is not used",
    "NUMEXPR_MAX_THREADS": "numexpr is not used",
}
# The beginnings of other servers' variables, and the page with their counterparts.
_OTHERS = {
    "LLAMA_ARG_": "llama-server's are not read; docs/from-llama-cpp.md has the flags to write",
    "OLLAMA_": "Ollama's are not read; docs/from-ollama.md has the flags to write",
}
# Variables that would change what is served: (right values, why the others are refused).
VARIABLES_LIMITED: dict[str, tuple[tuple[str, ...], str]] = {
    "VLLM_TARGET_DEVICE": (("cpu", ""), "forearm runs on CPUs; unset it or write cpu"),
    "VLLM_USE_MODELSCOPE": (("0", "false", "False", ""), "models come from Hugging Face or a folder; unset it"),
}


def check_flag(flag: str, value: str | None) -> list[str]:
    """Return the log line for a flag of FLAGS; none where its value is what forearm does anyway.

    Raises: ConfigError if the value is not allowed.
    """
    foreign = FLAGS[flag]
    if foreign.allowed is not None:
        if value in foreign.allowed:
            return []
        raise ConfigError(
            f"{flag} {value}: {foreign.reason}; leave the flag out or write {' or '.join(foreign.allowed)}"
        )
    return [f"{flag} has no effect: {foreign.reason}"]


def refuse(flag: str) -> None:
    """Refuse a flag of vLLM for a feature that forearm does not have.

    Raises: ConfigError with the reason.
    """
    if flag in REFUSED:
        raise ConfigError(f"{flag}: {REFUSED[flag].reason}")


def check_variables(environ: Mapping[str, str], known: set[str], *, strict: bool = False) -> list[str]:
    """Return log lines for the variables that have no effect, and one that lists the unknown ones.

    Raises: ConfigError for a variable that asks for what can't be served, and for an unknown one if `strict`.
    """
    lines, unknown = [], []
    for name in sorted(environ):
        right, reason = VARIABLES_LIMITED.get(name, ((environ[name],), ""))
        if environ[name] not in right:
            raise ConfigError(f"{name}={environ[name]}: {reason}")
        pattern = next((p for p in VARIABLES if fnmatch.fnmatchcase(name, p)), None)
        if pattern is not None:
            lines.append(f"{name} has no effect: {VARIABLES[pattern]}")
        elif name.startswith(("VLLM_", "FOREARM_")) and name not in known:
            unknown.append(name)
    if unknown and strict:
        raise ConfigError(
            f"--fail-on-environ-validation: unknown variables: {', '.join(unknown)}; unset them, or leave the flag out"
        )
    if unknown:
        lines.append(f"unknown variables, ignored: {', '.join(unknown)}")
    for prefix, reason in _OTHERS.items():  # OLLAMA_HOST=127.0.0.1 leaves this server on all addresses
        if names := sorted(name for name in environ if name.startswith(prefix)):
            lines.append(f"variables without effect: {', '.join(names)}: {reason}")
    return lines
