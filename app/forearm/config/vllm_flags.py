"""vLLM's flags that set nothing here: accepted or refused, each with the reason. vllm_compat.py checks them.

Names and kinds are those of `vllm serve --help` of vLLM 0.33 (tests/unit/vllm_serve_flags.txt lists them), and of
older releases that scripts still use.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_JIT = "nothing is compiled at start"
ONE_MACHINE = "all engines run on this machine; for several machines see deploy/ray"
TEXT_ONLY = "only text is served"
NO_STATES = "recurrent states are kept as the model needs them"
NO_LORA = "there are no LoRA adapters"
OLD = "it was removed from vLLM"
MAIN_MEMORY = "weights are always in main memory"
AS_THEY_ARE = "files are always read in the same way"
NO_FOREIGN_CODE = "the server loads no plugins"
CLUSTER = "it concerns GPUs or clusters"
LEAVE_OUT = "; leave it out"


@dataclass(frozen=True)
class CompatFlag:
    """A flag of vLLM's without a setting. `values`: 0 for a switch, 1, or 2 for several; `allowed`: None is any."""

    values: int
    reason: str
    allowed: tuple[str, ...] | None = None


def _rows(values: int, reason: str, names: str, *allowed: str) -> dict[str, CompatFlag]:
    return dict.fromkeys(names.split(), CompatFlag(values, reason, allowed or None))


