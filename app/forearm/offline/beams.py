"""Beam search within a program: the search of beam_search.py, computed by the engine, all prompts beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from forearm import wire
from forearm.beam_search import BeamSearch, BeamSearchParams, step_params
from forearm.errors import EngineFailed, InvalidRequest
from forearm.offline.outputs import Candidates, candidates
from forearm.offline.shared_loop import LoopConnection
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.wire import PositionLogprobs


@dataclass
class BeamSearchSequence:
    """One beam. `tokens` and `text` begin with the prompt, as vLLM's do."""

    tokens: list[int]
    logprobs: list[Candidates]
    cum_logprob: float
    text: str
    finish_reason: str | None
    stop_reason: int | None


@dataclass
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def search(
    connection: LoopConnection,
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
    end_ids: Collection[int],
    numbers: itertools.count[int],
    tokenizer: Tokenizer,
) -> list[BeamSearchOutput]:
    """Return the beams found after each prompt. Each round computes one token after every live beam.

    The end token is left out unless include_stop_str_in_output is set, as in vLLM.

    Raises: InvalidRequest, EngineFailed.
    """
    searches = [BeamSearch(len(prompt), params, end_ids) for prompt in prompts]
    while any(one.live for one in searches):
        rounds: list[list[str]] = []
        for one, prompt in zip(searches, prompts, strict=True):
            names = [str(next(numbers)) for _ in one.live]
            for name, beam in zip(names, one.live, strict=True):
                ids = [*prompt, *beam.token_ids]
                connection.submit(wire.Submit(request_id=name, prompt_token_ids=ids, params=step_params(params)))
            rounds.append(names)
        found = _positions(connection, sum(map(len, rounds)))
        for one, names in zip(searches, rounds, strict=True):
            if names:
                one.add([found[name] for name in names])
    outputs = []
    for one, prompt in zip(searches, prompts, strict=True):
        sequences = []
        for beam in one.best:
            ended = beam.finish_reason == "stop" and not params.include_stop_str_in_output
            tokens = [*prompt, *(beam.token_ids[:-1] if ended else beam.token_ids)]
            logprobs = [candidates(position, tokenizer) for position in beam.logprobs]
            text = tokenizer.decode(tokens)
            sequences.append(
                BeamSearchSequence(tokens, logprobs, beam.cum_logprob, text, beam.finish_reason, beam.stop_reason)
            )
        outputs.append(BeamSearchOutput(sequences))
    return outputs


def _positions(connection: LoopConnection, count: int) -> dict[str, PositionLogprobs]:
    """Return the candidates after each beam, by request."""
    found: dict[str, PositionLogprobs] = {}
    while len(found) < count:
        for message in connection.messages():
            if isinstance(message, wire.Refused):
                wrong = message.error == "InvalidRequest"
                raise InvalidRequest(message.message, message.param) if wrong else EngineFailed(message.message)
            if isinstance(message, wire.Tokens) and message.logprobs:
                found[message.request_id] = message.logprobs[0]
    return found
