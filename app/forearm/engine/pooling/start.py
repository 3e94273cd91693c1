"""From an EngineConfig to an engine of whichever kind the model is: start.py's, or one that pools."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from forearm import wire
from forearm.config.engine_config import EngineConfig
from forearm.config.speculative import drafting_asked
from forearm.engine.host import placement
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.split_engines import memory_of
from forearm.engine.loop import EngineLoop
from forearm.engine.metrics.step_trace import StepTrace, recording_of
from forearm.engine.pooling.executor import Pooler
from forearm.engine.pooling.loop import PoolingLoop
from forearm.engine.pooling.metrics import PoolingMeter
from forearm.engine.pooling.requests import PoolingAdmission, PoolingTerms, Text
from forearm.engine.start import QUEUED_PER_PLACE, cores_of, start
from forearm.errors import ConfigError, EngineFailed
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.hub import find_model
from forearm.model.checkpoint.weights import load_native
from forearm.model.pooling.pooling import PoolingPlan, asked_of, pooling_plan

log = logging.getLogger(__name__)


def start_any(
    config: EngineConfig,
    *,
    queued: int | None = None,
    progress: bool = True,
    loading: Callable[[], object] = lambda: None,
    outdated: Callable[[], object] = lambda: None,
) -> EngineLoop | PoolingLoop:
    """Load the model and make its loop: of text, or of vectors.

    queued: requests that may wait; None: as configured. loading: called when the weights are about to be read, which
    lets go of the GIL. outdated: called from a thread if weights that were mapped turn out to be those of other files.
    Raises: ConfigError with the value, or the arithmetic, and the remedy.
    """
    placement.tier()
    folder = find_model(config.model, revision=config.revision, **config.hub)
    plan = pooling_plan(folder, asked_of(config))
    if plan is None:
        return start(config, queued=queued, progress=progress, loading=loading, outdated=outdated)
    return start_pooling(config, plan, queued=queued, progress=progress, loading=loading, outdated=outdated)


def start_pooling(
    config: EngineConfig,
    plan: PoolingPlan,
    *,
    queued: int | None = None,
    progress: bool = True,
    loading: Callable[[], object] = lambda: None,
    outdated: Callable[[], object] = lambda: None,
) -> PoolingLoop:
    """The same of a model that pools, as `plan` says."""
    if drafting_asked(config) is not None:
        raise ConfigError("--speculative-config: a model that pools generates no tokens; leave it out")
    trace = StepTrace(recording_of(config.profiler_config), config.index)
    folder = find_model(config.model, revision=config.revision, **config.hub)
    cores = cores_of(config)
    fitting = fit(config, folder, memory_of(config), cores.threads)
    checkpoint, limits = fitting.checkpoint, fitting.limits
    loading()
    native = load_native(
        checkpoint,
        step_tokens=limits.step_tokens,
        step_sequences=limits.running,
        step_logit_rows=limits.step_rows,
        cores=cores.pinned,
        threads=cores.threads,
        ranks=cores.ranks,
        progress=progress,
        weight_cache=config.weight_cache,
        outdated=outdated,
    )
    native.allocate_kv(fitting.blocks)
    terms = terms_of(config, checkpoint, plan, queued)
    pooler = Pooler(native, terms)
    warm_up(pooler, checkpoint)
    log.info(
        "memory: weights %s, scratch %s; %s of %d values from texts of up to %d tokens, %s pooling",
        placement.in_gib(native.packed_bytes), placement.in_gib(native.scratch_bytes),
        "vectors" if plan.kind == "embed" else "scores", terms.columns, checkpoint.max_model_len, plan.pool,
    )  # fmt: skip
    meter = PoolingMeter(
        config.name or config.model or folder.name, str(config.index), checkpoint.kv_dtype, fitting.blocks, False,
        checkpoint.max_model_len, config.old_metric_names,
    )  # fmt: skip
    return PoolingLoop(pooler, limits.step_tokens, limits.running, meter, trace)


def terms_of(config: EngineConfig, checkpoint: Checkpoint, plan: PoolingPlan, queued: int | None) -> PoolingTerms:
    """What requests are measured against."""
    model = checkpoint.config
    configured = config.max_num_queued_reqs or QUEUED_PER_PLACE * config.max_num_seqs
    return PoolingTerms(
        plan=plan,
        vocab_size=model.vocab_size,
        max_model_len=checkpoint.max_model_len,
        columns=model.dense[-1].outputs if model.dense else model.hidden,
        token_types=model.token_types,
        queued=configured if queued is None else queued,
        priorities=config.scheduling_policy == "priority",
    )


def warm_up(pooler: Pooler, checkpoint: Checkpoint) -> None:
    """Compute one text of one token.

    Raises: ConfigError if not even that gives numbers.
    """
    terms = replace(pooler.terms, priorities=False)
    embed = wire.Embed(request_id="warm-up", prompts=[wire.PoolingPrompt([0])], task=terms.plan.kind)
    request = PoolingAdmission(terms).request(0, embed, time.monotonic())
    (vector,) = pooler.compute([Text(request, 0)])
    if isinstance(vector, EngineFailed):
        raise ConfigError(
            f"{checkpoint.folder}: {vector}: its weights are damaged, or their numbers are too large for "
            "--dtype float16: try float32"
        )