# Accepted with one log line.
FLAGS: dict[str, CompatFlag] = {
    **_rows(
        0,
        NO_JIT,
        "--enforce-eager --disable-custom-all-reduce --disable-cascade-attn --enable-flashinfer-autotune --monokernel "
        "--jit-monitor-verbose --cudagraph-metrics --use-replayssm",
    ),
    **_rows(
        1,
        NO_JIT,
        "-O -cc --compilation-config --optimization-level --attention-backend --attention-config -ac --moe-backend "
        "--linear-backend --max-cudagraph-capture-size --max-seq-len-to-capture --max-context-len-to-capture "
        "--kernel-config --ir-op-priority --jit-monitor-mode --mamba-backend --mamba-ssu-algorithm "
        "--gdn-prefill-backend --kda-decode-backend --kda-prefill-backend --sparse-indexer-topk-backend "
        "--replayssm-buffer-len --performance-mode",
    ),
    **_rows(2, NO_JIT, "--cudagraph-capture-sizes --compile-sizes"),
    **_rows(0, "every answer carries X-Request-Id", "--enable-request-id-headers"),
    **_rows(0, "/load is always there", "--enable-server-load-tracking"),
    **_rows(2, "a request's span has every time that is measured", "--collect-detailed-traces"),
    **_rows(1, AS_THEY_ARE, "--tokenizer-mode --config-format --code-revision --pt-load-map-location"),
    **_rows(1, AS_THEY_ARE, "--model-loader-extra-config --safetensors-load-strategy --max-parallel-loading-workers"),
    **_rows(1, AS_THEY_ARE, "--safetensors-prefetch-block-size --safetensors-prefetch-num-threads"),
    **_rows(2, "only one copy of the weights is downloaded and read", "--ignore-patterns"),
    **_rows(0, "a terminal always shows a progress bar, a log none", "--use-tqdm-on-load"),
    **_rows(0, "no quantization that forearm reads is deprecated", "--allow-deprecated-quantization"),
    **_rows(1, "KV blocks have 32 tokens", "--block-size --prefix-match-unit --prefix-cache-retention-interval"),
    **_rows(1, "use --kv-cache-memory-bytes", "--num-gpu-blocks-override --swap-space --watermark"),
    **_rows(1, MAIN_MEMORY, "--cpu-offload-gb --offload-backend --offload-group-size --offload-num-in-group"),
    **_rows(1, MAIN_MEMORY, "--offload-prefetch-step --kv-offloading-backend"),
    **_rows(2, MAIN_MEMORY, "--cpu-offload-params --offload-params"),
    **_rows(
        0,
        "a KV cache of 8 bits always has a scale for each token and head",
        "--calculate-kv-scales",
    ),
    **_rows(0, "there is one KV cache manager", "--disable-hybrid-kv-cache-manager --kv-sharing-fast-prefill"),
    **_rows(0, "there is one KV cache manager", "--swa-bounded-replay --scheduler-reserve-full-isl"),
    **_rows(0, NO_STATES, "--enable-mamba-shared-prefix-checkpoint"),
    **_rows(1, NO_STATES, "--mamba-block-size --mamba-cache-mode --mamba-cache-philox-rounds"),
    **_rows(1, "the token budget of a step is --max-num-batched-tokens", "--max-num-scheduled-tokens"),
    **_rows(1, "prefill and decode share every step", "--prefill-schedule-interval"),
    **_rows(0, "see --long-prefill-token-threshold", "--long-prefill-token-threshold-adaptive"),
    **_rows(1, "one prompt at a time is partially prefilled", "--max-num-partial-prefills --max-long-partial-prefills"),
    **_rows(1, "prefix blocks are always hashed with SHA-256", "--prefix-caching-hash-algo"),
    **_rows(0, "steps are always scheduled synchronously", "--async-scheduling"),
    **_rows(0, "sampling has one precision", "--use-fp64-gumbel"),
    **_rows(1, "prompts are rendered in the API's workers; see --api-server-count", "--renderer-num-workers"),
    **_rows(
        0,
        TEXT_ONLY,
        "--language-model-only --disable-chunked-mm-input --enable-mm-embeds --interleave-mm-strings "
        "--mm-device-do-normalize --mm-encoder-only --skip-mm-profiling --trust-request-mm-kwargs "
        "--disable-mm-preprocessor-cache",
    ),
    **_rows(
        1,
        TEXT_ONLY,
        "--limit-mm-per-prompt --mm-processor-kwargs --mm-processor-cache-gb --allowed-local-media-path "
        "--ec-manager-config --media-io-kwargs --mm-encoder-attn-backend --mm-encoder-attn-dtype "
        "--mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path "
        "--mm-encoder-tp-mode --mm-hasher-algorithm --mm-ipc-gpu-memory-gb --mm-processor-cache-type "
        "--mm-processor-device --mm-shm-cache-max-object-size-mb --mm-tensor-ipc --video-pruning-method "
        "--video-pruning-rate",
    ),
    **_rows(2, TEXT_ONLY, "--allowed-media-domains"),
    **_rows(0, NO_LORA, "--fully-sharded-loras --enable-mixed-moe-lora-format --enable-moe-shared-loras"),
    **_rows(0, NO_LORA, "--specialize-active-lora --enable-tower-connector-lora"),
    **_rows(1, NO_LORA, "--default-mm-loras --max-lora-cls-labels --max-loras --max-lora-rank --max-cpu-loras"),
    **_rows(1, NO_LORA, "--lora-dtype --lora-extra-vocab-size"),
    **_rows(2, NO_LORA, "--lora-target-modules"),
    **_rows(0, "Cohere's API is not served", "--cohere-is-reasoning-model"),
    **_rows(1, "Cohere's API is not served", "--cohere-format"),
    **_rows(0, OLD + "; see --reasoning-parser", "--enable-reasoning"),
    **_rows(0, OLD, "--disable-frontend-multiprocessing --use-v2-block-manager --disable-async-output-proc"),
    **_rows(0, OLD, "--guided-decoding-disable-fallback --worker-use-ray --multi-step-stream-outputs"),
    **_rows(1, OLD, "--num-scheduler-steps --guided-decoding-backend --preemption-mode --num-lookahead-slots"),
    **_rows(1, OLD, "--scheduler-delay-factor --tokenizer-pool-size --typical-acceptance-sampler-posterior-alpha"),
    **_rows(1, "use VLLM_LOGGING_LEVEL", "--uvicorn-log-level"),
    **_rows(1, "there is no HTTP limit of that kind", "--h11-max-incomplete-event-size --h11-max-header-count"),
    **_rows(0, "there are no hidden metrics", "--kv-cache-metrics --enable-mfu-metrics"),
    **_rows(1, "there are no hidden metrics", "--show-hidden-metrics-for-version --kv-cache-metrics-sample"),
    **_rows(2, "buckets of metrics are vLLM's defaults", "--custom-histogram-buckets"),
    **_rows(0, "the log has a line of statistics every VLLM_LOG_STATS_INTERVAL", "--enable-logging-iteration-details"),
    **_rows(
        0, "one log has the lines of all processes", "--aggregate-engine-logging --log-error-stack --enable-log-deltas"
    ),
    **_rows(0, "there is no profiler of that kind", "--enable-layerwise-nvtx-tracing --ray-workers-use-nsight"),
    **_rows(1, "serve watches its processes", "--watchdog-config --fault-tolerance-config"),
    **_rows(0, "serve watches its processes", "--enable-fault-tolerance"),
    **_rows(0, "see --fastapi-docs", "--enable-offline-docs"),
    **_rows(1, "it is for other platforms", "--additional-config"),
    **_rows(
        0,
        CLUSTER,
        "--disable-nccl-for-dp-synchronization --enable-nccl-comm-suspend --enable-cumem-allocator "
        "--enable-batch-sharded-sampling --enable-ep-weight-filter --enable-hc-sp --enable-shm-tensor-arena "
        "--dcp-q-replicate --sleep-mode-offload-cudagraph --enable-flash-late-interaction",
    ),
    **_rows(
        1,
        CLUSTER,
        "--all2all-backend --eplb-config --expert-placement-strategy --dbo-decode-token-threshold "
        "--dbo-prefill-token-threshold --ubatch-size --dcp-comm-backend --dcp-kv-cache-interleave-size "
        "--cp-kv-cache-interleave-size --dp-sync-interval --elastic-ep-max-dp-size --sleep-mode-backend "
        "--distributed-timeout-seconds --cpu-distributed-timeout-seconds --data-parallel-supervisor-port "
        "--dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s",
    ),
    **_rows(2, CLUSTER, "--sleep-preserve-parameter-names"),
    **_rows(1, "processes talk over Unix sockets", "--data-parallel-address -dpa --data-parallel-rpc-port -dpp"),
    **_rows(1, "processes talk over Unix sockets", "--master-addr --master-port"),
    **_rows(2, "use VLLM_CPU_OMP_THREADS_BIND", "--device-ids"),
}

