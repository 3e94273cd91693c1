"""Beam search (`use_beam_search`): the beams of a request, yielded like the outputs of any other request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from forearm import wire
from forearm.api.engine_client.engine_client import EngineClient, Generation
from forearm.api.generation.request_bodies import GenerationBody
from forearm.api.http.caller import Observer
from forearm.beam_search import Beam, BeamSearch, BeamSearchParams, step_params
from forearm.errors import EngineFailed, InvalidRequest

# Beams are compared by the model's own log-probabilities, so parameters that change these are refused. Beside each
# parameter stand the values that have no effect. Parameters of sampling alone (temperature, top_p, seed) are ignored.
_NEUTRAL = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "logprob_token_ids": (None,),
    "repetition_detection": (None,),
    "thinking_token_budget": (None,),
}


def check_beams(body: GenerationBody, params: wire.SamplingParams, limit: int) -> None:
    """Check that beam search can answer a request. `limit`: most alternatives per token that the engine returns.

    Raises: InvalidRequest naming the field.
    """
    for name, neutral in _NEUTRAL.items():
        if getattr(body, name, None) not in neutral:
            raise InvalidRequest(f"{name} cannot be combined with use_beam_search; leave one of them out", name)
    if params.grammar is not None:
        raise InvalidRequest(
            "a response format or a required tool call cannot be combined with use_beam_search; leave one of them out",
            "use_beam_search",
        )
    if params.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs cannot be combined with use_beam_search; leave one of them out", "prompt_logprobs"
        )
    if limit != -1 and 2 * params.n > limit:
        raise InvalidRequest(
            f"n is {params.n}: so many beams need {2 * params.n} log-probabilities at each token, and this server "
            f"gives {limit}; ask for at most {limit // 2}, or start the server with a higher --max-logprobs",
            "n",
        )


class BeamGeneration:
    """The beam search of each prompt of one request: iterate for (number of the prompt, a whole beam), best first.

    Each round is one submission to the engine that adds one token to every live beam; the prefix cache holds the rest.
    """

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[wire.Submit],
        length_penalty: float,
        observers: Sequence[Observer],
    ) -> None:
        self._engine = engine
        self._requests = requests
        state, asked = engine.state, requests[0].params
        self._params = [
            BeamSearchParams(
                beam_width=asked.n,
                max_tokens=request.params.max_tokens or state.max_model_len - len(request.prompt_token_ids),
                ignore_eos=asked.ignore_eos,
                length_penalty=length_penalty,
            )
            for request in requests
        ]
        ends = {*state.eos_token_ids, *(asked.stop_token_ids or ())}
        self._searches = [
            BeamSearch(len(request.prompt_token_ids), params, ends)
            for request, params in zip(requests, self._params, strict=True)
        ]
        self._shown = state.vocab_size if asked.logprobs == -1 else asked.logprobs
        self._rounds = 0
        self._cached: dict[int, int] = {}  # tokens of each prompt that were computed before
        self._round: Generation | None = None
        self._observers = observers

    async def begin(self) -> None:
        """Hand in the first round.

        Raises: as EngineClient.submit.
        """
        self._round = await self._submitted()
        for observer in self._observers:
            observer.submitted([request.prompt_token_ids for request in self._requests], self._requests[0].params)

    async def __aiter__(self) -> AsyncIterator[tuple[int, wire.Tokens]]:
        """Yield the outputs. Raises: as Generation does; Overloaded if the engine has no room for a later round."""
        while self._round is not None:
            await self._take(self._round)
            self._round = await self._submitted()
        for number, search in enumerate(self._searches):
            for index, beam in enumerate(search.best):
                message = self._message(number, index, beam)
                for observer in self._observers:
                    observer.tokens(message)
                yield number, message
        self._over()

    def stop(self, number: int, index: int) -> None:
        """Do nothing: a beam whose text has a stop string has already ended."""

    def close(self) -> None:
        """End what is still computed. May be called at any time, and again."""
        if self._round is not None:
            self._round.close()
        self._over()

    async def _submitted(self) -> Generation | None:
        """Submit the next round and return it; None if no beam is live."""
        self._rounds += 1
        live = [(n, beam) for n, search in enumerate(self._searches) for beam in search.live]
        requests = [
            replace(
                self._requests[n],
                request_id=f"{self._requests[n].request_id}-{self._rounds}-{place}",
                prompt_token_ids=[*self._requests[n].prompt_token_ids, *beam.token_ids],
                params=step_params(self._params[n], self._shown or 0),
            )
            for place, (n, beam) in enumerate(live)
        ]
        return await self._engine.submit(requests) if requests else None

    async def _take(self, generation: Generation) -> None:
        """Pass the engine's outputs of this round on to each search.

        Raises: EngineFailed, EngineUnavailable.
        """
        positions: dict[int, wire.PositionLogprobs] = {}
        async for place, message in generation:
            if not message.logprobs:
                raise EngineFailed("the engine gave up a beam; it is being stopped")
            positions[place] = message.logprobs[0]
            if self._rounds == 1 and message.cached_tokens is not None:
                self._cached[place] = message.cached_tokens
        first = 0
        for search in self._searches:
            count = len(search.live)
            if count:
                search.add([positions[place] for place in range(first, first + count)])
            first += count

    def _message(self, number: int, index: int, beam: Beam) -> wire.Tokens:
        """Return a beam as the message by which the engine would report an output."""
        shown = None if self._shown is None else [one[: 1 + self._shown] for one in beam.logprobs]
        stopped = beam.stop_reason in (self._requests[number].params.stop_token_ids or ())
        return wire.Tokens(
            request_id=self._requests[number].request_id,
            index=index,
            token_ids=beam.token_ids,
            logprobs=shown,
            finish_reason=beam.finish_reason,
            stop_reason=beam.stop_reason if stopped else None,
            cached_tokens=self._cached.get(number) if index == 0 else None,
        )

    def _over(self) -> None:
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.over()
