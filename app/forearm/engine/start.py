"""The start of an engine: find the model, load weights, divide memory, make the loop."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forearm.config.engine_config import EngineConfig
from forearm.config.speculative import drafting_asked
from forearm.engine.admission import Admission, Terms
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP
from forearm.engine.constraints.grammar import Grammars
from forearm.engine.executor import NativeExecutor
from forearm.engine.host import placement
from forearm.engine.host.memory_plan import Fit, cache_of, draft_checkpoint, fit, sequence_states
from forearm.engine.host.split_engines import memory_of
from forearm.engine.loop import EngineLoop
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.metrics.step_trace import StepTrace, recording_of
from forearm.engine.pooling import PoolingStepper, PoolingTerms
from forearm.engine.scheduler import StepLimits
from forearm.engine.sequence import Slice
from forearm.engine.speculation.draft_model import DraftModel
from forearm.engine.speculation.ngrams import Ngrams
from forearm.engine.speculation.predictor import Predictor
from forearm.engine.speculation.speculation import Drafter, Speculation
from forearm.engine.step import Stepper
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.hub import find_model
from forearm.model.checkpoint.rounding_errors import RoundingErrors
from forearm.model.checkpoint.weights import load_native
from forearm.model.pooling.plan import PoolingPlan
from forearm.model.pooling.pooled_checkpoint import pooled_columns
from forearm.model.pooling.pooling import asked_of, pooling_plan
from forearm.wire import Embed, ModelFacts, PoolingPrompt, SamplingParams, Submit

# The default limit of waiting requests, per running one: minutes of work, not hours.
QUEUED_PER_PLACE = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cores:
    """The cores of the engine's threads: one CPU id per thread, () if not pinned; and the threads of each rank."""

    threads: int
    pinned: tuple[int, ...]
    ranks: tuple[int, ...]


def start(
    config: EngineConfig,
    *,
    queued: int | None = None,
    progress: bool = True,
    loading: Callable[[], object] = lambda: None,
    outdated: Callable[[], object] = lambda: None,
) -> EngineLoop:
    """Load a generative or pooling model and make its loop. A model that cannot fit is refused before weights are read.

    queued: requests that may wait; None: as configured. loading: called just before the weights are read, with the GIL
    released. outdated: called on another thread if mapped weights turn out to be out of date.
    Raises: ConfigError with the value, or the arithmetic, and the remedy.
    """
    placement.tier()
    folder = find_model(config.model, revision=config.revision, **config.hub)
    plan = pooling_plan(folder, asked_of(config))
    drafting = drafting_asked(config)
    if plan is not None and drafting is not None:
        raise ConfigError("--speculative-config: a pooling model generates no tokens; leave it out")
    trace = StepTrace(recording_of(config.profiler_config), config.index)
    cores = cores_of(config)
    spare_cpu = len(os.sched_getaffinity(0)) > cores.threads  # this thread is not pinned yet
    before = memory_of(config)
    draft = None
    if drafting and drafting.predicts:
        draft = draft_checkpoint(config, drafting, folder)
    elif drafting and drafting.model:
        draft = draft_checkpoint(config, drafting, find_model(drafting.model, revision=drafting.revision, **config.hub))
    fitting = fit(config, folder, before, cores.threads, draft)
    checkpoint, draft, limits = fitting.checkpoint, fitting.draft, fitting.limits
    if draft is not None:
        theirs, ours = draft.config.vocab_size, checkpoint.config.vocab_size
        if theirs != ours:
            raise ConfigError(
                f"--speculative-config: {draft.folder} has a vocabulary of {theirs} tokens, the model one of {ours}; "
                "drafts are token ids, so take a draft model with the same vocabulary, or the method ngram"
            )
    if drafting is not None and checkpoint.own_cache:
        raise ConfigError(
            f"--speculative-config: transformers' own cache of {checkpoint.folder} can't take drafts back; leave it out"
        )
    if draft is not None and (draft.own_cache or draft.config.has_states):
        raise ConfigError(
            f"--speculative-config: the layers of {draft.folder} keep states, which a draft model can't take back; "
            "take a draft model without, or the method ngram"
        )
    loading()
    executor = load(config, checkpoint, limits, cores, progress, outdated)
    undivided = replace(limits, groups=ONE_GROUP)
    others = [] if draft is None else [load(config, draft, undivided, cores, progress, outdated, executor)]
    blocks = _allocate(config, fitting, (executor, *others), before)
    shares = executor.kept_states > 0 if executor.states else not checkpoint.own_cache
    if not shares and config.enable_prefix_caching and plan is None:
        why = "transformers' own cache" if checkpoint.own_cache else "no memory for copies of states"
        log.info("prefix caching: off (%s)", why)
    terms = terms_of(config, checkpoint, plan, queued, shares)
    stepper: Stepper | PoolingStepper
    if terms.pooling is None:
        stepper = Stepper(executor, trace, spare_cpu=spare_cpu)
    else:
        stepper = PoolingStepper(executor, trace, terms.pooling)
    warm_up(stepper, terms, limits.groups.count)
    drafter: Drafter | None = None
    for other in others:
        if drafting and drafting.predicts:
            drafter = Predictor(executor, other, limits.step_tokens)
        else:
            warm_up(Stepper(other, trace, spare_cpu=False), terms)
            drafter = DraftModel(other, limits.step_tokens)
        while other.merge_page():
            pass
    meter = Meter(
        config.name or config.model or folder.name,
        str(config.index),
        checkpoint.kv_dtype,
        blocks,
        terms.prefix_caching,
        checkpoint.max_model_len,
        config.old_metric_names,
        limits.groups,
    )
    meter.rounding(executor.rounding)
    if terms.pooling is not None:
        return EngineLoop(stepper, limits, terms, meter)
    tokenizer = Path(config.tokenizer) if config.tokenizer else folder
    grammars = Grammars(tokenizer, executor.vocab_size, terms.eos_token_ids, most_bytes=fitting.grammar_bytes)
    speculation = Speculation()
    if drafting is not None:
        speculation = Speculation(drafter or Ngrams(drafting.least, drafting.most), drafting.tokens)
    return EngineLoop(stepper, limits, terms, meter, grammars, speculation)