# Accepted with these values alone.
FLAGS |= {
    **_rows(1, "pipeline parallelism splits a model over machines", "-pp --pipeline-parallel-size", "1"),
    **_rows(1, "contexts are not split over ranks", "--decode-context-parallel-size -dcp", "1"),
    **_rows(1, "contexts are not split over ranks", "--prefill-context-parallel-size -pcp", "1"),
    **_rows(1, ONE_MACHINE, "--nnodes -n", "1"),
    **_rows(1, ONE_MACHINE, "--node-rank -r", "0"),
    **_rows(1, "processes are started on this machine", "--data-parallel-backend -dpb", "mp"),
    **_rows(1, "processes are started on this machine", "--distributed-executor-backend", "mp", "uni"),
    **_rows(1, "forearm runs on CPUs", "--device", "cpu", "auto"),
    **_rows(
        1,
        "weights come from safetensors, GGUF or pytorch_model.bin, whichever the model has",
        "--load-format",
        *("auto", "safetensors", "gguf", "pt", "hf", "mistral"),
    ),
    **_rows(1, "log-probabilities are those of the raw logits", "--logprobs-mode", "raw_logprobs"),
    **_rows(1, "every token is sent at once", "--stream-interval", "1"),
    **_rows(1, NO_STATES, "--mamba-cache-dtype --mamba-ssm-cache-dtype", "auto"),
    **_rows(1, NO_FOREIGN_CODE, "--worker-cls", "auto"),
    **_rows(1, "thinking is disabled in the way of the chat template", "--anthropic-disabled-thinking-effort", "auto"),
}

