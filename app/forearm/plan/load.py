"""Latency at a load: time to the first token, time of each further one, and the largest load of a host.

TTFT: from sending a request to its first token. TPOT: time of an output token after the first. Both are times of the
engine alone, without HTTP and the network. Shared prefixes of requests are not taken into account.
"""

from __future__ import annotations

from dataclasses import dataclass

from forearm.plan.cost import Cost

FULL = 0.95  # utilization above which a host's queue would grow without end


@dataclass(frozen=True)
class RequestTokens:
    """The lengths of a request in tokens."""

    prompt: int
    output: int

    @property
    def context(self) -> int:
        """Return the context length in the middle of the output."""
        return self.prompt + self.output // 2


@dataclass(frozen=True)
class Slo:
    """The longest times that clients accept, in seconds; None: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met_by(self, ttft_s: float, tpot_s: float) -> bool:
        """Return whether both times meet the SLO."""
        return (self.ttft_s is None or ttft_s <= self.ttft_s) and (self.tpot_s is None or tpot_s <= self.tpot_s)


@dataclass(frozen=True)
class ClosedLoad:
    """A closed load: `sequences` clients that each send the next request when the last one is answered."""

    sequences: int
    ttft_s: float
    tpot_s: float
    output_tokens_s: float
    total_tokens_s: float
    requests_s: float


@dataclass(frozen=True)
class OpenLoad:
    """An open load: requests that arrive at a fixed rate. sequences: running at a time."""

    requests_s: float
    ttft_s: float
    tpot_s: float
    sequences: float


def at_batch(cost: Cost, sequences: int, lengths: RequestTokens, engines: int = 1) -> ClosedLoad:
    """Return the steady state of engines that have `sequences` clients each, whose prompts are computed between the
    others' tokens.
    """
    prefill_s, step_s = cost.prefill_s(lengths.prompt), cost.decode_s(sequences, lengths.context)
    round_s = sequences * prefill_s + lengths.output * step_s
    requests_s = engines * sequences / round_s
    tpot_s = step_s + (sequences - 1) * prefill_s / max(1, lengths.output)
    return ClosedLoad(
        engines * sequences,
        ttft_s=prefill_s + (step_s if sequences > 1 else 0.0),
        tpot_s=tpot_s,
        output_tokens_s=requests_s * lengths.output,
        total_tokens_s=requests_s * (lengths.prompt + lengths.output),
        requests_s=requests_s,
    )


def pooled(cost: Cost, lengths: RequestTokens) -> OpenLoad:
    """Return the highest rate of pooling texts: each step is full, and a text waits for two steps."""
    texts = max(1, cost.step_tokens // lengths.prompt)
    step_s = cost.pool_s(texts, lengths.prompt)
    return OpenLoad(texts / step_s, 2 * step_s, 0.0, texts)


def at_rate(cost: Cost, requests_s: float, lengths: RequestTokens, most_sequences: int) -> OpenLoad | None:
    """Return the steady state at a rate; None if prompts would take all the time, or too many requests would be open.

    Prompts queue as in M/D/1 (random arrivals, constant service time); decode steps take the time that prompts leave.
    """
    prefill_s = cost.prefill_s(lengths.prompt)
    prompts = requests_s * prefill_s
    if prompts >= FULL:
        return None
    sequences = 1.0
    for _ in range(200):
        tpot_s = cost.decode_s(max(1, round(sequences)), lengths.context) / (1 - prompts)
        wanted = requests_s * lengths.output * tpot_s
        if wanted > 2 * most_sequences:
            return None
        if abs(wanted - sequences) < 0.01 * sequences:
            break
        sequences = max(0.01, (sequences + wanted) / 2)
    if sequences > most_sequences:
        return None
    ttft_s = prefill_s + prompts * prefill_s / (2 * (1 - prompts)) + (tpot_s if sequences > 1 else 0.0)
    return OpenLoad(requests_s, ttft_s, tpot_s, sequences)


def most_requests_s(cost: Cost, lengths: RequestTokens, slo: Slo, most_sequences: int) -> OpenLoad | None:
    """Return the highest rate that meets the SLO; None if even a single request misses it."""

    def kept(requests_s: float) -> OpenLoad | None:
        found = at_rate(cost, requests_s, lengths, most_sequences)
        return found if found is not None and slo.met_by(found.ttft_s, found.tpot_s) else None

    low = 1e-6
    best = kept(low)
    if best is None:
        return None
    high = 1 / cost.prefill_s(lengths.prompt)
    for _ in range(40):
        middle = (low + high) / 2
        found = kept(middle)
        low, high, best = (middle, high, found) if found is not None else (low, middle, best)
    return best
