"""vLLM's flags and variables that set nothing here: accepted with one log line, or refused with the reason.

Scripts written for vLLM on CPU keep working; nothing that would change answers is ignored in silence.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from forearm.errors import ConfigError

NO_JIT = "nothing is compiled at start"
OWN_POOL = "the engine has its own threads"
CHOSEN_AT_START = "instructions are chosen at start from what the CPU has (FOREARM_TIER forces a tier)"
NOTHING_SENT = "nothing is ever sent anywhere"


@dataclass(frozen=True)
class Foreign:
    """A flag without a setting. `takes_value`: a value follows; `allowed`: those that are right, None for any."""

    takes_value: bool
    reason: str
    allowed: tuple[str, ...] | None = None


def _rows(takes_value: bool, reason: str, names: str, allowed: tuple[str, ...] | None = None) -> dict[str, Foreign]:
    return dict.fromkeys(names.split(), Foreign(takes_value, reason, allowed))


# Accepted with one log line.
FLAGS: dict[str, Foreign] = {
    **_rows(False, NO_JIT, "--enforce-eager --no-enforce-eager --disable-custom-all-reduce --disable-cascade-attn"),
    **_rows(True, NO_JIT, "-O --compilation-config --optimization-level --attention-backend --moe-backend"),
    **_rows(True, NO_JIT, "--linear-backend"),
    **_rows(False, "every answer carries X-Request-Id", "--enable-request-id-headers"),
    **_rows(False, "/load is always there", "--enable-server-load-tracking"),
    **_rows(True, "a request's span has all that is measured", "--collect-detailed-traces"),
    **_rows(False, "code from checkpoints is never run", "--trust-remote-code"),
    **_rows(True, "files are read as they are", "--tokenizer-mode --config-format --code-revision"),
    **_rows(True, "KV blocks have 32 tokens", "--block-size"),
    **_rows(True, "use --kv-cache-memory-bytes", "--num-gpu-blocks-override --swap-space --cpu-offload-gb"),
    **_rows(
        False,
        "an int8 cache has a scale for each token and head, calculated always; fp8 has none",
        "--calculate-kv-scales --no-calculate-kv-scales",
    ),
    **_rows(True, "the step's budget is --max-num-batched-tokens", "--max-num-scheduled-tokens"),
    **_rows(True, "one prompt is part-way at a time", "--max-num-partial-prefills --max-long-partial-prefills"),
    **_rows(True, "blocks are told apart by SHA-256", "--prefix-caching-hash-algo"),
    **_rows(False, "steps follow one another", "--async-scheduling --no-async-scheduling"),
    **_rows(False, "text only is served", "--language-model-only"),
    **_rows(False, "it was removed from vLLM; see --enable-log-requests", "--disable-log-requests"),
    **_rows(False, "it was removed from vLLM", "--disable-frontend-multiprocessing --use-v2-block-manager"),
    **_rows(True, "it was removed from vLLM", "--num-scheduler-steps --guided-decoding-backend"),
    **_rows(True, "llguidance imposes all formats", "--structured-outputs-config.backend"),
    **_rows(True, "use VLLM_LOGGING_LEVEL", "--uvicorn-log-level"),
    **_rows(True, "there is no HTTP limit of that kind", "--h11-max-incomplete-event-size --h11-max-header-count"),
    **_rows(False, "metrics have no hidden ones", "--kv-cache-metrics --enable-mfu-metrics"),
    **_rows(True, "metrics have no hidden ones", "--show-hidden-metrics-for-version --custom-histogram-buckets"),
}

# Right with these values alone.
FLAGS |= {
    **_rows(True, "pipeline parallelism splits a model over machines, which forearm does not", "-pp", ("1",)),
    **_rows(True, "pipeline parallelism splits a model over machines", "--pipeline-parallel-size", ("1",)),
    **_rows(True, "processes are started on this machine", "--distributed-executor-backend", ("mp", "uni")),
    **_rows(True, "forearm runs on CPUs", "--device", ("cpu", "auto")),
    **_rows(
        True,
        "weights come from safetensors or GGUF; pickled ones could run code",
        "--load-format",
        ("auto", "safetensors", "gguf"),
    ),
    **_rows(True, "log-probabilities are those of the raw logits", "--logprobs-mode", ("raw_logprobs",)),
    **_rows(True, "every token is sent when it is there", "--stream-interval", ("1",)),
}

_REFUSED = {
    "KV blocks are not moved between machines": "--kv-transfer-config --kv-events-config --kv-offloading-size",
    "it concerns GPUs or clusters": "--enable-sleep-mode --enable-dbo --enable-expert-parallel --enable-eplb",
    "LoRA adapters are not built yet": "--enable-lora --lora-modules --max-loras --max-lora-rank --max-cpu-loras "
    "--lora-dtype",
    "no foreign code is loaded into the server; see --tool-call-parser": "--tool-parser-plugin "
    "--reasoning-parser-plugin",
    "tools are the client's to run": "--tool-server",
    "a function whose `strict` is true is constrained, others are not": "--tool-strict-level",
    "reasoning is read as --reasoning-parser says; see --default-chat-template-kwargs": "--reasoning-config "
    "--reasoning-effort-map",
    "only text is served": "--limit-mm-per-prompt --mm-processor-kwargs --mm-processor-cache-gb "
    "--allowed-local-media-path --allowed-media-domains",
    "it is not built yet": "--hf-config-path",
    "use --max-num-queued-reqs": "--max-num-queued-tokens --max-num-active-seqs",
    "use VLLM_CPU_OMP_THREADS_BIND and CPU_VISIBLE_MEMORY_NODES": "--numa-bind --numa-bind-nodes --numa-bind-cpus",
    "no foreign code is loaded into the server": "--middleware",
    "a model's window is part of it; lower --max-model-len instead": "--disable-sliding-window",
}
REFUSED = {flag: reason for reason, flags in _REFUSED.items() for flag in flags.split()}

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
    "VLLM_MODEL_REDIRECT_PATH": "name the model's folder",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a dead engine is started again",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "LoRA adapters are not built yet",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "LoRA adapters are not built yet",
    "VLLM_PLUGINS": "no foreign code is loaded",
    "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": "calls are read in time proportional to their length",
    "VLLM_IMAGE_FETCH_TIMEOUT": "only text is served",
    "VLLM_AUDIO_FETCH_TIMEOUT": "only text is served",
    "VLLM_MEDIA_LOADING_THREAD_COUNT": "only text is served",
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "only text is served",
    "VLLM_WORKER_MULTIPROC_METHOD": "processes are started afresh",
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
# Variables that would change what is served: (right values, why the others are refused).
VARIABLES_LIMITED: dict[str, tuple[tuple[str, ...], str]] = {
    "VLLM_TARGET_DEVICE": (("cpu", ""), "forearm runs on CPUs; unset it or say cpu"),
    "VLLM_USE_MODELSCOPE": (("0", "false", "False", ""), "models come from Hugging Face or a folder; unset it"),
}


def check_flag(flag: str, value: str | None) -> list[str]:
    """The log line for a flag of FLAGS; none when its value says what is done anyway.

    Raises: ConfigError if its value is not one of those allowed.
    """
    foreign = FLAGS[flag]
    if foreign.allowed is not None:
        if value in foreign.allowed:
            return []
        raise ConfigError(f"{flag} {value}: {foreign.reason}; leave the flag out or say {' or '.join(foreign.allowed)}")
    return [f"{flag} has no effect: {foreign.reason}"]


def check_variables(environ: Mapping[str, str], known: set[str]) -> list[str]:
    """Log lines for the variables that have no effect, and one that lists the unknown.

    Raises: ConfigError for one that asks for what can't be served.
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
    if unknown:
        lines.append(f"unknown variables, ignored: {', '.join(unknown)}")
    return lines
