"""Charge one request to its key's quota as tokens arrive, and report the quota in headers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forearm import wire
from forearm.api.http.api_keys import ApiKey
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.http.rate_limit import RateLimitState, RateTable
from forearm.errors import RateLimited

# Tokens of an answer are charged in groups, because a charge takes a lock that other workers may wait for.
_CHARGED_TOGETHER = 32
_UNITS = {"requests": "requests a minute", "tokens": "tokens a minute", "concurrency": "requests at a time"}


class KeyQuota:
    """The quota of a request's key, which has a name and maybe limits; observes the request's tokens."""

    def __init__(self, key: ApiKey, table: RateTable, meter: HttpMeter) -> None:
        self._key = key
        self._table = table
        self._meter = meter
        self._uncharged = 0

    def enter(self) -> RateLimitState:
        """Admit the request.

        Raises: RateLimited.
        """
        key = self._key
        standing = self._table.admit(key.digest, key.limits)
        if not standing.refused:
            self._meter.count("forearm:key_requests", key.name)
            return standing
        self._meter.count("forearm:key_rejections", key.name, standing.refused)
        limits = {
            "requests": key.limits.requests_per_minute,
            "tokens": key.limits.tokens_per_minute,
            "concurrency": key.limits.max_concurrent,
        }
        raise RateLimited(
            f"Rate limit reached for key {key.name}: {limits[standing.refused]} {_UNITS[standing.refused]}. "
            f"Please try again in {standing.wait_s:.3g}s.",
            max(math.ceil(standing.wait_s), 1),
            rate_headers(key, standing),
        )

    def leave(self) -> None:
        """Note that the request is over."""
        self._table.leave(self._key.digest)

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """Charge the prompts."""
        self._charge(sum(len(prompt) for prompt in prompts), "prompt")

    def tokens(self, message: wire.Tokens) -> None:
        """Charge the answer as it grows."""
        self._uncharged += len(message.token_ids)
        if self._uncharged >= _CHARGED_TOGETHER:
            self._charge(self._uncharged, "generation")
            self._uncharged = 0

    def over(self) -> None:
        """Charge the rest."""
        self._charge(self._uncharged, "generation")
        self._uncharged = 0

    def _charge(self, tokens: int, kind: str) -> None:
        if tokens:
            self._table.charge(self._key.digest, self._key.limits, tokens)
            self._meter.count("forearm:key_tokens", self._key.name, kind, by=tokens)


def rate_headers(key: ApiKey, standing: RateLimitState) -> dict[str, str]:
    """Return OpenAI's headers for the limits that the key has."""
    told: dict[str, str] = {}
    for what, limit, left, full_s in (
        ("requests", key.limits.requests_per_minute, standing.requests, standing.requests_full_s),
        ("tokens", key.limits.tokens_per_minute, standing.tokens, standing.tokens_full_s),
    ):
        if limit is not None:
            told[f"x-ratelimit-limit-{what}"] = str(limit)
            told[f"x-ratelimit-remaining-{what}"] = str(max(math.floor(left), 0))
            told[f"x-ratelimit-reset-{what}"] = duration(full_s)
    return told


def duration(seconds: float) -> str:
    """Return a duration in OpenAI's form: 1ms, 6.5s, 2m30s."""
    if seconds < 1:
        return f"{math.ceil(1000 * seconds)}ms"
    minutes, rest = divmod(math.ceil(10 * seconds) / 10, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.3g}s"
