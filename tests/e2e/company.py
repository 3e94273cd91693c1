"""Requests of all kinds for the real engine on the demo model, and the results of each: tokens and floats."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

from forearm import wire
from forearm.config.configs import engine_config
from forearm.engine.inbox import Received
from forearm.engine.loop import EngineLoop
from forearm.engine.start import start

MAX_MODEL_LEN = 192
REQUESTS = 33
MAX_TOKENS = 12
# Around the edges of blocks (32) and of attention's chunks.
PROMPT_LENGTHS = (1, 2, 5, 31, 32, 33, 63, 64, 65, 100, 129, 150)

# All that a client gets of an output, floats too: each token with its logprobs; prompt_logprobs and finish_reason too.
Answer = list[tuple[Any, ...]]
Answers = dict[tuple[str, int], Answer]


def engine(threads: int = 2, **settings: Any) -> EngineLoop:
    """Return a new engine on the demo model."""
    config = engine_config(**{"max_model_len": MAX_MODEL_LEN, "max_num_seqs": REQUESTS, **settings})
    return start(replace(config, threads=threads), queued=sys.maxsize, progress=False)


def requests(vocab_size: int) -> list[wire.Submit]:
    """Return greedy and seeded requests, with penalties, several outputs and log-probabilities; some share a prefix."""
    draw = random.Random(0)
    common = [draw.randrange(vocab_size) for _ in range(max(PROMPT_LENGTHS))]
    made = []
    for i in range(REQUESTS):
        length = PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)]
        shared = draw.choice([0, length // 2, length - 1])
        prompt = common[:shared] + [draw.randrange(vocab_size) for _ in range(length - shared)]
        params = wire.SamplingParams(
            n=2 if i % 7 == 1 else 1,
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
            temperature=0.9 if i % 2 or i % 7 == 1 else 0.0,
            top_p=0.95 if i % 4 == 1 else 1.0,
            top_k=20 if i % 3 == 1 else 0,
            seed=i,
            presence_penalty=0.5 if i % 5 == 0 else 0.0,
            repetition_penalty=1.2 if i % 6 == 0 else 1.0,
            logprobs=3,
            prompt_logprobs=1 if i % 8 == 0 else None,
        )
        made.append(wire.Submit(request_id=str(i), prompt_token_ids=prompt, params=params))
    return made


def answers(loop: EngineLoop, submits: list[wire.Submit]) -> Answers:
    """Compute all requests together and return their answers."""
    for submit in submits:
        loop.take(Received(0, submit))
    found: Answers = {}
    while loop.busy:
        loop.step()
        for _, message in loop.outbox:
            assert not isinstance(message, wire.Refused), message.message
            if isinstance(message, wire.Tokens):
                answer = found.setdefault((message.request_id, message.index), [])
                answer += zip(message.token_ids, message.logprobs or [[]] * len(message.token_ids), strict=True)
                # First and last, however many tokens come with them: a step may have drafts beside a prompt's end.
                if message.prompt_logprobs:
                    answer.insert(0, (message.prompt_logprobs,))
                if message.finish_reason:
                    answer.append((message.finish_reason,))
        loop.outbox = []
    assert loop.scheduler.blocks.used == 0
    return found
