"""From an EngineConfig to an engine that can run: model found, weights loaded, memory divided, loop made."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from forearm.config import EngineConfig
from forearm.engine import placement
from forearm.engine.admission import Admission, Terms
from forearm.engine.batch import pack
from forearm.engine.blocks import BLOCK_TOKENS
from forearm.engine.executor import Executor, NativeExecutor
from forearm.engine.loop import EngineLoop
from forearm.engine.meter import Meter
from forearm.engine.sampling import columns
from forearm.engine.scheduler import Limits
from forearm.engine.sequence import Slice
from forearm.errors import ConfigError
from forearm.model.checkpoint import Checkpoint, open_checkpoint
from forearm.model.generation import generation_eos
from forearm.model.hub import find_model
from forearm.model.quantization import Asked
from forearm.model.weights import load_native
from forearm.wire import SamplingParams, Submit

# Rows of logits of a step, at least: prompts whose log-probabilities are wanted go forward by so many tokens a step.
LEAST_ROWS = 32
# Unset, so many requests may wait for each one that can run: minutes of work, not hours.
QUEUED_PER_PLACE = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cores:
    """Where the engine's threads run: one CPU id a thread, or () when they are not pinned."""

    threads: int
    pinned: tuple[int, ...]


def start(config: EngineConfig, *, queued: int | None = None, progress: bool = True) -> EngineLoop:
    """Load the model and make the loop. What cannot fit is refused before the weights are read.

    queued: requests that may wait; None: as configured.
    Raises: ConfigError with the value, or the arithmetic, and the remedy.
    """
    folder = find_model(config.model, revision=config.revision, download_dir=config.download_dir, token=config.hf_token)
    checkpoint = _open(config, folder)
    limits = limits_of(config, checkpoint)
    cores = _cores(config)
    before = placement.memory(config)
    native = load_native(
        checkpoint,
        step_tokens=limits.step_tokens,
        step_sequences=limits.running,
        step_logit_rows=limits.step_rows,
        cores=cores.pinned,
        threads=cores.threads,
        progress=progress,
        weight_cache=config.weight_cache,
    )
    # Weights are in memory by now; scratch is touched by the first large step. Mapped weights look like free memory, so
    # what there was before counts where they may be mapped.
    memory, needed = placement.memory(config), native.scratch_bytes
    if config.weight_cache:
        memory, needed = before, native.packed_bytes + native.scratch_bytes
    blocks = placement.kv_blocks(config, checkpoint.max_model_len, native.kv_bytes_per_block, needed, memory)
    native.allocate_kv(blocks)
    _log_memory(checkpoint, native.packed_bytes, native.scratch_bytes, blocks, native.kv_bytes_per_block)
    executor = NativeExecutor(native, checkpoint, blocks)
    terms = terms_of(config, checkpoint, queued)
    warm_up(executor, terms)
    meter = Meter(
        config.name or config.model or folder.name, "0", checkpoint.kv_dtype, blocks, config.enable_prefix_caching
    )
    return EngineLoop(executor, limits, terms, meter)


def warm_up(executor: Executor, terms: Terms) -> None:
    """Compute and sample one token: the first client does not wait for pages to be touched.

    Raises: ConfigError if not even that gives numbers.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1)
    submit = Submit(request_id="warm-up", prompt_token_ids=[0], params=params)
    (sequence,) = Admission(terms).request(0, submit, 0.0).sequences
    sequence.blocks.append(0)
    executor.forward(pack([Slice.next(sequence, 1)]))
    if executor.sample(columns([(0, sequence)], executor.vocab_size)).nan[0]:
        raise ConfigError(
            f"{executor.folder}: the model's logits have a NaN at the first token; its weights are damaged, or their "
            "numbers are too large for --dtype float16: try float32"
        )


def limits_of(config: EngineConfig, checkpoint: Checkpoint) -> Limits:
    """A step's limits. No step has more tokens than all running sequences together."""
    step_tokens = min(config.max_num_batched_tokens, config.max_num_seqs * checkpoint.max_model_len)
    if not config.enable_chunked_prefill:
        step_tokens = max(step_tokens, checkpoint.max_model_len)
    return Limits(
        step_tokens=step_tokens,
        running=config.max_num_seqs,
        step_rows=max(config.max_num_seqs, LEAST_ROWS),
        slice_tokens=config.long_prefill_token_threshold,
        whole_prompts=not config.enable_chunked_prefill,
    )


