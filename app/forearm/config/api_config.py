"""ApiConfig: settings of the API workers, each with its flag, variable, unit and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forearm.config.common import Common
from forearm.config.settings import (
    json_object,
    number,
    one_of,
    separated,
    setting,
    structured_outputs,
    whole,
    words,
)

TOOL_CALL_PARSERS = (
    *("deepseek_v3", "deepseek_v31", "granite", "granite-20b-fc", "granite4", "hermes", "jamba", "llama3_json"),
    *("llama4_json", "llama4_pythonic", "mistral", "openai", "phi4_mini_json", "pythonic", "qwen3_coder", "qwen3_xml"),
)
REASONING_PARSERS = ("deepseek_r1", "deepseek_v3", "granite", "mistral", "openai_gptoss", "qwen3")
METRICS_FOLDER = "metrics"  # of the API's workers, beside their config
STORED_BYTES = 128 << 20  # of responses, where memory is not short


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
