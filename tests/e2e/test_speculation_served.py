"""A server that drafts answers what a server without drafts answers: text, ids, log-probabilities, usage, streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.served import Served, series, serve, wait_until

from forearm.model.checkpoint.hub import find_model

FLAGS = ("--max-model-len", "1024", "--served-model-name", "demo")
NGRAM = '{"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1, "prompt_lookup_max": 4}'
PROMPT = "a river, a lake, a river, a lake, a river, a lake, a"
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "boolean"} for name in ("mountain", "mountainous", "river", "riverside")},
    "required": ["mountain", "mountainous", "river", "riverside"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("plain"), *FLAGS) as served:
        yield served


@pytest.fixture(
    scope="module",
    params=[("--speculative-config", NGRAM), ("--spec-model", str(find_model("")), "--spec-tokens", "4")],
    ids=["ngram", "draft_model"],
)
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("drafting"), *FLAGS, *request.param) as served:
        yield served


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "max_tokens": 200, "ignore_eos": True},
        {"temperature": 0.7, "seed": 5, "max_tokens": 150, "ignore_eos": True, "logprobs": 2},
        {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "stop": [" is ", "stone"], "logprobs": 1},
        {"temperature": 0.9, "seed": 1, "n": 3, "max_tokens": 80, "repetition_penalty": 1.1, "presence_penalty": 0.2},
        {
            "temperature": 0,
            "max_tokens": 120,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        },
        {
            "temperature": 0,
            "max_tokens": 200,
            "ignore_eos": True,
            "repetition_detection": {"max_pattern_size": 8, "min_count": 3},
        },
    ],
    ids=lambda fields: "-".join(fields),
)
def test_an_answer_is_the_same(fields: dict[str, Any], plain: Served, drafting: Served) -> None:
    found = []
    for served in (plain, drafting):
        reply = served.http.post("/v1/completions", json={"prompt": PROMPT, "return_token_ids": True, **fields})
        assert reply.status_code == 200, reply.text
        body = reply.json()
        found.append((body["choices"], body["usage"]))

    assert found[0] == found[1]


def test_a_stream_says_the_same_though_its_pieces_are_longer(plain: Served, drafting: Served) -> None:
    def text(served: Served) -> str:
        stream = served.openai.completions.create(
            model="demo", prompt=PROMPT, max_tokens=200, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join(chunk.choices[0].text for chunk in stream)

    def accepted() -> float:
        metrics = series(drafting.http.get("/metrics").text)
        return sum(v for name, v in metrics.items() if name.startswith("vllm:spec_decode_num_accepted_tokens_total"))

    def same_with_drafts() -> bool:
        """Compare texts; return whether drafts were accepted, which depends on measured times for so small a model."""
        assert text(drafting) == said
        return accepted() > 0

    said = text(plain)
    wait_until(same_with_drafts)


def test_an_answer_reports_its_draft_tokens(tmp_path: Path) -> None:
    """A server of its own: one that has seen drafts lose makes none. Answers together tell what the metrics count."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    telling = ("--speculative-config", NGRAM, "--per-request-spec-decode-metrics", "summary")
    with serve(tmp_path, *FLAGS, *telling) as served:
        replies = [served.http.post("/v1/completions", json=body).json() for _ in range(2)]
        counted = series(served.http.get("/metrics").text)

    told = [reply["metrics"]["speculative_decoding"] for reply in replies if "metrics" in reply]
    assert told
    for figure, name in (
        ("num_spec_steps", "drafts"),
        ("num_draft_tokens", "draft_tokens"),
        ("num_accepted_draft_tokens", "accepted_tokens"),
    ):
        [total] = [value for key, value in counted.items() if key.startswith(f"vllm:spec_decode_num_{name}_total")]
        assert sum(one[figure] for one in told) == total
    for one in told:
        right = one["acceptance_histogram"]
        assert sum(right) == one["num_spec_steps"]
        assert sum(count * steps for count, steps in enumerate(right)) == one["num_accepted_draft_tokens"]
