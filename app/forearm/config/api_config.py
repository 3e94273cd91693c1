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
    url_path,
    whole,
    words,
)

TOOL_CALL_PARSERS = (
    "apertus", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4",
    "deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "glm45", "glm47", "granite",
    "granite-20b-fc", "granite4", "hermes", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba",
    "k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama3_json", "llama4_json", "llama4_pythonic", "longcat",
    "mimo", "minicpm", "minicpm5", "minimax_m2", "minimax_m3", "mistral", "nemotron_json", "olmo3", "openai",
    "phi4_mini_json", "plamo3", "poolside_v1", "pythonic", "qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss",
    "step3", "step3p5", "step5", "xlam", "zaya_xml",
)  # fmt: skip
REASONING_PARSERS = (
    "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45",
    "gemma4", "glm45", "glm47", "granite", "granite_thinking_parser", "holo2", "hunyuan_a13b", "hy_v3", "hy_v4",
    "inkling", "k2_horizon", "kimi_k2", "kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2", "minimax_m2_append_think",
    "minimax_m3", "mistral", "nemotron_v3", "olmo3", "openai_gptoss", "plamo3", "poolside_v1", "qwen3", "seed_oss",
    "step3", "step3p5", "step5",
)  # fmt: skip
STORED_BYTES = 128 << 20  # of responses, unless memory is short