def load(
    config: EngineConfig,
    checkpoint: Checkpoint,
    limits: StepLimits,
    cores: Cores,
    progress: bool,
    outdated: Callable[[], object] = lambda: None,
    beside: NativeExecutor | None = None,
) -> NativeExecutor:
    """Return the executor of a checkpoint with its weights, native or of transformers' modules.

    beside: the executor of the model that it drafts for.
    Raises: ConfigError for weights that can't be loaded; MemoryError with the arithmetic.
    """
    seen: list[RoundingErrors] = []
    native = load_native(
        checkpoint,
        step_tokens=limits.step_tokens,
        step_sequences=limits.running,
        step_logit_rows=limits.step_rows,
        cores=cores.pinned,
        threads=cores.threads,
        ranks=cores.ranks,
        kv_groups=limits.groups.count > 1,
        beside=None if beside is None else beside.native,
        progress=progress,
        weight_cache=config.weight_cache,
        weight_cache_bytes=config.weight_cache_bytes,
        tokenizer=Path(config.tokenizer) if config.tokenizer else None,
        outdated=outdated,
        rounded=seen.append,
    )
    if not checkpoint.config.modules:
        log.info("forearm computes the model: it has the family %s", checkpoint.config.model_type)
        return NativeExecutor(native, checkpoint, rounding=seen[0])
    # These import torch, which takes seconds.
    from forearm.model.modules.forward import CachedForward, PagedForward
    from forearm.model.modules.loading import load_modules
    from forearm.model.modules.pooled import PooledForward

    model = load_modules(checkpoint, native, max(limits.step_tokens, limits.step_rows))
    if checkpoint.pooling is not None:
        pooled = PooledForward(model, checkpoint)
        return NativeExecutor(native, checkpoint, pooled, pool=pooled.pool)
    forward: Callable[..., None] = CachedForward(native, model, limits.running, checkpoint.recomputes)
    if not checkpoint.own_cache:
        forward = PagedForward(native, checkpoint, model)
    return NativeExecutor(native, checkpoint, forward)


