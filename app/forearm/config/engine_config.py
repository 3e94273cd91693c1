"""EngineConfig: settings of an engine, each with its flag, variable, unit and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from forearm.config.common import Common
from forearm.config.number_formats import (
    AT_LOAD,
    KV_CODES,
    METHODS,
    SAME_DTYPE,
    SAME_KV_DTYPE,
    DTypeName,
    KvDTypeName,
)
from forearm.config.settings import (
    boolean,
    gibibytes,
    json_object,
    model_length,
    number,
    one_of,
    setting,
    whole,
)

SAME_QUANTIZATION = {"None": "none", "gptq_marlin": "gptq", "awq_marlin": "awq"}


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Common):
    """Settings of one engine process, or of an offline `LLM`."""

    dtype: str = setting(
        "auto",
        "type of weights and activations; auto: the checkpoint's, or the one that this CPU computes instead",
        flag="--dtype",
        parse=one_of("auto", *get_args(DTypeName), **SAME_DTYPE),
    )
    quantization: str = setting(
        "none",
        f"quantize weights while loading: {', '.join(AT_LOAD)} (-g: group size; -fast: without calibration); or the "
        "checkpoint's own method",
        flag="--quantization -q",
        parse=one_of("none", *dict.fromkeys((*AT_LOAD, *METHODS)), **SAME_QUANTIZATION),
    )
    model_impl: str = setting(
        "auto",
        "what computes the model: forearm (its own C++), transformers (its modules, with forearm's attention and "
        "packed weights), or auto: forearm where it has the model's family",
        flag="--model-impl",
        parse=one_of("auto", "forearm", "transformers", vllm="forearm"),
    )
    trust_remote_code: bool = setting(
        False,
        "let transformers run the Python code of a checkpoint (auto_map) whose family neither forearm nor transformers "
        "has: it may do whatever this process may",
        flag="--trust-remote-code",
    )
    ignore_unread_tensors: bool = setting(
        False,
        "serve a checkpoint although it has tensors that are not read and would change the model: additional layers, "
        "biases, norms",
        flag="--ignore-unread-tensors",
    )
    quantization_embeddings: str = setting(
        "auto",
        "token embedding and output head: int8 quantizes them, none does not; auto: int8 where --quantization "
        "quantizes the other weights",
        flag="--quantization-embeddings",
        parse=one_of("auto", "int8", "none"),
    )
    quantization_activations: str = setting(
        "auto",
        "activations of integer weights: int8, or float (W8A16, W4A16), which are kept to 16 bits, integers with "
        "a scale for each token and group of weights; auto: int8, or as a checkpoint's quality.json or its "
        "compressed-tensors config says (VLLM_CPU_INT4_W4A8=0 is float)",
        flag="--quantization-activations",
        env="VLLM_CPU_INT4_W4A8",
        parse=one_of("auto", "int8", "float"),
        parse_env=lambda value: "auto" if boolean(value) else "float",
    )
    kv_cache_dtype: str = setting(
        "auto",
        "type of the KV cache; auto: as dtype, but bfloat16 for pooling models with integer weights; "
        f"{', '.join(KV_CODES)} (of fp8 the values alone, keys are int8) have a scale for each token and head, take "
        "half the memory of 16 bits and cost less than 0.3 % of perplexity on SmolLM2-135M",
        flag="--kv-cache-dtype",
        parse=one_of("auto", *get_args(KvDTypeName), **SAME_KV_DTYPE),
    )
    max_model_len: int | Literal["auto"] | None = setting(
        None,
        "longest sequence, prompt and answer together; absent: the model's; auto: what memory allows",
        flag="--max-model-len",
        unit="tokens",
        parse=model_length,
    )
    rope_scaling: dict[str, Any] | None = setting(
        None,
        "JSON in place of config.json's, for a longer context, such as "
        '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}',
        flag="--rope-scaling",
        parse=json_object,
    )
    rope_theta: float | None = setting(
        None, "base of the rotary embedding, in place of config.json's", flag="--rope-theta", parse=number(1, 1e15)
    )
    allow_long_max_model_len: bool = setting(
        False, "1 allows --max-model-len beyond the model's context", env="VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    )
    max_num_seqs: int = setting(128, "most sequences in one step", flag="--max-num-seqs", parse=whole(1, 4096))
    max_num_batched_tokens: int | None = setting(
        None,
        "token budget of one step; absent: 512 or --max-num-seqs, whichever is more; 1024 for pooling models",
        flag="--max-num-batched-tokens",
        unit="tokens",
        parse=whole(1, 1 << 20),
    )
    max_num_queued_reqs: int | None = setting(
        None,
        "most waiting requests, beyond which requests are refused; absent: 8 times --max-num-seqs",
        flag="--max-num-queued-reqs",
        parse=whole(1),
    )
    long_prefill_token_threshold: int = setting(
        0,
        "most prefill tokens of one prompt in a step; 0: the whole budget",
        flag="--long-prefill-token-threshold",
        unit="tokens",
        parse=whole(0),
    )
    target_itl_s: float | None = setting(
        None,
        "target of the inter-token latency during prefill: a step with running streams takes only as many prompt "
        "tokens as are measured to fit this time, or twice the time of a step without them if that is more; 0: the "
        "whole budget; absent: 0.15, but 0 for LLM and run-batch",
        flag="--target-inter-token-latency",
        env="FOREARM_TARGET_INTER_TOKEN_LATENCY",
        unit="s",
        parse=number(0),
    )
    enable_chunked_prefill: bool = setting(
        True,
        "long prompts are computed in chunks, together with other requests' decode steps",
        flag="--enable-chunked-prefill",
    )
    enable_prefix_caching: bool = setting(
        True, "prompts with the same beginning share its KV blocks", flag="--enable-prefix-caching"
    )
    state_cache_slots: int | None = setting(
        None,
        "copies of layers' states (Qwen3.5, LFM2, Mamba2), from which prompts with the same beginning go on; absent: "
        "as many as an eighth of the KV cache's memory holds, at most 64 or 4 times --max-num-seqs",
        flag="--state-cache-slots",
        parse=whole(0),
    )
    scheduling_policy: str = setting(
        "fcfs",
        "fcfs: first come, first served; priority: lowest number first",
        flag="--scheduling-policy",
        parse=one_of("fcfs", "priority"),
    )
    kv_cache_memory_bytes: int | None = setting(
        None,
        "KV cache of each rank (VLLM_CPU_KVCACHE_SPACE is in GiB, decimals too); absent: the memory that the weights "
        "leave, but no more than --max-num-seqs sequences of full length need",
        flag="--kv-cache-memory-bytes",
        env="VLLM_CPU_KVCACHE_SPACE",
        unit="bytes",
        parse=whole(1),
        parse_env=gibibytes,
    )
    memory_utilization: float = setting(
        0.92,
        "share of this machine's or container's memory that all processes together may use",
        flag="--gpu-memory-utilization --device-memory-utilization",
        parse=number(0.01, 1),
    )
    grammar_cache_bytes: int | None = setting(
        None,
        "memory for compiled grammars, cached or in use (VLLM_XGRAMMAR_CACHE_MB is in MiB); absent: 512 MiB, or a "
        "sixteenth of memory if that is less",
        env="VLLM_XGRAMMAR_CACHE_MB",
        unit="bytes",
        parse=whole(0),
        parse_env=lambda value: whole(0)(value) << 20,
    )
    seed: int = setting(0, "seed of requests that have none", flag="--seed", parse=whole(0))
    speculative_config: dict[str, Any] | None = setting(
        None,
        "JSON: speculative decoding, used where it is measured to be faster; answers stay the same. method: ngram "
        "(continuations of the last tokens found in the sequence; prompt_lookup_min 3, prompt_lookup_max 5), "
        "draft_model (model, revision, quantization) or mtp (the layer of the checkpoint that predicts further tokens; "
        "quantization int8); num_speculative_tokens (8): most tokens of one draft",
        flag="--speculative-config -sc",
        parse=json_object,
    )
    spec_method: str = setting("", "method of --speculative-config", flag="--spec-method")
    spec_model: str = setting("", "model of --speculative-config", flag="--spec-model")
    spec_tokens: int | None = setting(
        None,
        "num_speculative_tokens of --speculative-config",
        flag="--spec-tokens",
        unit="tokens",
        parse=whole(1),
    )
    omp_threads_bind: str = setting(
        "auto",
        "cores that compute: auto, nobind, or a list such as 0-29; a|b: one list for each rank or engine",
        env="VLLM_CPU_OMP_THREADS_BIND",
    )
    num_of_reserved_cpu: int | None = setting(
        None,
        "cores reserved for the API; absent: 1 from 4 cores on, 2 from 32 on",
        env="VLLM_CPU_NUM_OF_RESERVED_CPU",
        parse=whole(0),
    )
    omp_num_threads: int | None = setting(None, "most compute threads", env="OMP_NUM_THREADS", parse=whole(1))
    tensor_parallel_size: int = setting(
        1,
        "ranks of one engine, each with its part of every matrix and of the KV cache on its own NUMA node. Their "
        "cores: the lists of VLLM_CPU_OMP_THREADS_BIND=a|b, or those of as many nodes, evenly divided where there are "
        "fewer nodes; 1: all cores, with a rank on each of their nodes. Answers are the same bit for bit",
        flag="--tensor-parallel-size -tp",
        parse=whole(1, 64),
    )
    visible_memory_nodes: str = setting("", "NUMA nodes that may be used, as a list", env="CPU_VISIBLE_MEMORY_NODES")
    log_stats: bool = setting(
        True, "log a line of statistics while requests run", flag="--log-stats", off="--disable-log-stats"
    )
    log_stats_interval_s: float = setting(
        10.0, "time between the log's lines of statistics", env="VLLM_LOG_STATS_INTERVAL", unit="s", parse=number(0.1)
    )
    old_metric_names: bool = setting(
        True, "show metrics also under names that vLLM has retired", flag="--old-metric-names"
    )
    others_bytes: int = 0  # memory that this server's other processes will use
    index: int = 0  # of this engine, among `engines` on this machine
    engines: int = 1
    memory_share_bytes: int = 0  # memory of one of several engines; 0: all there is
    name: str = ""  # the model's name among clients, a label of metrics; "": as `model`
    first_kv_blocks: int = 0  # KV blocks that this engine's first start planned; 0: this is the first start
    socket: str = ""  # path of the Unix socket it listens on
    cores: tuple[int, ...] = ()  # a CPU id for each thread; () and threads > 0: not pinned
    ranks: tuple[int, ...] = ()  # threads of each rank, in the order of `cores`; () with threads 0
    threads: int = 0  # 0: as placement.plan() says

    @property
    def computed_as(self) -> str:
        """Return the settings that may change a model's answers: number formats, changed positions and config."""
        numbers = (self.dtype, self.quantization, self.quantization_embeddings, self.quantization_activations)
        changes = (self.rope_scaling, self.rope_theta, self.hf_overrides, self.ignore_unread_tensors)
        return repr((*numbers, self.kv_cache_dtype, *changes))
