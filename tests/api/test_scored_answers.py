"""Whole answers with log-probabilities."""

from __future__ import annotations

import asyncio
import threading

import pytest

from forearm.api.generation.logprobs import completion_logprobs
from forearm.api.generation.output_stream import Tally
from forearm.api.generation.usage import scored_response
from forearm.text.outputs import Choice
from forearm.wire import TokenLogprob


@pytest.mark.parametrize(("scored", "own_thread"), [(10, False), (5000, True)])
@pytest.mark.parametrize("of_prompt", [False, True])
def test_many_log_probabilities_are_written_beside_the_event_loop(
    scored: int, own_thread: bool, of_prompt: bool
) -> None:
    """Writing 256 prompts of 400 tokens with five alternatives each takes four seconds."""
    positions = [[TokenLogprob(1, -0.5, 1)]] * scored
    tally = Tally(1, prompt_logprobs={0: [None, *positions]} if of_prompt else {})
    choices = [] if of_prompt else [Choice(logprobs=positions)]
    threads: list[int] = []

    def write() -> dict[str, int]:
        threads.append(threading.get_ident())
        return {"a": 1}

    response = asyncio.run(scored_response(write, choices, tally))

    assert response.body == b'{"a":1}'
    assert (threads != [threading.get_ident()]) is own_thread


def test_the_chosen_token_is_first_among_the_alternatives_of_a_completion() -> None:
    position = [
        TokenLogprob(7, -2.0, 3),
        TokenLogprob(9, -0.5, 1),
        TokenLogprob(8, -1.0, 2),
        TokenLogprob(107, -9.0, 4),
    ]

    reply = completion_logprobs([7], [position], lambda token: str(token % 100), 0, [1])  # 107 has the text of 7

    assert [*reply.top_logprobs[0].items()] == [("7", -2.0), ("9", -0.5), ("8", -1.0)]