@dataclass(frozen=True, kw_only=True)
class ApiConfig(Common):
    """Settings of gunicorn and its workers, the HTTP side."""

    host: str = setting("", "address to listen on; absent: all addresses", flag="--host")
    port: int = setting(
        8000, "port to listen on; 0: any that is free, which the log names", flag="--port", parse=whole(0, 65535)
    )
    uds: str = setting("", "Unix socket to listen on instead of host and port", flag="--uds")
    root_path: str = setting("", "path under which a proxy publishes this server", flag="--root-path", parse=url_path)
    workers: int | None = setting(
        None,
        "API worker processes; absent: one for each reserved core, at most 4",
        flag="--api-server-count -asc",
        parse=whole(1, 256),
    )
    served_model_name: tuple[str, ...] = setting(
        (),
        "names that clients may use for the model; answers have the first one; absent: MODEL, of a path "
        "its last part (the path is accepted, too)",
        flag="--served-model-name",
        parse=words,
    )
    api_key: tuple[str, ...] = setting(
        (),
        "API keys, one of which clients must send; sha256:DIGEST stands for the key with this hexadecimal digest",
        flag="--api-key",
        env="VLLM_API_KEY",
        parse=words,
    )
    api_keys_file: str = setting(
        "",
        "JSON, YAML or TOML file of API keys with names, limits and priorities (docs/keys.md); read again on SIGHUP",
        flag="--api-keys-file",
        env="FOREARM_API_KEYS_FILE",
    )
    guard_metrics: bool = setting(
        False, "/metrics, which shows the names of keys, needs an API key, too", flag="--guard-metrics"
    )
    playground: bool = setting(True, "a page at / to try the model, with live figures", flag="--playground")
    chat_template: str = setting("", "Jinja file, or the template itself; absent: the model's", flag="--chat-template")
    chat_template_content_format: str = setting(
        "auto",
        "form in which the template gets message contents: string, or openai (a list of parts)",
        flag="--chat-template-content-format",
        parse=one_of("auto", "string", "openai"),
    )
    trust_request_chat_template: bool = setting(
        False, "requests may contain their own template (rendered in a sandbox)", flag="--trust-request-chat-template"
    )
    default_chat_template_kwargs: dict[str, Any] | None = setting(
        None, "JSON: default variables of the chat template", flag="--default-chat-template-kwargs", parse=json_object
    )
    response_role: str = setting("assistant", "role of answers", flag="--response-role")
    enable_auto_tool_choice: bool = setting(
        True, "tool_choice auto: the model decides whether it calls tools", flag="--enable-auto-tool-choice"
    )
    tool_call_parser: str = setting(
        "",
        "format of the model's tool calls; absent: detected in its chat template; none: calls stay text",
        flag="--tool-call-parser",
        parse=one_of("none", *TOOL_CALL_PARSERS),
    )
    exclude_tools_when_tool_choice_none: bool = setting(
        False,
        "leave tools out of the prompt where tool_choice is none",
        flag="--exclude-tools-when-tool-choice-none",
    )
    include_empty_tool_calls: bool = setting(
        False,
        "messages without calls have tool_calls: [], as in vLLM before 0.33; otherwise they have no tool_calls",
        flag="--include-empty-tool-calls",
    )
    reasoning_parser: str = setting(
        "",
        "format of the model's reasoning; auto: detected in its chat template; absent, none: reasoning stays in "
        "content, as in vLLM without the flag (scripts written for that would get no content where max_tokens ends "
        "within the reasoning); reasoning of gpt-oss, as in vLLM, and of Inkling is always separated",
        flag="--reasoning-parser",
        parse=one_of("auto", "none", *REASONING_PARSERS),
    )
    structured_outputs_config: dict[str, Any] | None = setting(
        None,
        "JSON: disable_any_whitespace and disable_additional_properties for the JSON of all requests (vLLM's backend "
        "is accepted without effect)",
        flag="--structured-outputs-config",
        parse=structured_outputs,
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "origins that browsers may call from (CORS)", flag="--allowed-origins", parse=separated
    )
    allowed_methods: tuple[str, ...] = setting(
        ("*",), "methods for these origins", flag="--allowed-methods", parse=separated
    )
    allowed_headers: tuple[str, ...] = setting(
        ("*",), "headers for these origins", flag="--allowed-headers", parse=separated
    )
    allow_credentials: bool = setting(False, "cookies for these origins", flag="--allow-credentials")
    docs: bool = setting(True, "serve /docs and /openapi.json", flag="--fastapi-docs", off="--disable-fastapi-docs")
    access_log: bool = setting(
        False, "log a line for every request", flag="--access-log", off="--disable-uvicorn-access-log"
    )
    access_log_except: tuple[str, ...] = setting(
        (), "paths without lines in the access log", flag="--disable-access-log-for-endpoints", parse=separated
    )
    log_requests: bool = setting(False, "log prompts and parameters", flag="--enable-log-requests")
    log_outputs: bool = setting(False, "log generated texts", flag="--enable-log-outputs")
    max_log_len: int | None = setting(
        None, "most characters of a logged prompt or output", flag="--max-log-len", unit="characters", parse=whole(0)
    )
    keep_alive_s: float = setting(
        5.0,
        "time after which an idle connection is closed",
        env="VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        unit="s",
        parse=number(0),
    )
    receive_timeout_s: float = setting(
        60.0,
        "time in which a request's head must arrive, and its body unless that arrives with 1000 bytes/s",
        env="FOREARM_RECEIVE_TIMEOUT",
        unit="s",
        parse=number(0.1),
    )
    body_timeout_s: float = setting(
        120.0,
        "time in which a whole body must arrive, at any speed",
        env="FOREARM_BODY_TIMEOUT",
        unit="s",
        parse=number(0.1),
    )
    send_timeout_s: float = setting(
        60.0,
        "time after which a connection is closed whose client does not read the response",
        env="FOREARM_SEND_TIMEOUT",
        unit="s",
        parse=number(0.1),
    )
    sse_keep_alive_interval_s: float = setting(
        15.0,
        "time after which a silent stream gets a comment line; 0: never",
        flag="--sse-keep-alive-interval",
        unit="s",
        parse=number(0),
    )
    max_body_bytes: int = setting(
        32 << 20, "longest request body", env="FOREARM_MAX_BODY_BYTES", unit="bytes", parse=whole(1)
    )
    body_memory_bytes: int | None = setting(
        None,
        "request bodies that one API worker holds at once, beyond which requests get 503; absent: four of the longest",
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
        "keep responses of /v1/responses for previous_response_id, retrieval and background, within the three bounds "
        "below; 0: keep none",
        env="VLLM_ENABLE_RESPONSES_API_STORE",
    )
    responses_store_count: int = setting(
        10_000,
        "most responses kept; the least recently used are removed first",
        env="FOREARM_RESPONSES_STORE_COUNT",
        parse=whole(1, 1_000_000),
    )
    responses_store_bytes: int | None = setting(
        None,
        "size of the file that holds the responses; absent: 128 MiB, or a thirty-second of memory if that is less",
        env="FOREARM_RESPONSES_STORE_BYTES",
        unit="bytes",
        parse=whole(1 << 16),
    )
    responses_store_age_s: float = setting(
        24 * 3600.0,
        "time that a response is kept after its last use",
        env="FOREARM_RESPONSES_STORE_AGE",
        unit="s",
        parse=number(1),
    )
    prompt_tokens_details: bool = setting(
        False, "usage contains the cached tokens", flag="--enable-prompt-tokens-details"
    )
    per_request_metrics: bool = setting(
        False, "answers with one choice contain their times", flag="--enable-per-request-metrics"
    )
    per_request_spec_decode_metrics: str = setting(
        "none",
        "answers with one choice contain statistics of their draft tokens: none, summary",
        flag="--per-request-spec-decode-metrics",
        parse=one_of("none", "summary"),
    )
    fingerprint_mode: str = setting(
        "full",
        "system_fingerprint of answers: full and hash (version and a hash of the model), custom, none",
        flag="--fingerprint-mode",
        parse=one_of("full", "hash", "custom", "none"),
    )
    fingerprint_value: str = setting(
        "", "system_fingerprint of answers where --fingerprint-mode is custom", flag="--fingerprint-value"
    )
    force_include_usage: bool = setting(
        False, "every chunk of a stream contains the usage so far", flag="--enable-force-include-usage"
    )
    tokens_as_token_ids: bool = setting(
        False, "tokens of logprobs are written token_id:N", flag="--return-tokens-as-token-ids"
    )
    ssl_keyfile: str = setting("", "key for HTTPS", flag="--ssl-keyfile")
    ssl_certfile: str = setting("", "certificate for HTTPS", flag="--ssl-certfile")
    ssl_ca_certs: str = setting("", "certificate authorities of clients' certificates", flag="--ssl-ca-certs")
    ssl_cert_reqs: int = setting(
        0, "clients' certificates: 0 none, 1 optional, 2 required", flag="--ssl-cert-reqs", parse=whole(0, 2)
    )
    ssl_ciphers: str = setting("", "ciphers, as OpenSSL writes them", flag="--ssl-ciphers")
    ssl_refresh: bool = setting(
        False, "read key and certificate again when they change, for new connections", flag="--enable-ssl-refresh"
    )
    otlp_traces_endpoint: str = setting(
        "", "OpenTelemetry collector for the requests' spans (pip install forearm[otlp])", flag="--otlp-traces-endpoint"
    )
    otlp_traces_protocol: str = setting(
        "grpc",
        "protocol of the OpenTelemetry collector",
        env="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        parse=one_of("grpc", "http/protobuf"),
    )
    tokenizer_info: bool = setting(False, "serve GET /tokenizer_info", flag="--enable-tokenizer-info-endpoint")
    dev_mode: bool = setting(False, "serve /reset_prefix_cache and /server_info", env="VLLM_SERVER_DEV_MODE")
    engine_sockets: tuple[str, ...] = ()  # Unix sockets of the engines
    priorities: bool = False  # the engines schedule by priority
    computed_as: str = ""  # EngineConfig's
    model_folder: str = ""  # the folder of `model`
    run_folder: str = ""  # of this server, removed when it stops; "": there is one worker, which makes its own
    metrics_folder: str = ""  # of the counters that a server's workers share; "": there is one worker

    @property
    def held_body_bytes(self) -> int:
        """Return the most bytes of request bodies that a worker holds at once; one of the longest size always fits."""
        asked = 4 * self.max_body_bytes if self.body_memory_bytes is None else self.body_memory_bytes
        return max(asked, self.max_body_bytes)

    @property
    def held_response_bytes(self) -> int:
        """Return the most bytes of stored responses."""
        return STORED_BYTES if self.responses_store_bytes is None else self.responses_store_bytes
