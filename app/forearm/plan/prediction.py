"""The prediction of a model on a host: its memory, the contexts that fit, and its speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from forearm.config.number_formats import INTEGERS
from forearm.config.speculative import drafting_asked
from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.host.memory_plan import Fit, draft_checkpoint, fit
from forearm.errors import ConfigError
from forearm.model.checkpoint.weights import PIECE_BYTES
from forearm.plan.calibration import achieved
from forearm.plan.cost import Cost
from forearm.plan.host import THIS, EngineHost
from forearm.plan.load import ClosedLoad, OpenLoad, RequestTokens, Slo, at_batch, at_rate, most_requests_s, pooled
from forearm.plan.work import by_format, work_of

ENGINE_BYTES = 64 << 20  # the engine's interpreter and libraries: 44 MB resident before it loads a model
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class PlannedLoad:
    """The load to plan for. requests_s: of all clients together; None: not given."""

    lengths: RequestTokens
    slo: Slo
    requests_s: float | None = None


@dataclass(frozen=True)
class ModelHeaders:
    """The folders of checkpoint headers: of the model, and of its draft model (--speculative-config), if any.

    draft: the model's own folder if a layer of it drafts.
    """

    folder: Path
    draft: Path | None = None


@dataclass(frozen=True)
class Prediction:
    """The plan of one host with `engines` engines, each with `fitting`. Times and rates are of all engines together.

    batches: closed loads of growing size; best: the highest rate that meets the SLO; asked: the state at the requested
    rate, None if that is too high or not given.
    """

    host: EngineHost
    engines: int
    fitting: Fit
    cost: Cost
    formats: dict[str, int]
    batches: tuple[ClosedLoad, ...]
    best: OpenLoad | None
    asked: OpenLoad | None

    @property
    def kv_token_bytes(self) -> int:
        """Return the bytes of one token's keys and values, in layers with a window only as long as it is seen."""
        return self.fitting.block_bytes * self.fitting.limits.groups.count // BLOCK_TOKENS

    @property
    def kv_tokens(self) -> int:
        """Return how many tokens of sequences of full length the KV cache of an engine holds."""
        return round(self.contexts * self.fitting.checkpoint.max_model_len)

    @property
    def contexts(self) -> float:
        """Return how many sequences of full length the KV cache holds."""
        return _sequences(self.fitting, self.fitting.checkpoint.max_model_len)

    @property
    def peak_bytes(self) -> int:
        """Return the peak memory of the server's processes: with all KV blocks in use, or while loading."""
        fitting = self.fitting
        loaded = (
            fitting.checkpoint.packed_bytes
            + fitting.scratch_bytes
            + fitting.state_bytes
            + fitting.draft_bytes
            + ENGINE_BYTES
        )
        loaded += fitting.vocabulary_bytes + fitting.grammar_bytes + fitting.inbox_bytes
        kv_bytes = fitting.blocks * fitting.block_bytes
        return self.engines * (loaded + max(kv_bytes, 2 * PIECE_BYTES)) + self.host.config.others_bytes


def predict(host: EngineHost, model: ModelHeaders, load: PlannedLoad) -> Prediction:
    """Return the plan with one engine, or with one per NUMA node if a node has room, so that no data crosses sockets.

    Raises: ConfigError with the arithmetic if the model does not fit.
    """
    if host.node is not None:
        try:
            apart = _with(host, host.node, host.nodes, model, load)
        except ConfigError:
            pass  # all nodes together may have room
        else:
            if _sequences(apart.fitting, _tokens(load.lengths)) >= 8:
                return apart
    return _with(host, host, 1, model, load)


def smaller(host: EngineHost, model: ModelHeaders) -> Iterator[str]:
    """Yield the --quantization values with which a model fits that does not fit unquantized."""
    for quantization in INTEGERS.values():
        try:
            _fit(host.with_config(quantization=quantization), model)
        except ConfigError:
            continue
        yield quantization


def _sequences(fitting: Fit, tokens: int) -> float:
    """Return how many sequences of so many tokens the KV cache holds."""
    return fitting.limits.groups.sequences(fitting.blocks, tokens)


def _tokens(lengths: RequestTokens) -> int:
    return -(-(lengths.prompt + lengths.output) // BLOCK_TOKENS) * BLOCK_TOKENS


def _fit(engine: EngineHost, model: ModelHeaders) -> Fit:
    drafting = drafting_asked(engine.config)
    draft = draft_checkpoint(engine.config, drafting, model.draft) if drafting and model.draft else None
    elsewhere = engine.name != THIS
    return fit(engine.config, model.folder, engine.memory, engine.placed.threads, draft, any_tier=elsewhere)


def _with(host: EngineHost, engine: EngineHost, engines: int, model: ModelHeaders, load: PlannedLoad) -> Prediction:
    fitting = _fit(engine, model)
    work, rates = work_of(fitting.checkpoint), engine.rates
    if rates.measured:
        rates = replace(rates, achieved=achieved((m.format for m in (*work.body, *work.head)), engine.placed))
    cost = Cost(work, rates, fitting.limits.step_tokens)
    if fitting.checkpoint.config.pooled:
        texts = _together(pooled(cost, load.lengths), engines)
        return Prediction(host, engines, fitting, cost, by_format(fitting.checkpoint), (), texts, None)
    most = min(fitting.limits.running, int(_sequences(fitting, _tokens(load.lengths))))
    best = most_requests_s(cost, load.lengths, load.slo, most) if most else None
    rate = None if load.requests_s is None else load.requests_s / engines
    asked = at_rate(cost, rate, load.lengths, most) if rate is not None and most else None
    return Prediction(
        host,
        engines,
        fitting,
        cost,
        by_format(fitting.checkpoint),
        tuple(at_batch(cost, count, load.lengths, engines) for count in BATCHES if count <= most),
        None if best is None else _together(best, engines),
        None if asked is None else _together(asked, engines),
    )


def _together(state: OpenLoad, engines: int) -> OpenLoad:
    return replace(state, requests_s=state.requests_s * engines, sequences=state.sequences * engines)