# Refused, whatever the value; a switch that is turned off is accepted.
REFUSED: dict[str, CompatFlag] = {
    **_rows(1, "KV blocks are not moved between machines; leave it out", "--kv-transfer-config --kv-events-config"),
    **_rows(1, "KV blocks are not moved between machines; leave it out", "--kv-offloading-size --ec-transfer-config"),
    **_rows(0, CLUSTER + LEAVE_OUT, "--enable-sleep-mode --enable-dbo --enable-expert-parallel -ep --enable-eplb"),
    **_rows(0, CLUSTER + LEAVE_OUT, "--enable-elastic-ep"),
    **_rows(0, ONE_MACHINE + LEAVE_OUT, "--data-parallel-external-lb -dpe --data-parallel-hybrid-lb -dph --headless"),
    **_rows(0, ONE_MACHINE + LEAVE_OUT, "--data-parallel-multi-port-external-lb -dpm"),
    **_rows(1, ONE_MACHINE + LEAVE_OUT, "--data-parallel-rank -dpn --data-parallel-start-rank -dpr"),
    **_rows(0, "LoRA adapters are not built yet; merge the adapter into the model", "--enable-lora"),
    **_rows(2, "LoRA adapters are not built yet; merge the adapter into the model", "--lora-modules"),
    **_rows(
        1,
        "the server loads no plugins; see --tool-call-parser",
        "--tool-parser-plugin --reasoning-parser-plugin",
    ),
    **_rows(
        1, NO_FOREIGN_CODE + LEAVE_OUT, "--middleware --io-processor-plugin --scheduler-cls --worker-extension-cls"
    ),
    **_rows(1, NO_FOREIGN_CODE + LEAVE_OUT, "--model-class-overrides"),
    **_rows(
        2,
        "tokens are sampled in C++, which calls no Python; use logit_bias, allowed_token_ids, bad_words or "
        "structured_outputs of a request's sampling parameters",
        "--logits-processors",
    ),
    **_rows(1, "tools are the client's to run; leave it out", "--tool-server"),
    **_rows(1, "a function whose `strict` is true is constrained, others are not; leave it out", "--tool-strict-level"),
    **_rows(
        1,
        "--reasoning-parser names the format of reasoning; see also --default-chat-template-kwargs",
        "--reasoning-config --reasoning-effort-map",
    ),
    **_rows(
        1,
        "it is not built yet; leave it out",
        "--hf-config-path --quantization-config --watermark-config --diffusion-config -dc",
    ),
    **_rows(1, "it is not built yet; leave it out", "--engram-config --weight-transfer-config --aux-output-config"),
    **_rows(
        0,
        "it is not built yet; leave it out",
        "--enable-return-routed-experts --return-sampling-mask --enable-trace-replay",
    ),
    **_rows(0, "it is not built yet; leave it out", "--skip-tokenizer-init --enable-scale-out --tokens-only"),
    **_rows(0, "prompts are texts or token ids; leave it out", "--enable-prompt-embeds"),
    **_rows(0, NO_STATES + LEAVE_OUT, "--enable-mamba-cache-stochastic-rounding"),
    **_rows(2, "all layers' KV cache has one dtype; leave it out", "--kv-cache-dtype-skip-layers"),
    **_rows(0, "only HTTP is served; leave it out", "--grpc"),
    **_rows(1, "only HTTP is served; leave it out", "--grpc-port"),
    **_rows(1, "use --max-num-queued-reqs", "--max-num-queued-tokens --max-num-active-seqs"),
    **_rows(0, "use VLLM_CPU_OMP_THREADS_BIND and CPU_VISIBLE_MEMORY_NODES", "--numa-bind"),
    **_rows(2, "use VLLM_CPU_OMP_THREADS_BIND and CPU_VISIBLE_MEMORY_NODES", "--numa-bind-nodes --numa-bind-cpus"),
    **_rows(0, "a model is served with its sliding window; lower --max-model-len instead", "--disable-sliding-window"),
    **_rows(1, "use --log-level and --log-config-file", "--logging-config"),
    **_rows(
        1,
        "it was removed from vLLM; use --speculative-config",
        "--speculative-model --num-speculative-tokens --ngram-prompt-lookup-max --ngram-prompt-lookup-min "
        "--speculative-draft-tensor-parallel-size --speculative-max-model-len",
    ),
}
