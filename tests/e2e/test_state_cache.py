"""Prefix caching of a model whose layers keep states, through the HTTP API: the second turn of a chat goes on from the
first one, and another chat from its system prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.served import Served, serve
from tests.model.transformers_types import VOCABULARY, save_tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}assistant"


@pytest.fixture(scope="module", params=["lfm2", "granitemoehybrid"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    flags = ("--max-model-len", "256", "--state-cache-slots", "16", "--enable-prompt-tokens-details")
    with serve(tmp_path_factory.mktemp("e2e"), str(folder), *flags) as one:
        yield one


def answer(served: Served, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    asked = {"messages": messages, "temperature": 0, "max_tokens": 40, "ignore_eos": True, **fields}
    reply = served.http.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def cached(reply: dict[str, Any]) -> int:
    count: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_the_second_turn_of_a_chat_goes_on_from_the_first(served: Served) -> None:
    messages = [{"role": "user", "content": " ".join(f"w{3 + i * 7 % 100}" for i in range(90))}]
    first = answer(served, messages)
    messages.append({"role": "assistant", "content": first["choices"][0]["message"]["content"]})
    messages.append({"role": "user", "content": "w5 w6 w7"})

    second = answer(served, messages)
    alone = answer(served, messages, cache_salt="alone")

    assert cached(first) == cached(alone) == 0
    assert cached(second) >= first["usage"]["prompt_tokens"] // 32 * 32 > 0
    assert second["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
    hits = [
        line
        for line in served.http.get("/metrics").text.splitlines()
        if line.startswith("vllm:prefix_cache_hits_total")
    ]
    assert float(hits[0].split()[-1]) == cached(second)


def test_another_chat_goes_on_at_the_end_of_their_system_prompt(served: Served) -> None:
    system = {"role": "system", "content": " ".join(f"w{3 + i * 5 % 100}" for i in range(139))}
    chats = [[system, {"role": "user", "content": f"w{50 + i} w{60 + i}"}] for i in range(2)]

    first, second = (answer(served, chat) for chat in chats)
    alone = answer(served, chats[1], cache_salt="alone, too")

    assert cached(first) == cached(alone) == 0
    assert cached(second) == (1 + 139) // 32 * 32
    assert second["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