def _allocate(config: EngineConfig, fitting: Fit, executors: Sequence[NativeExecutor], before: placement.Memory) -> int:
    """Divide the remaining memory into KV blocks of the model and its draft model. A pooling model keeps no keys and
    values between steps: it needs the blocks of the largest step only.
    """
    packed = sum(one.packed_bytes for one in executors)
    scratch = sum(one.scratch_bytes for one in executors)
    slots = sequence_states(config)
    states = executors[0].state_bytes * slots
    if fitting.checkpoint.config.pooled:
        executors[0].allocate(fitting.blocks, fitting.limits.running)
        log.info("memory: weights %s, scratch %s", placement.in_gib(packed), placement.in_gib(scratch))
        return fitting.blocks
    block_bytes = sum(one.block_bytes for one in executors)
    # Weights are in memory by now, but later allocations still count: scratch, which the first large step touches,
    # the vocabulary for grammars, and clients' requests and grammars. Mapped weights look like free memory, so the
    # measurement from before loading counts for them.
    clients = fitting.grammar_bytes + fitting.inbox_bytes
    memory, needed = memory_of(config, packed), scratch + states + fitting.vocabulary_bytes + clients
    if any(one.mapped for one in executors):
        memory, needed = before, packed + needed
    groups = fitting.limits.groups
    blocks, kept = cache_of(config, fitting.checkpoint, groups, block_bytes, needed, memory)
    states += kept * executors[0].state_bytes
    for one in executors:
        one.allocate(blocks, slots, kept)
    length = fitting.checkpoint.max_model_len
    log.info(
        "memory: weights %s, scratch %s, states %s (%d copies), KV cache %s of %s in %d blocks of %d tokens: "
        "%.1f sequences of %d tokens; at most %s for clients' grammars, %s for requests in the inbox",
        placement.in_gib(packed), placement.in_gib(scratch), placement.in_gib(states), kept,
        placement.in_gib(blocks * block_bytes),
        fitting.checkpoint.kv_dtype, blocks, BLOCK_TOKENS, groups.sequences(blocks, length), length,
        placement.in_gib(fitting.grammar_bytes), placement.in_gib(fitting.inbox_bytes),
    )  # fmt: skip
    return blocks


def warm_up(stepper: Stepper | PoolingStepper, terms: Terms, groups: int = 1) -> None:
    """Compute one token, and sample or pool, so that the first request does not wait for pages to be touched.

    groups: of layers with KV blocks of their own.
    Raises: ConfigError if the output has a NaN, or the context holds no token and its continuation.
    """
    asked: Submit | Embed
    if terms.pooling is None:
        if terms.max_model_len < 2:
            raise ConfigError(f"--max-model-len {terms.max_model_len}: a prompt and its answer need at least 2 tokens")
        params = SamplingParams(temperature=0.0, max_tokens=1)
        asked = Submit(request_id="warm-up", prompt_token_ids=[0], params=params)
    else:
        asked = Embed(request_id="warm-up", prompts=[PoolingPrompt([0])], task=terms.pooling.plan.tasks[0])
    (sequence,) = Admission(terms).request(0, asked, 0.0).sequences
    sequence.tables += [array("i") for _ in range(groups - 1)]
    for table in sequence.tables:
        table.append(0)
    sequence.state = 0 if stepper.executor.states else None
    (outcome,) = stepper.compute([Slice.next(sequence, 1)])
    if outcome.failed is not None or any(one.nan for one in outcome.sampled):
        raise ConfigError(
            f"{stepper.executor.folder}: the model's output has a NaN at the first token; its weights are damaged, or "
            "their numbers are too large for --dtype float16: try float32"
        )


def terms_of(
    config: EngineConfig, checkpoint: Checkpoint, plan: PoolingPlan | None, queued: int | None, shares: bool
) -> Terms:
    """Return the limits and defaults that requests are checked against. plan: of a pooling model. shares: sequences
    can share blocks.
    """
    model = checkpoint.config
    pooling = None
    if plan is not None:
        pooling = PoolingTerms(plan, checkpoint.columns or pooled_columns(model), model.token_types)
        log.info(
            "%s of %d values from texts of up to %d tokens, %s pooling",
            "vectors" if plan.kind == "embed" else "scores", pooling.columns, checkpoint.max_model_len, plan.pool,
        )  # fmt: skip
    configured = config.max_num_queued_reqs or QUEUED_PER_PLACE * config.max_num_seqs
    return Terms(
        vocab_size=model.vocab_size,
        max_model_len=checkpoint.max_model_len,
        eos_token_ids=() if pooling else model.eos_token_ids,
        queued=configured if queued is None else queued,
        priorities=config.scheduling_policy == "priority",
        prefix_caching=config.enable_prefix_caching and pooling is None and shares,
        shares_blocks=shares,
        alternatives=config.max_logprobs,
        seed=config.seed,
        pooling=pooling,
        model=ModelFacts(family=model.model_type, parameters=checkpoint.parameters, format=checkpoint.number_format),
    )


def cores_of(config: EngineConfig) -> Cores:
    """Return the cores planned by the supervisor, else by a new plan."""
    if config.threads:
        return Cores(config.threads, config.cores, config.ranks)
    plan = placement.plan(config)
    for line in plan.lines[:-1]:  # the last one is the API's
        log.info("%s", line)
    return Cores(plan.threads, plan.cores, plan.ranks)
