"""Settings that every process of a server needs, each with its flag, variable, unit and default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forearm.config.settings import hub_id, json_object, number, one_of, profiler, setting, whole

POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")  # values of vLLM's former --task
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, kw_only=True)
class Common:
    """Settings that every process of a server needs."""

    model: str = setting(
        "",
        "folder, .gguf file, hub id (or its address) or short name; absent: the demo model",
        flag="--model",
        parse=hub_id,
    )
    revision: str = setting("", "branch, tag or commit of the model on the hub", flag="--revision")
    download_dir: str = setting("", "folder for downloads; absent: Hugging Face's cache", flag="--download-dir")
    hf_token: str = setting("", "token for gated models; absent: HF_TOKEN or the stored login", flag="--hf-token")
    tokenizer: str = setting("", "folder or Hugging Face id; absent: the model's", flag="--tokenizer")
    tokenizer_revision: str = setting("", "branch, tag or commit of the tokenizer", flag="--tokenizer-revision")
    weight_cache: str = setting(
        "auto",
        "folder in which packed weights are kept for the next start to map (the last three of each model), and "
        "prepared tokenizers; auto: forearm/ in Hugging Face's cache (HF_HOME) if it can be written, for weights of "
        "32 MiB or more; none: nothing is kept",
        flag="--weight-cache",
        env="FOREARM_WEIGHT_CACHE",
        parse=lambda value: "" if value.lower() in ("none", "off", "0") else value,
    )
    weight_cache_bytes: int | None = setting(
        None,
        "most bytes of the files in --weight-cache, such as 20G: the least recently used ones are deleted; "
        "absent: half of the disk space that is free without them",
        flag="--weight-cache-bytes",
        env="FOREARM_WEIGHT_CACHE_BYTES",
        unit="bytes",
        parse=whole(1),
    )
    runner: str = setting(
        "auto",
        "generate (text) or pooling (vectors and scores of texts); auto: as the model was made; --task's values too",
        flag="--runner --task",
        parse=one_of("auto", "generate", "pooling", **dict.fromkeys(POOLING_TASKS, "pooling")),
    )
    convert: str = setting(
        "auto",
        "output of a pooling model: embed (a vector) or classify (scores); auto, none: as its architecture says",
        flag="--convert",
        parse=one_of("auto", "none", "embed", "classify"),
    )
    pooler_config: dict[str, Any] | None = setting(
        None,
        "JSON that overrides the model's pooling: pooling_type (MEAN, CLS, LAST), normalize, dimensions",
        flag="--pooler-config --override-pooler-config",
        parse=json_object,
    )
    hf_overrides: dict[str, Any] | None = setting(
        None,
        "JSON that overrides keys of config.json: rope_parameters, rope_scaling, rope_theta; for pooling "
        "is_matryoshka, matryoshka_dimensions, num_labels, architectures, classifier_from_token",
        flag="--hf-overrides",
        parse=json_object,
    )
    generation_config: str = setting(
        "auto",
        "default sampling parameters: auto (the model's own; of a .gguf without such keys llama.cpp's: temperature "
        "0.8, top_k 40, top_p 0.95, min_p 0.05), vllm (temperature 1, no truncation), or the folder of a "
        "generation_config.json",
        flag="--generation-config",
    )
    override_generation_config: dict[str, Any] | None = setting(
        None,
        "JSON that overrides default sampling parameters",
        flag="--override-generation-config",
        parse=json_object,
    )
    max_logprobs: int = setting(
        20,
        "most log-probabilities per token that a request may ask for; -1: no limit",
        flag="--max-logprobs",
        parse=whole(-1),
    )
    shutdown_timeout_s: float = setting(
        30.0,
        "time that open requests have to finish after SIGTERM or SIGINT",
        flag="--shutdown-timeout",
        env="FOREARM_SHUTDOWN_TIMEOUT",
        unit="s",
        parse=number(0),
    )
    execute_model_timeout_s: float = setting(
        300.0,
        "longest step of an engine: one that takes longer is killed and started again; also the longest time in which "
        "an engine must accept a request",
        env="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        unit="s",
        parse=number(1),
    )
    logging_level: str = setting(
        "INFO",
        "lowest level that is logged",
        flag="--log-level",
        env="VLLM_LOGGING_LEVEL",
        parse=one_of(*LOG_LEVELS, WARN="WARNING"),
    )
    logging_prefix: str = setting("", "prefix of every log line", env="VLLM_LOGGING_PREFIX")
    configure_logging: bool = setting(True, "0 leaves Python's logging unconfigured", env="VLLM_CONFIGURE_LOGGING")
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
        "JSON: profiler torch and torch_profiler_dir, a folder: POST /start_profile and /stop_profile record the times "
        "of steps as a Chrome trace, after delay_iterations steps and for max_iterations at most; other "
        "torch_profiler_* keys and ignore_frontend are accepted without effect",
        flag="--profiler-config",
        env="VLLM_TORCH_PROFILER_DIR",
        parse=profiler,
    )

    @property
    def hub(self) -> dict[str, str]:
        """Return the arguments of downloads from the hub: their folder and the token."""
        return {"download_dir": self.download_dir, "token": self.hf_token}

    def short_name(self, folder: Path | str) -> str:
        """Return the model's id where the operator names none: that of the hub, or the last part of a path.

        folder: of the model, whose name the demo model has.
        """
        if self.model and not Path(self.model).exists():
            return self.model
        return Path(self.model or folder).absolute().name
