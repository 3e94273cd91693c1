"""Admission: makes a Request from a wire.Submit or wire.Embed, or refuses it with the reason."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from forearm.engine.cache.prefix_cache import root_digest
from forearm.engine.pooling import PoolingTerms, pooling_task
from forearm.engine.sampling import alternatives, lasting
from forearm.engine.scheduler import due_s, level
from forearm.engine.sequence import Request
from forearm.engine.validation import check
from forearm.errors import InvalidRequest
from forearm.wire import MAX_FRAME_BYTES, Embed, ModelFacts, SamplingParams, Submit

_ALTERNATIVE_BYTES = 20  # at most, in msgpack: token id and rank 5 each, log-probability 9, array 1


@dataclass(frozen=True)
class Terms:
    """The limits and defaults that requests are checked against.

    queued           requests that may wait; more are refused
    priorities       whether priorities count; else a request that has one is refused
    prefix_caching   whether requests share blocks; the outputs of one request do without it
    shares_blocks    whether any sequences share blocks
    alternatives     most that logprobs and prompt_logprobs may ask for; -1: no limit
    seed             source of the seeds of requests that have none
    pooling          what a model that pools returns; None: the model generates
    model            what the model is, for clients
    """

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    queued: int = 1024
    priorities: bool = False
    prefix_caching: bool = True
    shares_blocks: bool = True
    alternatives: int = 20
    seed: int = 0
    pooling: PoolingTerms | None = None
    model: ModelFacts | None = None


class Admission:
    """Makes requests, numbered in order of arrival."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._arrivals = 0
        self._seeds = random.Random(terms.seed)

    def request(self, connection: int, asked: Submit | Embed, now_s: float, turn: float = 0.0) -> Request:
        """Return the request with its first output, a sequence with nothing computed.

        turn: where the texts of a request to pool join the turns of those that wait (Scheduler.turn).
        Raises: InvalidRequest naming the field, the numbers and the limit.
        """
        if asked.priority and not self.terms.priorities:
            raise InvalidRequest(f"priority is {asked.priority}; it needs --scheduling-policy priority", "priority")
        request = (
            self._pool(connection, asked, now_s, turn)
            if isinstance(asked, Embed)
            else self._generate(connection, asked, now_s)
        )
        request.make_output()
        return request

    def _pool(self, connection: int, embed: Embed, now_s: float, turn: float) -> Request:
        terms = self.terms
        if terms.pooling is None:
            raise InvalidRequest("this model generates text; it does not make vectors")
        in_turns = not terms.priorities
        task = pooling_task(embed, terms.pooling, terms.vocab_size, terms.max_model_len, in_turns)
        self._arrivals += 1
        return Request(
            connection=connection,
            request_id=embed.request_id,
            arrived_s=now_s,
            rank=(turn if in_turns else due_s(now_s, embed.priority), self._arrivals),
            params=SamplingParams(n=len(embed.prompts)),
            priority=level(embed.priority),
            client=embed.client,
            pooling=task,
        )

    def _generate(self, connection: int, submit: Submit, now_s: float) -> Request:
        if self.terms.pooling is not None:
            raise InvalidRequest("this model makes vectors of texts; it does not generate text")
        params = submit.params
        check(params, self.terms.vocab_size)
        self._check_alternatives(params, len(submit.prompt_token_ids))
        stop_ids = frozenset(params.stop_token_ids or ())
        eos_ids = frozenset(() if params.ignore_eos else self.terms.eos_token_ids)
        if params.allowed_token_ids is not None:  # if nothing is left of them, sampling would fail in the engine
            left = set(params.allowed_token_ids) - {word[0] for word in params.bad_words_token_ids if len(word) == 1}
            if not left - (eos_ids | stop_ids if params.min_tokens else frozenset()):
                raise InvalidRequest(
                    "allowed_token_ids leaves nothing to choose: bad_words and min_tokens forbid all of it",
                    "allowed_token_ids",
                )
        self._arrivals += 1
        seed = self._seeds.getrandbits(64) if params.seed in (None, -1) else params.seed
        assert seed is not None
        salt = submit.cache_salt if self.terms.prefix_caching else f"request {self._arrivals}"
        return Request(
            connection=connection,
            request_id=submit.request_id,
            prompt=self._prompt(submit.prompt_token_ids),
            system_tokens=submit.system_tokens,
            params=params,
            columns=lasting(params, self.terms.vocab_size),
            max_tokens=self._max_tokens(len(submit.prompt_token_ids), params.max_tokens),
            stop_ids=stop_ids,
            eos_ids=eos_ids,
            root=root_digest(salt) if self.terms.shares_blocks else b"",
            arrived_s=now_s,
            rank=(due_s(now_s, submit.priority), self._arrivals),
            seed=seed,
            priority=level(submit.priority),
            client=submit.client,
        )

    def _check_alternatives(self, params: SamplingParams, prompt: int) -> None:
        """Refuse more alternatives than the limit, or than one message holds. Raises: InvalidRequest."""
        for name in ("logprobs", "prompt_logprobs"):
            count, limit = getattr(params, name), self.terms.alternatives
            if count is not None and limit != -1 and not 0 <= alternatives(count, self.terms.vocab_size) <= limit:
                raise InvalidRequest(f"{name} is {count}; at most {limit} alternatives may be asked for", name)
        if params.prompt_logprobs is not None:
            each = alternatives(params.prompt_logprobs, self.terms.vocab_size)
            if prompt * each * _ALTERNATIVE_BYTES > MAX_FRAME_BYTES:
                raise InvalidRequest(
                    f"prompt_logprobs asks for {each} alternatives at each of {prompt} tokens; ask for fewer",
                    "prompt_logprobs",
                )

    def _prompt(self, token_ids: list[int]) -> array[int]:
        if not token_ids:
            raise InvalidRequest("the prompt is empty", "prompt")
        for token in (min(token_ids), max(token_ids)):
            if not 0 <= token < self.terms.vocab_size:
                raise InvalidRequest(
                    f"the prompt has token id {token}; the vocabulary has {self.terms.vocab_size} tokens", "prompt"
                )
        return array("i", token_ids)

    def _max_tokens(self, prompt: int, max_tokens: int | None) -> int:
        """Return how many tokens may be generated: `max_tokens`, else what the context leaves."""
        context = self.terms.max_model_len
        if prompt >= context:
            raise InvalidRequest(
                f"prompt has {prompt} tokens; the context is {context} and must hold at least one more", "prompt"
            )
        if max_tokens is None:
            return context - prompt
        if prompt + max_tokens > context:
            raise InvalidRequest(
                f"prompt has {prompt} tokens; max_tokens is {max_tokens}; together {prompt + max_tokens}; "
                f"the context is {context}",
                "max_tokens",
            )
        return max_tokens
