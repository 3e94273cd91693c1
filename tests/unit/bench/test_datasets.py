"""The requests of a run, made with the demo model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forearm.bench.datasets import DatasetOptions, ModelText, samples
from forearm.bench.text import load_text
from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import DEMO_MODEL


@pytest.fixture(scope="module")
def text() -> ModelText:
    return load_text(DEMO_MODEL.name)


def wanted(name: str, **fields: Any) -> DatasetOptions:
    return DatasetOptions(dataset_name=name, **{"num_prompts": 20, "request_id_prefix": "r-", **fields})


def test_random_prompts_have_the_length_asked_for_and_begin_differently(text: ModelText) -> None:
    made = samples(wanted("random", random_input_len=40, random_output_len=7), text)

    assert {sample.output_tokens for sample in made} == {7}
    assert [sample.request_id for sample in made] == [f"r-{i}" for i in range(20)]
    assert all(sample.prompt_tokens == text.count(sample.prompt) == 40 for sample in made)
    assert len({tuple(text.tokenizer.encode(sample.prompt)[:1]) for sample in made}) == 20


def test_random_prompts_begin_with_the_prefix_all_have_in_common(text: ModelText) -> None:
    made = samples(wanted("random", random_input_len=20, random_prefix_len=30), text)

    ids = [text.tokenizer.encode(sample.prompt) for sample in made]
    shared = next(i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1)
    assert {len(one) for one in ids} == {50}
    assert 28 <= shared <= 31  # the prefix may merge with what follows it


def test_random_prompts_come_several_a_request(text: ModelText) -> None:
    made = samples(wanted("random", random_input_len=10, random_batch_size=8), text)

    assert [sample.sequences for sample in made] == [8, 8, 4]
    assert [sample.prompt_tokens for sample in made] == [80, 80, 40]


def test_random_lengths_are_spread_evenly_over_their_range(text: ModelText) -> None:
    made = samples(
        wanted("random", random_input_len=40, random_output_len=10, random_range_ratio=0.5, num_prompts=400), text
    )

    outputs = [sample.output_tokens for sample in made]
    assert (min(outputs), max(outputs)) == (5, 15)
    assert sum(outputs) / len(outputs) == pytest.approx(10, abs=0.6)  # four standard errors: sqrt(10 / 400) = 0.16
    assert {20, 60} <= {sample.prompt_tokens for sample in made} <= set(range(20, 61))


def test_the_seed_decides(text: ModelText) -> None:
    def prompts(seed: int) -> list[str]:
        return [sample.prompt for sample in samples(wanted("random", random_input_len=12, seed=seed), text)]

    assert prompts(1) == prompts(1) != prompts(2)


def test_prefixes_are_repeated_and_suffixes_are_not(text: ModelText) -> None:
    made = samples(
        wanted("prefix_repetition", prefix_repetition_prefix_len=24, prefix_repetition_suffix_len=24,
               prefix_repetition_num_prefixes=4, prefix_repetition_output_len=3), text
    )  # fmt: skip

    beginnings = [tuple(text.tokenizer.encode(sample.prompt)[:20]) for sample in made]
    assert {beginnings.count(one) for one in beginnings} == {5}
    assert len({sample.prompt for sample in made}) == 20
    assert {sample.output_tokens for sample in made} == {3}


@pytest.mark.parametrize("chat", [False, True])
def test_sonnets_fill_the_length_and_share_their_first_lines(text: ModelText, chat: bool) -> None:
    made = samples(wanted("sonnet", sonnet_input_len=300, sonnet_prefix_len=120, num_prompts=8, chat=chat), text)

    assert all(250 < sample.prompt_tokens <= 300 for sample in made)
    assert all("From fairest creatures we desire increase,\nThat thereby" in sample.prompt for sample in made)
    assert len({sample.prompt for sample in made}) == 8
    # chats are rendered by the server
    assert all(sample.prompt.startswith("Pick as many lines") == chat for sample in made)


def test_sharegpt_takes_first_turns_of_a_usable_length(text: ModelText, tmp_path: Path) -> None:
    def said(*turns: str) -> dict[str, Any]:
        return {"conversations": [{"from": "x", "value": turn} for turn in turns]}

    good = said("What is a glacier made of?", "It is made of ice that has lain for years.", "And?")
    others = [said("no", "x " * 9), said("Nobody answers this."), said("word " * 2000, "It is long."), {"id": 1}]
    path = tmp_path / "s.json"
    path.write_text(json.dumps([*others, good]))

    [one] = samples(wanted("sharegpt", dataset_path=str(path), no_oversample=True), text)
    repeated = samples(wanted("sharegpt", dataset_path=str(path), sharegpt_output_len=5), text)

    assert one.prompt == "What is a glacier made of?"
    assert one.output_tokens == text.count("It is made of ice that has lain for years.")
    assert (len(repeated), {sample.output_tokens for sample in repeated}) == (20, {5})


def test_custom_prompts_are_read_line_by_line(text: ModelText, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": "one", "output_tokens": 4}\n\n{"prompt": "two", "output_tokens": 9}\n')
    fields = {"dataset_path": str(path), "num_prompts": 2, "disable_shuffle": True}

    plain = samples(wanted("custom", skip_chat_template=True, **fields), text)
    templated = samples(wanted("custom", custom_output_len=-1, **fields), text)

    assert [(sample.prompt, sample.output_tokens) for sample in plain] == [("one", 256), ("two", 256)]
    assert [sample.output_tokens for sample in templated] == [4, 9]
    assert all(sample.prompt not in ("one", "two") and sample.prompt_tokens > 3 for sample in templated)


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("hf", None, {}, "--dataset-name hf: its files come from Hugging Face's hub"),
        ("burstgpt", None, {}, "there are random, sharegpt, custom, sonnet, prefix_repetition"),
        ("custom", None, {}, "give its file with --dataset-path"),
        ("custom", '{"prompt": "x"}\n{"text": "x"}', {}, "line 2: write a JSON object such as"),
        ("custom", '{"prompt": "x"}', {"custom_output_len": -1}, "line 1: --custom-output-len -1 needs output_tokens"),
        ("sharegpt", "{", {}, "it is not JSON"),
        ("sharegpt", "[]", {}, "it has no request of a usable length"),
        ("random", None, {"random_range_ratio": 1.0}, "--random-range-ratio 1"),
        ("random", None, {"random_input_len": 0}, "--random-input-len 0: prompts would be empty"),
        ("sonnet", None, {"sonnet_input_len": 3}, "--sonnet-input-len 3: the question alone has"),
        ("prefix_repetition", None, {"prefix_repetition_num_prefixes": 21}, "it is more than --num-prompts 20"),
    ],
)
def test_what_cannot_be_made_is_said(
    text: ModelText, tmp_path: Path, name: str, content: str | None, fields: dict[str, Any], message: str
) -> None:
    if content is not None:
        (tmp_path / "file").write_text(content)
        fields = {**fields, "dataset_path": str(tmp_path / "file")}

    with pytest.raises(ConfigError) as error:
        samples(wanted(name, **fields), text)

    assert message in str(error.value)
