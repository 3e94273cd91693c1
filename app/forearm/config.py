"""EngineConfig, ApiConfig and ServeConfig: every setting with its flag, variable, unit and default.

A flag wins over the environment, the environment over the --config file, that over the default. The environment is
read here and nowhere else. Names are vLLM's wherever the thing is the same; foreign.py has those that mean nothing
here. A field without flag and variable is filled in by serve.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forearm.settings import (
    boolean,
    build,
    choose,
    gibibytes,
    json_object,
    model_length,
    number,
    one_of,
    profiler,
    separated,
    setting,
    settings_of,
    structured_outputs,
    whole,
    words,
)

DTYPES = {"half": "float16", "float": "float32"}
ROUNDED = ("int8", "int4", "int4-g32", "int4-g64", "int4-g128", "fp8")  # while loading
QUANTISED = ("gptq", "awq", "compressed-tensors", "fbgemm_fp8", "mxfp4", "gguf")  # already, in the checkpoint
SAME_QUANTISATION = {"None": "none", "gptq_marlin": "gptq", "awq_marlin": "awq"}
POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")  # what --task called them
TOOL_CALL_PARSERS = (
    *("deepseek_v3", "deepseek_v31", "granite", "granite-20b-fc", "granite4", "hermes", "jamba", "llama3_json"),
    *("llama4_json", "llama4_pythonic", "mistral", "openai", "phi4_mini_json", "pythonic", "qwen3_coder", "qwen3_xml"),
)
REASONING_PARSERS = ("deepseek_r1", "deepseek_v3", "granite", "mistral", "openai_gptoss", "qwen3")
METRICS_FOLDER = "metrics"  # of the API's workers, beside their config
STORED_BYTES = 128 << 20  # of responses, where memory is not short
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every process of a server needs."""

    model: str = setting("", "local folder or Hugging Face id; absent: the demo model", flag="--model")
    revision: str = setting("", "branch, tag or commit of the model on the hub", flag="--revision")
    download_dir: str = setting("", "where downloads go; absent: Hugging Face's cache", flag="--download-dir")
    hf_token: str = setting("", "token for gated models; absent: HF_TOKEN or the stored login", flag="--hf-token")
    tokenizer: str = setting("", "folder or Hugging Face id; absent: the model's", flag="--tokenizer")
    tokenizer_revision: str = setting("", "branch, tag or commit of it", flag="--tokenizer-revision")
    weight_cache: str = setting(
        "",
        "folder where packed weights are kept, so that the next start maps them (of each model those three used last), "
        "and tokenizers",
        flag="--weight-cache",
        env="FOREARM_WEIGHT_CACHE",
    )
    runner: str = setting(
        "auto",
        "generate text, or pooling: texts become vectors and scores; auto: as the model was made (--task's words too)",
        flag="--runner --task",
        parse=one_of("auto", "generate", "pooling", **dict.fromkeys(POOLING_TASKS, "pooling")),
    )
    convert: str = setting(
        "auto",
        "what a pooling model gives: embed (a vector), classify (scores); auto, none: what its architecture says",
        flag="--convert",
        parse=one_of("auto", "none", "embed", "classify"),
    )
    pooler_config: dict[str, Any] | None = setting(
        None,
        "JSON: changes to pooling: pooling_type (MEAN, CLS, LAST), normalize, dimensions",
        flag="--pooler-config --override-pooler-config",
        parse=json_object,
    )
    hf_overrides: dict[str, Any] | None = setting(
        None,
        "JSON: changes to config.json's keys: rope_parameters, rope_scaling, rope_theta; about pooling is_matryoshka, "
        "matryoshka_dimensions, num_labels, architectures, classifier_from_token",
        flag="--hf-overrides",
        parse=json_object,
    )
    generation_config: str = setting(
        "auto",
        "sampling where a request does not say: auto (the model's own; a .gguf's as in llama.cpp, temperature 0.8, "
        "top_k 40, top_p 0.95, min_p 0.05, where it has no keys of its own), vllm (temperature 1 and no cut), a folder",
        flag="--generation-config",
    )
    override_generation_config: dict[str, Any] | None = setting(
        None, "JSON: changes to that", flag="--override-generation-config", parse=json_object
    )
    max_logprobs: int = setting(
        20, "most alternatives a request may ask for; -1: no limit", flag="--max-logprobs", parse=whole(-1)
    )
    shutdown_timeout_s: float = setting(
        30.0,
        "time open requests have to end after SIGTERM or SIGINT",
        flag="--shutdown-timeout",
        env="FOREARM_SHUTDOWN_TIMEOUT",
        unit="s",
        parse=number(0),
    )
    execute_model_timeout_s: float = setting(
        300.0,
        "longest step of an engine: serve kills one that takes longer, and starts it again; and so long a request "
        "waits until an engine has taken it in",
        env="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        unit="s",
        parse=number(1),
    )
    logging_level: str = setting(
        "INFO",
        "least level that is logged",
        flag="--log-level",
        env="VLLM_LOGGING_LEVEL",
        parse=one_of(*LOG_LEVELS, WARN="WARNING"),
    )
    logging_prefix: str = setting("", "stands before every log line", env="VLLM_LOGGING_PREFIX")
    configure_logging: bool = setting(True, "0 leaves Python's logging alone", env="VLLM_CONFIGURE_LOGGING")
    log_format: str = setting(
        "text",
        "log lines: text, or json with a field for each part",
        flag="--log-format",
        env="FOREARM_LOG_FORMAT",
        parse=one_of("text", "json"),
    )
    logging_config_path: str = setting(
        "", "JSON for logging.config.dictConfig", flag="--log-config-file", env="VLLM_LOGGING_CONFIG_PATH"
    )
    profiler_config: dict[str, Any] | None = setting(
        None,
        "JSON: profiler torch and torch_profiler_dir, a folder: POST /start_profile and /stop_profile record what each "
        "step takes, as a Chrome trace; delay_iterations steps are left out first, after max_iterations it ends "
        "(torch_profiler_*, ignore_frontend: any)",
        flag="--profiler-config",
        env="VLLM_TORCH_PROFILER_DIR",
        parse=profiler,
    )

    @property
    def hub(self) -> dict[str, str]:
        """Where downloads go, and whose they are."""
        return {"download_dir": self.download_dir, "token": self.hf_token}


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Common):
    """One engine process, or an offline `LLM`."""

    dtype: str = setting(
        "auto",
        "what weights are computed in; auto: the checkpoint's, or what this CPU does instead",
        flag="--dtype",
        parse=one_of("auto", "bfloat16", "float16", "float32", **DTYPES),
    )
    quantization: str = setting(
        "none",
        "round weights while loading: int8, int4 (-g32, -g64, -g128: values a scale), fp8; or what the checkpoint is",
        flag="--quantization -q",
        parse=one_of("none", *ROUNDED, *QUANTISED, **SAME_QUANTISATION),
    )
    ignore_unread_tensors: bool = setting(
        False,
        "serve a checkpoint without those of its tensors that nothing reads, even where they would change the model: "
        "layers beyond the count, biases, norms",
        flag="--ignore-unread-tensors",
    )
    quantization_embeddings: str = setting(
        "auto",
        "embedding and head: int8 rounds them, none leaves them; auto: int8 where --quantization rounds the others",
        flag="--quantization-embeddings",
        parse=one_of("auto", "int8", "none"),
    )
    quantization_activations: str = setting(
        "auto",
        "what int8 and int4 weights are multiplied with: int8 (fast), float (16 or 32 bits); auto: int8, but what a "
        "compressed-tensors checkpoint says (VLLM_CPU_INT4_W4A8: 0 is float)",
        flag="--quantization-activations",
        env="VLLM_CPU_INT4_W4A8",
        parse=one_of("auto", "int8", "float"),
        parse_env=lambda value: "auto" if boolean(value) else "float",
    )
    kv_cache_dtype: str = setting(
        "auto",
        "what the KV cache is kept in; auto: as dtype; int8 (a scale for each token and head), fp8_e4m3 (fp8) and "
        "fp8_e5m2 take half of what 16 bits take",
        flag="--kv-cache-dtype",
        parse=one_of(
            "auto", "bfloat16", "float16", "float32", "int8", "fp8_e4m3", "fp8_e5m2", fp8="fp8_e4m3", **DTYPES
        ),
    )
    max_model_len: int | Literal["auto"] | None = setting(
        None,
        "longest prompt and answer together; absent: the model's; auto: what memory allows",
        flag="--max-model-len",
        unit="tokens",
        parse=model_length,
    )
    rope_scaling: dict[str, Any] | None = setting(
        None,
        "JSON: in place of config.json's, for contexts longer than it says, such as "
        '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}',
        flag="--rope-scaling",
        parse=json_object,
    )
    rope_theta: float | None = setting(
        None, "base of the rotary angles, in place of config.json's", flag="--rope-theta", parse=number(1)
    )
    allow_long_max_model_len: bool = setting(
        False, "1 allows more than the model was made for", env="VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    )
    max_num_seqs: int = setting(128, "sequences computed at a time", flag="--max-num-seqs", parse=whole(1, 4096))
    max_num_batched_tokens: int | None = setting(
        None,
        "token budget of one step; absent: 512 or --max-num-seqs, whichever is more; 2048 of texts that are embedded",
        flag="--max-num-batched-tokens",
        unit="tokens",
        parse=whole(1, 1 << 20),
    )
    max_num_queued_reqs: int | None = setting(
        None,
        "requests that may wait before more are refused; absent: 8 times --max-num-seqs",
        flag="--max-num-queued-reqs",
        parse=whole(1),
    )
    long_prefill_token_threshold: int = setting(
        0,
        "most tokens of one prompt in one step; 0: the whole budget",
        flag="--long-prefill-token-threshold",
        unit="tokens",
        parse=whole(0),
    )
    target_itl_s: float = setting(
        0.15,
        "inter-token latency that prompts leave to streams: a step takes so many tokens of prompts as are measured to "
        "be computed in this time, or in that of a step without prompts if that is more; 0: as many as the budget has. "
        "Prompts alone are computed in whole budgets",
        flag="--target-inter-token-latency",
        env="FOREARM_TARGET_INTER_TOKEN_LATENCY",
        unit="s",
        parse=number(0),
    )
    enable_chunked_prefill: bool = setting(
        True, "long prompts are computed in parts between others' tokens", flag="--enable-chunked-prefill"
    )
    enable_prefix_caching: bool = setting(
        True, "prompts that begin alike share what was computed", flag="--enable-prefix-caching"
    )
    scheduling_policy: str = setting(
        "fcfs", "fcfs: first come; priority: lowest first", flag="--scheduling-policy", parse=one_of("fcfs", "priority")
    )
    kv_cache_memory_bytes: int | None = setting(
        None,
        "memory for keys and values of each rank (VLLM_CPU_KVCACHE_SPACE is in GiB, decimals too); absent: what "
        "weights leave, but no more than --max-num-seqs sequences of full length fill",
        flag="--kv-cache-memory-bytes",
        env="VLLM_CPU_KVCACHE_SPACE",
        unit="bytes",
        parse=whole(1),
        parse_env=gibibytes,
    )
    memory_utilization: float = setting(
        0.92,
        "share of this machine's or container's memory that may be used in all",
        flag="--gpu-memory-utilization --device-memory-utilization",
        parse=number(0.01, 1),
    )
    grammar_cache_bytes: int | None = setting(
        None,
        "compiled grammars that are kept, or in use by open requests (VLLM_XGRAMMAR_CACHE_MB is in MiB); absent: 512 "
        "MiB, or a sixteenth of memory",
        env="VLLM_XGRAMMAR_CACHE_MB",
        unit="bytes",
        parse=whole(0),
        parse_env=lambda value: whole(0)(value) << 20,
    )
    seed: int = setting(0, "random numbers of requests that bring no seed", flag="--seed", parse=whole(0))
    speculative_config: dict[str, Any] | None = setting(
        None,
        "JSON: tokens are guessed and verified, several in one step, as far as that is measured to be faster; answers "
        "stay the same. method: ngram (what came after the same tokens before; prompt_lookup_min 3, prompt_lookup_max "
        "5) or draft_model (model, revision, quantization); num_speculative_tokens (8): most of one draft",
        flag="--speculative-config -sc",
        parse=json_object,
    )
    spec_method: str = setting("", "its method", flag="--spec-method")
    spec_model: str = setting("", "its model", flag="--spec-model")
    spec_tokens: int | None = setting(
        None, "its num_speculative_tokens", flag="--spec-tokens", unit="tokens", parse=whole(1)
    )
    omp_threads_bind: str = setting(
        "auto",
        "cores that compute: auto, nobind, or a list such as 0-29; a|b: of each rank or engine",
        env="VLLM_CPU_OMP_THREADS_BIND",
    )
    num_of_reserved_cpu: int | None = setting(
        None,
        "cores kept from computing, for the API; absent: 1 from 4 cores, 2 from 32",
        env="VLLM_CPU_NUM_OF_RESERVED_CPU",
        parse=whole(0),
    )
    omp_num_threads: int | None = setting(None, "most threads that compute", env="OMP_NUM_THREADS", parse=whole(1))
    tensor_parallel_size: int = setting(
        1,
        "ranks of one engine, each with its part of every matrix and of the KV cache on its own NUMA node: the sets of "
        "VLLM_CPU_OMP_THREADS_BIND=a|b, or so many nodes' cores, evenly cut where there are fewer; 1: all cores, a "
        "rank on each of their nodes. Answers are the same bit for bit",
        flag="--tensor-parallel-size -tp",
        parse=whole(1, 64),
    )
    visible_memory_nodes: str = setting("", "NUMA nodes that may be used, as a list", env="CPU_VISIBLE_MEMORY_NODES")
    log_stats: bool = setting(
        True, "a line of figures while requests run", flag="--log-stats", off="--disable-log-stats"
    )
    log_stats_interval_s: float = setting(
        10.0, "time between these lines", env="VLLM_LOG_STATS_INTERVAL", unit="s", parse=number(0.1)
    )
    old_metric_names: bool = setting(
        True, "metrics also under the names that vLLM has given up", flag="--old-metric-names"
    )
    others_bytes: int = 0  # memory that this server's other processes will take
    index: int = 0  # of this engine, of `engines` on this machine
    engines: int = 1
    memory_share_bytes: int = 0  # what it may use of memory, being one of several; 0: what there is
    name: str = ""  # what clients call the model, as the metrics' label; absent: as `model`
    first_kv_blocks: int = 0  # what this engine's first start planned; 0: this is the first
    socket: str = ""  # path of the Unix socket it listens on
    cores: tuple[int, ...] = ()  # one CPU id a thread; () and threads > 0: not pinned
    ranks: tuple[int, ...] = ()  # threads of each rank, in the order of `cores`; () with threads 0
    threads: int = 0  # 0: placement.plan() is asked

    @property
    def computed_as(self) -> str:
        """What may change answers of one model: numbers it is computed in, and changes to its positions and config."""
        numbers = (self.dtype, self.quantization, self.quantization_embeddings, self.quantization_activations)
        changes = (self.rope_scaling, self.rope_theta, self.hf_overrides, self.ignore_unread_tensors)
        return repr((*numbers, self.kv_cache_dtype, *changes))


@dataclass(frozen=True, kw_only=True)
class ApiConfig(Common):
    """The HTTP side: gunicorn and its workers."""

    host: str = setting("", "address to listen on; absent: all", flag="--host")
    port: int = setting(8000, "port to listen on", flag="--port", parse=whole(0, 65535))
    uds: str = setting("", "Unix socket to listen on instead", flag="--uds")
    root_path: str = setting("", "path under which a proxy offers this server", flag="--root-path")
    workers: int | None = setting(
        None,
        "HTTP processes; absent: one for each reserved core, at most 4",
        flag="--api-server-count -asc",
        parse=whole(1, 256),
    )
    served_model_name: tuple[str, ...] = setting(
        (), "names that clients use, the first one in answers; absent: MODEL", flag="--served-model-name", parse=words
    )
    api_key: tuple[str, ...] = setting(
        (),
        "keys of which clients must send one; sha256:DIGEST stands for a key, in hexadecimal",
        flag="--api-key",
        env="VLLM_API_KEY",
        parse=words,
    )
    api_keys_file: str = setting(
        "",
        "JSON, YAML or TOML: keys with names, limits and priorities (docs/keys.md); read again on SIGHUP",
        flag="--api-keys-file",
        env="FOREARM_API_KEYS_FILE",
    )
    guard_metrics: bool = setting(
        False, "/metrics, which has the names of keys, needs one of the keys, too", flag="--guard-metrics"
    )
    playground: bool = setting(True, "a page at / to try the model, with live figures", flag="--playground")
    chat_template: str = setting("", "Jinja file, or the template itself; absent: the model's", flag="--chat-template")
    chat_template_content_format: str = setting(
        "auto",
        "how the template takes contents",
        flag="--chat-template-content-format",
        parse=one_of("auto", "string", "openai"),
    )
    trust_request_chat_template: bool = setting(
        False, "requests may bring their own template (rendered in a sandbox)", flag="--trust-request-chat-template"
    )
    default_chat_template_kwargs: dict[str, Any] | None = setting(
        None, "JSON: variables for the template", flag="--default-chat-template-kwargs", parse=json_object
    )
    response_role: str = setting("assistant", "role of answers", flag="--response-role")
    enable_auto_tool_choice: bool = setting(
        True, "models may call tools where a request leaves them the choice", flag="--enable-auto-tool-choice"
    )
    tool_call_parser: str = setting(
        "",
        "format in which the model calls tools; absent: what its chat template tells; none: calls stay text",
        flag="--tool-call-parser",
        parse=one_of("none", *TOOL_CALL_PARSERS),
    )
    exclude_tools_when_tool_choice_none: bool = setting(
        False,
        "the template does not get the tools of a request with tool_choice none",
        flag="--exclude-tools-when-tool-choice-none",
    )
    include_empty_tool_calls: bool = setting(
        False,
        "messages without calls have tool_calls: [], as vLLM before 0.33 wrote them; else they have no tool_calls",
        flag="--include-empty-tool-calls",
    )
    reasoning_parser: str = setting(
        "",
        "format in which the model thinks; auto: what its chat template tells; absent, none: thoughts stay in content, "
        "as in vLLM without the flag, whose scripts would else get no content where max_tokens ends in the middle of a "
        "thought (gpt-oss: told apart all the same, as there)",
        flag="--reasoning-parser",
        parse=one_of("auto", "none", *REASONING_PARSERS),
    )
    structured_outputs_config: dict[str, Any] | None = setting(
        None,
        "JSON: disable_any_whitespace, disable_additional_properties of all requests' JSON (vLLM's backend: any)",
        flag="--structured-outputs-config",
        parse=structured_outputs,
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "origins that browsers may call from", flag="--allowed-origins", parse=separated
    )
    allowed_methods: tuple[str, ...] = setting(("*",), "methods for them", flag="--allowed-methods", parse=separated)
    allowed_headers: tuple[str, ...] = setting(("*",), "headers for them", flag="--allowed-headers", parse=separated)
    allow_credentials: bool = setting(False, "cookies for them", flag="--allow-credentials")
    docs: bool = setting(True, "/docs and /openapi.json", flag="--fastapi-docs", off="--disable-fastapi-docs")
    access_log: bool = setting(
        False, "a line for every request", flag="--access-log", off="--disable-uvicorn-access-log"
    )
    access_log_except: tuple[str, ...] = setting(
        (), "paths that the access log leaves out", flag="--disable-access-log-for-endpoints", parse=separated
    )
    log_requests: bool = setting(False, "log prompts and parameters", flag="--enable-log-requests")
    log_outputs: bool = setting(False, "log what is generated", flag="--enable-log-outputs")
    max_log_len: int | None = setting(
        None, "most characters of a logged prompt or output", flag="--max-log-len", unit="characters", parse=whole(0)
    )
    keep_alive_s: float = setting(
        5.0, "time an idle connection stays open", env="VLLM_HTTP_TIMEOUT_KEEP_ALIVE", unit="s", parse=number(0)
    )
    receive_timeout_s: float = setting(
        60.0,
        "time for a request's head to come, and for its body, unless that comes with 1000 bytes/s",
        env="FOREARM_RECEIVE_TIMEOUT",
        unit="s",
        parse=number(0.1),
    )
    body_timeout_s: float = setting(
        120.0,
        "time for a whole body to come, however fast it does",
        env="FOREARM_BODY_TIMEOUT",
        unit="s",
        parse=number(0.1),
    )
    send_timeout_s: float = setting(
        60.0,
        "time without a client reading what it has asked for, until its connection is closed",
        env="FOREARM_SEND_TIMEOUT",
        unit="s",
        parse=number(0.1),
    )
    sse_keep_alive_interval_s: float = setting(
        15.0,
        "a comment is sent on streams that are silent this long; 0: never",
        flag="--sse-keep-alive-interval",
        unit="s",
        parse=number(0),
    )
    max_body_bytes: int = setting(
        32 << 20, "longest request body", env="FOREARM_MAX_BODY_BYTES", unit="bytes", parse=whole(1)
    )
    body_memory_bytes: int | None = setting(
        None,
        "bytes of request bodies that one HTTP process holds at once, further requests get 503; absent: four of the "
        "longest",
        env="FOREARM_BODY_MEMORY_BYTES",
        unit="bytes",
        parse=whole(1),
    )
    max_n_sequences: int = setting(16384, "largest n", env="VLLM_MAX_N_SEQUENCES", parse=whole(1))
    max_completion_prompts: int = setting(
        1024, "most prompts of one request", env="VLLM_MAX_COMPLETION_PROMPTS", parse=whole(1)
    )
    max_stop_strings: int = setting(4, "most stop strings of one request", env="VLLM_MAX_STOP_STRINGS", parse=whole(1))
    max_num_bad_words: int = setting(128, "most bad_words of one request", env="VLLM_MAX_NUM_BAD_WORDS", parse=whole(1))
    responses_store: bool = setting(
        True,
        "responses of /v1/responses are kept for previous_response_id, retrieval and background, within the three "
        "bounds below; 0: none is kept",
        env="VLLM_ENABLE_RESPONSES_API_STORE",
    )
    responses_store_count: int = setting(
        10_000,
        "responses kept; those used longest ago go first",
        env="FOREARM_RESPONSES_STORE_COUNT",
        parse=whole(1, 1_000_000),
    )
    responses_store_bytes: int | None = setting(
        None,
        "bytes of the file that holds them; absent: 128 MiB, or a thirty-second of memory",
        env="FOREARM_RESPONSES_STORE_BYTES",
        unit="bytes",
        parse=whole(1 << 16),
    )
    responses_store_age_s: float = setting(
        24 * 3600.0,
        "time after its last use that a response is kept",
        env="FOREARM_RESPONSES_STORE_AGE",
        unit="s",
        parse=number(1),
    )
    prompt_tokens_details: bool = setting(False, "usage tells the cached tokens", flag="--enable-prompt-tokens-details")
    per_request_metrics: bool = setting(
        False, "answers with one choice tell their times", flag="--enable-per-request-metrics"
    )
    per_request_spec_decode_metrics: str = setting(
        "none",
        "answers with one choice tell what was guessed ahead for them: none, summary",
        flag="--per-request-spec-decode-metrics",
        parse=one_of("none", "summary"),
    )
    fingerprint_mode: str = setting(
        "full",
        "system_fingerprint of answers: full and hash (version and a hash of the model), custom, none",
        flag="--fingerprint-mode",
        parse=one_of("full", "hash", "custom", "none"),
    )
    fingerprint_value: str = setting("", "what it is when custom", flag="--fingerprint-value")
    force_include_usage: bool = setting(
        False, "every chunk of a stream tells the usage so far", flag="--enable-force-include-usage"
    )
    tokens_as_token_ids: bool = setting(
        False, "tokens of logprobs are written token_id:N", flag="--return-tokens-as-token-ids"
    )
    ssl_keyfile: str = setting("", "key for HTTPS", flag="--ssl-keyfile")
    ssl_certfile: str = setting("", "certificate for HTTPS", flag="--ssl-certfile")
    ssl_ca_certs: str = setting("", "authorities for clients' certificates", flag="--ssl-ca-certs")
    ssl_cert_reqs: int = setting(
        0, "clients' certificates: 0 none, 1 optional, 2 required", flag="--ssl-cert-reqs", parse=whole(0, 2)
    )
    ssl_ciphers: str = setting("", "ciphers, as OpenSSL writes them", flag="--ssl-ciphers")
    ssl_refresh: bool = setting(
        False, "key and certificate are read again when they change, for new connections", flag="--enable-ssl-refresh"
    )
    otlp_traces_endpoint: str = setting(
        "", "where spans of requests go (pip install forearm[otlp])", flag="--otlp-traces-endpoint"
    )
    otlp_traces_protocol: str = setting(
        "grpc",
        "how they get there",
        env="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        parse=one_of("grpc", "http/protobuf"),
    )
    tokenizer_info: bool = setting(False, "GET /tokenizer_info", flag="--enable-tokenizer-info-endpoint")
    dev_mode: bool = setting(False, "/reset_prefix_cache and /server_info", env="VLLM_SERVER_DEV_MODE")
    engine_sockets: tuple[str, ...] = ()  # Unix sockets of the engines
    priorities: bool = False  # whether the engine goes by them
    computed_as: str = ""  # EngineConfig's
    model_folder: str = ""  # where `model` lies on disk
    run_folder: str = ""  # of this server alone, gone when it stops; "": there is one worker, which makes its own
    metrics_folder: str = ""  # where the workers of one server keep their counters together; "": there is one worker

    @property
    def held_body_bytes(self) -> int:
        """The most bytes of request bodies that one worker holds at once; one of the longest always fits."""
        asked = 4 * self.max_body_bytes if self.body_memory_bytes is None else self.body_memory_bytes
        return max(asked, self.max_body_bytes)

    @property
    def held_response_bytes(self) -> int:
        """The most bytes of stored responses."""
        return STORED_BYTES if self.responses_store_bytes is None else self.responses_store_bytes


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Common):
    """`forearm serve` itself: what starts and watches the others."""

    data_parallel_size: int = setting(
        1,
        "engines, each with the whole model on cores of its own: of one NUMA node, where there are as many; a request "
        "goes where its beginning was computed before, as far as load allows",
        flag="--data-parallel-size -dp",
        parse=whole(1, 64),
    )
    data_parallel_size_local: int | None = setting(
        None, "how many of them run here: all", flag="--data-parallel-size-local -dpl", parse=whole(0, 64)
    )
    engine_ready_timeout_s: float = setting(
        600.0, "time an engine has to load the model", env="VLLM_ENGINE_READY_TIMEOUT_S", unit="s", parse=number(1)
    )
    answer_timeout_s: float = setting(
        30.0,
        "time without any answer of an engine's process, which answers while it computes too, until it is killed and "
        "started again; HTTP's first process if it is stopped so long",
        env="FOREARM_ANSWER_TIMEOUT",
        unit="s",
        parse=number(1),
    )


