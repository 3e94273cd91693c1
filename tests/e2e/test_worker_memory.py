"""The memory of an API worker, and of the engine, does not grow with the number of odd requests."""

from __future__ import annotations

import json
import os
import random
import string
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.served import Served, serve

# FOREARM_TEST_ODD_REQUESTS=20000 for the figures of bench/results/soak/x86-64-2-cores.json.
COUNT = int(os.environ.get("FOREARM_TEST_ODD_REQUESTS", "3000"))
MIB = 1 << 20


def name(dice: random.Random) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=12))


def odd(dice: random.Random) -> tuple[str, str, dict[str, Any] | None]:
    """Return a request with new names, texts, fields and grammars."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": name(dice)}], "max_tokens": 1}
    schema = {"type": "object", "properties": {name(dice): {"type": "integer"}}, "required": []}
    kinds: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", f"/{name(dice)}/{name(dice)}", None),
        ("GET", f"/v1/models/{name(dice)}", None),
        ("GET", f"/v1/responses/resp_{name(dice)}", None),
        ("POST", "/v1/chat/completions", {**chat, "model": name(dice)}),
        ("POST", "/v1/chat/completions", {**chat, name(dice): name(dice) * 100}),
        ("POST", "/v1/chat/completions", {**chat, "temperature": name(dice)}),
        ("POST", "/v1/chat/completions", {**chat, "chat_template_kwargs": {name(dice): [name(dice)]}}),
        ("POST", "/v1/chat/completions", {**chat, "response_format": {"type": "json_schema", "json_schema": schema}}),
        ("POST", "/v1/chat/completions", {**chat, "stream": True, "stop": [name(dice)]}),
        ("POST", "/v1/completions", {"prompt": [name(dice)] * 3, "max_tokens": 1, "logprobs": 5}),
        ("POST", "/v1/responses", {"input": name(dice), "max_output_tokens": 1, "metadata": {name(dice): "x"}}),
        ("POST", "/v1/messages", {"messages": chat["messages"], "max_tokens": 1, "model": name(dice)}),
        ("POST", "/tokenize", {"prompt": name(dice) * dice.randrange(2000)}),
        ("POST", "/detokenize", {"tokens": [dice.randrange(1 << 40)]}),
        (name(dice).upper(), "/v1/chat/completions", chat),
    ]
    return dice.choice(kinds)


def ask(http: httpx.Client, dice: random.Random) -> int:
    method, path, body = odd(dice)
    headers = {"X-Request-Id": name(dice), name(dice): name(dice)}
    return http.request(method, path, json=body, headers=headers).status_code


def resident(served: Served) -> dict[str, int]:
    """Return the resident memory of the worker with its grammar processes, and of the engine."""
    (worker,) = served.workers()
    own = [worker, *worker.children(recursive=True)]
    return {
        "worker": sum(one.memory_info().rss for one in own),
        "engine": served.engine().memory_info().rss,
    }


def test_odd_requests_leave_nothing_behind(tmp_path: Path) -> None:
    env = {"FOREARM_RESPONSES_STORE_COUNT": "100"}
    with serve(tmp_path, "--api-server-count", "1", env=env) as served, ThreadPoolExecutor(4) as pool:
        found, statuses = [], Counter[int]()
        for tenth in range(10):
            dice = [random.Random(f"{tenth} {number}") for number in range(COUNT // 10)]
            statuses.update(pool.map(lambda one: ask(served.http, one), dice))
            found.append(resident(served))

        print(json.dumps({"count": COUNT, "MiB": [{k: v // MIB for k, v in one.items()} for one in found]}))
        print(sorted(statuses.items()))
    assert not any(status >= 500 for status in statuses), statuses
    assert statuses[200] > COUNT // 5
    # The first tenths fill what has an end: caches of grammars and names, stored responses, the allocator's arenas.
    # From then on a leak of 10 kB a request would be 20 MiB in 2000.
    assert found[-1]["worker"] - found[3]["worker"] < max(16 * MIB, COUNT * 1500), found
    assert found[-1]["engine"] - found[3]["engine"] < max(16 * MIB, COUNT * 1500), found