def terms_of(config: EngineConfig, checkpoint: Checkpoint, queued: int | None) -> Terms:
    """What requests are measured against."""
    model = checkpoint.config
    configured = config.max_num_queued_reqs or QUEUED_PER_PLACE * config.max_num_seqs
    return Terms(
        vocab_size=model.vocab_size,
        max_model_len=checkpoint.max_model_len,
        eos_token_ids=tuple({*model.eos_token_ids, *generation_eos(checkpoint.folder)}),
        queued=configured if queued is None else queued,
        priorities=config.scheduling_policy == "priority",
        prefix_caching=config.enable_prefix_caching,
        alternatives=config.max_logprobs,
        seed=config.seed,
    )


def _open(config: EngineConfig, folder: Path) -> Checkpoint:
    """The checkpoint at the context length that is asked for, or that memory allows.

    Raises: ConfigError if weights, scratch and one sequence of that length do not fit.
    """

    def opened(max_model_len: int | None) -> Checkpoint:
        return open_checkpoint(
            folder,
            dtype=config.dtype,
            kv_dtype=config.kv_cache_dtype,
            max_model_len=max_model_len,
            allow_longer=config.allow_long_max_model_len,
            quantization=Asked(config.quantization, config.quantization_embeddings, config.quantization_activations),
        )

    asked = config.max_model_len
    checkpoint = opened(asked if isinstance(asked, int) else None)
    memory = placement.memory(config)
    block_bytes = checkpoint.config.kv_bytes_per_token[checkpoint.kv_dtype] * BLOCK_TOKENS
    if asked == "auto":
        length = placement.longest(
            config, checkpoint.max_model_len, block_bytes, _needed_bytes(config, checkpoint), memory
        )
        if length < checkpoint.max_model_len:
            log.warning(
                "context: %d tokens of the model's %d, which is what memory allows", length, checkpoint.max_model_len
            )
            checkpoint = opened(length)
    placement.kv_blocks(config, checkpoint.max_model_len, block_bytes, _needed_bytes(config, checkpoint), memory)
    return checkpoint


def _needed_bytes(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """Weights, and an estimate of the scratch of a step: float32 of what native/model/scratch.cpp holds a token."""
    model, limits = checkpoint.config, limits_of(config, checkpoint)
    attention = (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    a_token = 4 * (3 * model.hidden + attention + model.intermediate)
    scratch = limits.step_tokens * a_token + limits.step_rows * 4 * model.vocab_size
    return checkpoint.packed_bytes + scratch


def _cores(config: EngineConfig) -> Cores:
    """Those serve.py has planned, else a plan of our own."""
    if config.threads:
        return Cores(config.threads, config.cores)
    plan = placement.plan(config)
    for line in plan.lines[:2]:
        log.info("%s", line)
    return Cores(plan.threads, plan.cores)


def _log_memory(checkpoint: Checkpoint, packed: int, scratch: int, blocks: int, block_bytes: int) -> None:
    tokens = blocks * BLOCK_TOKENS
    log.info(
        "memory: weights %s, scratch %s, KV cache %s of %s in %d blocks of %d tokens: %.1f sequences of %d tokens",
        placement.in_gib(packed), placement.in_gib(scratch), placement.in_gib(blocks * block_bytes),
        checkpoint.kv_dtype, blocks, BLOCK_TOKENS, tokens / checkpoint.max_model_len, checkpoint.max_model_len,
    )  # fmt: skip
