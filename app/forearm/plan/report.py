"""A plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.host.placement import in_gib
from forearm.model.checkpoint.formats import described
from forearm.plan.load import ClosedLoad, OpenLoad
from forearm.plan.prediction import PlannedLoad, Prediction

NOT_MEASURED = (
    "PREDICTED from public figures of the processor and the shares of memory bandwidth and multiply peak that this "
    "engine reached on x86-64; nothing here was measured on Graviton."
)
_STEPS = (1, 8, 32)  # tokens of a step whose bytes of weights are told of
MEASURED_LIMITS = "PREDICTED from this machine's read bandwidth and multiply peaks, measured just now."


def as_text(found: Prediction, load: PlannedLoad, price: float | None) -> str:
    """Return the plan as text: a paragraph each for machine, memory, placement and speed."""
    rates, each = found.cost.rates, " each" if found.engines > 1 else ""
    machine = (
        f"{found.host.name}: {found.host.what.removeprefix('machine: ')}; tier {found.host.tier}\n"
        f"limits of the engine's threads{each}: {rates.read_gb_s:.0f} GB/s read, "
        f"{rates.float_gflops:.0f} GFLOP/s float32, {rates.bf16_gflops:.0f} bfloat16, {rates.int8_gops:.0f} GOP/s int8"
    )
    engines = f"-tp 1 -dp {found.engines}: one engine for each NUMA node, so that nothing crosses sockets"
    if found.engines == 1:
        why = "" if found.host.nodes == 1 else "; each thread reads the weights that lie on its own node"
        engines = f"-tp {found.host.config.tensor_parallel_size} -dp 1: one engine{why}"
    placement = "\n".join([*_engine(found).placed.lines[1:], engines])
    return "\n\n".join((machine, _memory(found), placement, _speed(found, load, price)))


def as_json(found: Prediction, load: PlannedLoad, price: float | None) -> dict[str, Any]:
    """Return the plan as JSON, in bytes, seconds and tokens/s."""
    checkpoint, rates = found.fitting.checkpoint, found.cost.rates
    return {
        "model": found.host.config.model or "the demo model",
        "model_type": checkpoint.config.model_type,
        "fits": True,
        "machine": {
            "name": found.host.name,
            "what": found.host.what,
            "tier": found.host.tier,
            "nodes": found.host.nodes,
        },
        "limits": {
            **{name: value for name, value in vars(rates).items() if name != "achieved"},
            "achieved_gflops": {described(format): asdict(timed) for format, timed in rates.achieved.items()},
        },
        "memory": _memory_json(found),
        "placement": {
            "engines": found.engines,
            "threads": _engine(found).placed.threads,
            "cores": list(_engine(found).placed.cores),
            "api_cores": list(_engine(found).placed.api_cores),
            "tensor_parallel": found.host.config.tensor_parallel_size,
            "data_parallel": found.engines,
        },
        "load": {"input_len": load.lengths.prompt, "output_len": load.lengths.output, **asdict(load.slo)},
        "predicted": True,
        "batches": [asdict(batch) | _dollars(batch.output_tokens_s, price) for batch in found.batches],
        "best_rate": _open_json(found.best, load, price),
        "asked_rate": _open_json(found.asked, load, price) if load.requests_s is not None else None,
    }


def _memory_json(found: Prediction) -> dict[str, Any]:
    fitting, checkpoint = found.fitting, found.fitting.checkpoint
    return {
        "available_bytes": fitting.memory.available_bytes,
        "limited_by": fitting.memory.limited_by,
        "weights_bytes": checkpoint.packed_bytes,
        "weights_by_format": found.formats,
        "stored_bytes": checkpoint.stored_bytes,
        "read_bytes_by_tokens": {str(tokens): round(found.cost.work.read_bytes(tokens, tokens)) for tokens in _STEPS},
        "scratch_bytes": fitting.scratch_bytes,
        "state_bytes": fitting.state_bytes,
        "draft_bytes": fitting.draft_bytes,
        "grammar_vocabulary_bytes": fitting.vocabulary_bytes,
        "grammar_bytes": fitting.grammar_bytes,
        "inbox_bytes": fitting.inbox_bytes,
        "others_bytes": found.host.config.others_bytes,
        "kv_bytes_per_token": found.kv_token_bytes,
        "kv_dtype": checkpoint.kv_dtype,
        "kv_bytes": fitting.blocks * fitting.block_bytes,
        "kv_tokens": found.kv_tokens,
        "max_model_len": checkpoint.max_model_len,
        "contexts": found.contexts,
        "peak_bytes": found.peak_bytes,
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is left-aligned and whose others are right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def seconds(value: float) -> str:
    """Return seconds as text, in ms below one second."""
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def figure(value: float) -> str:
    """Return a number with three digits and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def dollars_per_million(price: float, tokens_s: float) -> float:
    """Return the price of a million tokens, in $, at a price per hour."""
    return price / (tokens_s * 3600) * 1e6


def _engine(found: Prediction) -> Any:
    return found.host.node if found.engines > 1 and found.host.node is not None else found.host