CONFIGS = (EngineConfig, ApiConfig, ServeConfig)
SETTINGS = settings_of(*CONFIGS)
# Read elsewhere, and so not unknown: tiers.cpp, and gunicorn_conf.py through `api_config_path`.
READ_ELSEWHERE = ("FOREARM_TIER", "FOREARM_API_CONFIG")


@dataclass(frozen=True)
class Configs:
    """What one command line, environment and file come to."""

    engine: EngineConfig
    api: ApiConfig
    serve: ServeConfig


def read(flags: Mapping[str, Sequence[str]], file: Mapping[str, Sequence[str]]) -> Configs:
    """The configs; `flags` and `file` have texts by field name.

    Raises: ConfigError naming the value and the remedy.
    """
    chosen = choose(SETTINGS, flags, os.environ, file)
    return Configs(build(EngineConfig, chosen), build(ApiConfig, chosen), build(ServeConfig, chosen))


def engine_config(**given: Any) -> EngineConfig:
    """The config of an offline engine: values as a caller has them, over the environment. Texts and numbers are read as
    a flag's, within its bounds.

    Raises: ConfigError naming the value and the remedy; TypeError for a name that is no setting.
    """
    texts = {
        name: (str(value),) for name, value in given.items() if type(value) in (str, int, float) and name in SETTINGS
    }
    chosen = choose(settings_of(EngineConfig), texts, os.environ, {})
    return EngineConfig(**{**chosen, **{n: v for n, v in given.items() if v is not None and n not in texts}})


def environment() -> dict[str, str]:
    """Variables by name, for foreign.py to look through."""
    return dict(os.environ)


def api_config_path() -> str:
    """Where serve.py has put the ApiConfig, as JSON, for the gunicorn that it starts."""
    return os.environ["FOREARM_API_CONFIG"]


def client_api_key() -> str:
    """The key that `forearm chat` sends when none is given."""
    return os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY") or ""