def _memory(found: Prediction) -> str:
    fitting, checkpoint = found.fitting, found.fitting.checkpoint
    formats = ", ".join(f"{name} {in_gib(size)}" for name, size in found.formats.items())
    each = f"  (each of {found.engines} engines)" if found.engines > 1 else ""
    draft = f"{in_gib(fitting.draft_bytes)} of weights and scratch; its keys and values are in the KV cache's"
    kept = f", {fitting.kept_states} cached prefixes" if fitting.kept_states else ""
    states = f"{in_gib(fitting.state_bytes)} of {fitting.limits.running} running sequences{kept}"
    work = found.cost.work
    read = ", ".join(f"{tokens}: {in_gib(round(work.read_bytes(tokens, tokens)))}" for tokens in _STEPS)
    compiled = in_gib(fitting.grammar_bytes)
    grammars = f"{in_gib(fitting.vocabulary_bytes)} for the vocabulary, up to {compiled} for compiled ones"
    groups, windowed = fitting.limits.groups, ""
    if groups.windowed:
        windowed = f", {fitting.block_bytes * groups.whole // BLOCK_TOKENS} of them behind a window of {groups.reach}"
    rows = (
        ("free", f"{in_gib(fitting.memory.available_bytes)} of {in_gib(fitting.memory.total_bytes)}{each}"),
        (
            "weights",
            f"{in_gib(checkpoint.packed_bytes)}: {formats}; {in_gib(checkpoint.stored_bytes)} to download or read",
        ),
        *(
            [("experts", f"weights that a step reads, by its tokens, if these choose evenly: {read}")]
            if any(one.share < 1 for one in work.body)
            else []
        ),
        ("scratch", in_gib(fitting.scratch_bytes)),
        *([("states", states)] if fitting.state_bytes else []),
        *([("draft", draft)] if fitting.draft_bytes else []),
        *([("grammars", grammars)] if fitting.vocabulary_bytes else []),
        ("inbox", f"up to {in_gib(fitting.inbox_bytes)} of requests in the inbox"),
        ("API", f"up to {in_gib(found.host.config.others_bytes)} of serve and HTTP, with bodies and stored responses"),
        (
            "KV cache",
            f"{in_gib(fitting.blocks * fitting.block_bytes)} of {checkpoint.kv_dtype}: "
            f"{found.kv_token_bytes} bytes a token{windowed}, {found.kv_tokens} tokens in blocks of {BLOCK_TOKENS}",
        ),
        ("contexts", f"{found.contexts:.1f} of {checkpoint.max_model_len} tokens (--max-model-len)"),
        ("peak", f"{in_gib(found.peak_bytes)} of all processes of the server"),
    )
    return "\n".join(f"{name + ':':10}{text}" for name, text in rows)


def _speed(found: Prediction, load: PlannedLoad, price: float | None) -> str:
    head = [
        "clients",
        "TTFT",
        "TPOT",
        "output tokens/s",
        "all tokens/s",
        "requests/s",
        *(["$ per 1M out"] if price else []),
    ]
    how, lengths = MEASURED_LIMITS if found.cost.rates.measured else NOT_MEASURED, load.lengths
    if found.fitting.checkpoint.config.pooled:
        assert found.best is not None
        alone_s, texts_s = found.cost.pool_s(1, lengths.prompt), found.best.requests_s
        return (
            f"{how}\nTexts of {lengths.prompt} tokens: one alone {seconds(alone_s)}; "
            f"at most {figure(texts_s)} texts/s, {figure(texts_s * lengths.prompt)} tokens/s"
        )
    rows = [_row(batch, price) for batch in found.batches]
    lines = [
        how,
        f"Prompts of {lengths.prompt} tokens, outputs of {lengths.output}; clients that each keep one request open:",
        table(head, rows) if rows else "the KV cache has no room for one such request",
    ]
    lines += _rates(found, load, price)
    return "\n".join(lines)


def _row(batch: ClosedLoad, price: float | None) -> list[str]:
    speeds = [figure(value) for value in (batch.output_tokens_s, batch.total_tokens_s, batch.requests_s)]
    cost = [f"{dollars_per_million(price, batch.output_tokens_s):.2f}"] if price else []
    return [str(batch.sequences), seconds(batch.ttft_s), seconds(batch.tpot_s), *speeds, *cost]


def _rates(found: Prediction, load: PlannedLoad, price: float | None) -> list[str]:
    limits = [
        f"{name} {seconds(value)}"
        for name, value in (("TTFT", load.slo.ttft_s), ("TPOT", load.slo.tpot_s))
        if value is not None
    ]
    within = f" within {' and '.join(limits)}" if limits else ""
    lines = []
    if found.best is None:
        lines.append(f"No rate of requests is served{within}.")
    else:
        a_million = ""
        if price:
            dollars = dollars_per_million(price, found.best.requests_s * load.lengths.output)
            a_million = f", $ {dollars:.2f} per 1M output tokens"
        lines.append(f"Most requests{within}: {_state(found.best)}{a_million}")
    if load.requests_s is not None:
        state = f"{load.requests_s:g} requests/s are too many" if found.asked is None else _state(found.asked)
        missed = found.asked is not None and not load.slo.met_by(found.asked.ttft_s, found.asked.tpot_s)
        lines.append(f"At the rate asked for: {state}{' (SLO missed)' if missed else ''}")
    return lines


def _state(state: OpenLoad) -> str:
    return (
        f"{figure(state.requests_s)} requests/s: TTFT {seconds(state.ttft_s)}, TPOT {seconds(state.tpot_s)}, "
        f"{figure(state.sequences)} running"
    )


def _open_json(state: OpenLoad | None, load: PlannedLoad, price: float | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return asdict(state) | _dollars(state.requests_s * load.lengths.output, price)


def _dollars(tokens_s: float, price: float | None) -> dict[str, float]:
    return {"usd_per_million_output_tokens": dollars_per_million(price, tokens_s)} if price else {}
