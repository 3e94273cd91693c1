from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.api.letters import write_letters
from tests.api.server import Server, StartServer

EOS = 256


def texts(reply: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in reply["choices"]]


def test_the_answer_has_exactly_the_shape_that_clients_know(server: Server) -> None:
    reply = server.complete("hello", max_tokens=3).json()

    assert re.fullmatch("cmpl-[0-9a-f]{32}", reply.pop("id"))
    assert reply.pop("system_fingerprint")
    assert reply.pop("created") > 1_700_000_000
    assert reply == {
        "object": "text_completion",
        "model": "letters",
        "choices": [
            {
                "index": 0,
                "text": "hel",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "service_tier": None,
        "usage": {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": None},
        "kv_transfer_params": None,
    }


def test_sixteen_tokens_are_the_default(server: Server) -> None:
    assert texts(server.complete("ab").json()) == ["ab" * 8]
    assert texts(server.complete("ab", max_tokens=None).json()) == ["ab" * 8]
    assert len(texts(server.complete("a" * 990).json())[0]) == 10  # the room that the context leaves
    assert len(texts(server.complete("a" * 990, max_tokens=None).json())[0]) == 10


def test_prompts_may_be_text_or_ids_one_or_several(server: Server) -> None:
    a, b = [97, EOS], [98, EOS]

    assert texts(server.complete(a).json()) == ["a"]
    assert texts(server.complete([a, b]).json()) == ["a", "b"]
    assert texts(server.complete(["ab", "cd"], max_tokens=2).json()) == ["ab", "cd"]


def test_choices_are_prompt_by_prompt(server: Server) -> None:
    reply = server.openai.completions.create(model="letters", prompt=["ab", "cd"], n=2, max_tokens=2)

    assert [(choice.index, choice.text) for choice in reply.choices] == [(0, "ab"), (1, "ba"), (2, "cd"), (3, "dc")]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 8)


def test_the_openai_client_reads_a_stream_of_several_prompts(server: Server) -> None:
    found = {0: "", 1: ""}
    with server.openai.completions.create(
        model="letters", prompt=["é", "ü"], max_tokens=4, stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                found[choice.index] += choice.text
        assert chunk.usage is not None

    assert found == {0: "éé", 1: "üü"}
    assert chunk.usage.completion_tokens == 8


def test_the_prompt_can_be_echoed_with_its_log_probabilities(server: Server) -> None:
    reply = server.complete("ab", echo=True, logprobs=2, max_tokens=1).json()

    assert texts(reply) == ["aba"]
    assert reply["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -0.5, -0.5],
        "tokens": ["a", "b", "a"],
        "top_logprobs": [None, {"b": -0.5, "c": -1.0}, {"a": -0.5, "b": -1.0}],
    }


def test_max_tokens_0_scores_a_prompt(server: Server) -> None:
    reply = server.complete("ab", echo=True, logprobs=0, max_tokens=0).json()

    assert texts(reply) == ["ab"]
    assert reply["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5]
    assert reply["usage"]["completion_tokens"] == 0


def test_a_stream_echoes_first_and_goes_on_counting_from_there(server: Server) -> None:
    reply = server.complete("ab", echo=True, logprobs=0, max_tokens=2, stream=True)

    choices = [json.loads(line[6:])["choices"][0] for line in reply.text.split("\n\n")[:-2]]
    assert [choice["text"] for choice in choices] == ["aba", "b"]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0, 1, 2], [3]]


def test_ids_are_echoed_as_text(server: Server) -> None:
    assert texts(server.complete([104, 105], echo=True, max_tokens=1).json()) == ["hih"]


def test_prompt_log_probabilities_and_ids_come_with_each_choice(server: Server) -> None:
    choice = server.complete("ab", prompt_logprobs=0, return_token_ids=True, max_tokens=1).json()["choices"][0]

    assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [97])


def test_an_unfinished_character_is_not_shown(server: Server) -> None:
    assert texts(server.complete("🙂", max_tokens=3).json()) == [""]
    assert texts(server.complete("🙂", max_tokens=6).json()) == ["🙂"]


def test_special_tokens_are_shown_where_asked_for(server: Server) -> None:
    hidden = server.complete([97, 257, 98], max_tokens=3).json()
    shown = server.complete([97, 257, 98], max_tokens=3, skip_special_tokens=False).json()

    assert (texts(hidden), texts(shown)) == (["ab"], ["a<bos>b"])


def test_a_long_prompt_is_cut_where_asked_for(server: Server) -> None:
    assert texts(server.complete("abcd", truncate_prompt_tokens=2, max_tokens=2).json()) == ["cd"]
    kept = server.complete("abcd", truncate_prompt_tokens=2, truncation_side="right", max_tokens=2)
    assert texts(kept.json()) == ["ab"]
    assert texts(server.complete("x" * 5000, truncate_prompt_tokens=-1, max_tokens=2).json()) == ["xx"]


def test_the_middle_is_asked_for_with_the_models_own_tokens(start_server: StartServer, tmp_path: Path) -> None:
    tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
    folder = write_letters(tmp_path / "coder", special=tokens)
    server = start_server(model_folder=str(folder))

    assert server.complete("in front", suffix="behind").status_code == 200
    submit = server.engine.submits[-1]
    echoed = server.complete("x", suffix="y", echo=True).json()["error"]

    assert submit.prompt_token_ids == [258, *b"in front", 259, *b"behind", 260]
    assert submit.params.stop_token_ids == [261]
    assert (echoed["code"], echoed["param"]) == (400, "echo")


def test_what_the_engine_does_with_outputs_reaches_it(server: Server) -> None:
    server.complete("ab", logprobs=1, logprob_token_ids=[97], repetition_detection={"max_pattern_size": 3})
    params = server.engine.submits[-1].params

    assert params.logprob_token_ids == [97]
    assert params.repetition_detection is not None
    assert (params.repetition_detection.max_pattern_size, params.repetition_detection.min_count) == (3, 2)


def test_the_whole_vocabulary_may_be_asked_for_where_so_many_alternatives_may(start_server: StartServer) -> None:
    server = start_server(max_logprobs=100_000)

    assert server.complete("a", logprobs=-1).status_code == 200
    assert server.chat("a", logprobs=True, top_logprobs=-1).status_code == 200


def test_answers_tell_their_times_where_the_server_does(start_server: StartServer, server: Server) -> None:
    telling = start_server(per_request_metrics=True)

    whole = telling.complete("hello").json()["metrics"]
    chat = telling.chat("hello").json()["metrics"]
    stream = telling.chat("hello", stream=True, stream_options={"include_usage": True}).text

    for metrics, intervals in ((whole, 15), (chat, 5)):
        assert set(metrics) == {
            *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"),
            "speculative_decoding",
        }
        assert metrics["time_to_first_token_ms"] > 0
        assert metrics["queue_time_ms"] == 1e3 * 2**-20, "what the engine says"
        assert metrics["generation_time_ms"] == pytest.approx(intervals * metrics["mean_itl_ms"])
    assert stream.count('"metrics":{"time_to_first_token_ms"') == 1
    one = telling.complete("hello", max_tokens=1).json()["metrics"]
    assert "mean_itl_ms" not in one, "one token has none between it and the next"
    assert one["tokens_per_second"] > 0
    assert "metrics" not in telling.chat("hello", n=2, temperature=1).json()
    assert "metrics" not in server.chat("hello").json()


@pytest.mark.parametrize(("mode", "shown"), [("custom", "mine"), ("none", None)])
def test_the_operator_may_say_what_the_fingerprint_is(start_server: StartServer, mode: str, shown: str | None) -> None:
    server = start_server(fingerprint_mode=mode, fingerprint_value="mine")

    assert server.complete("a").json()["system_fingerprint"] == shown
    assert server.chat("a").json()["system_fingerprint"] == shown


def test_openais_other_fields_are_taken_and_change_nothing(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    fields: dict[str, Any] = {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"}
    fields |= {"prompt_cache_key": "k", "verbosity": "low", "modalities": ["text"], "web_search_options": {}}

    assert server.chat("abc", **fields).json()["choices"][0]["message"]["content"] == "abc"

    assert not [record for record in caplog.records if "does not know" in record.getMessage()]


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("prompt", ["<bos>a<eos>b", "ab", [257, 97, 256, 98]])
def test_offsets_find_each_token_in_an_echo_with_special_tokens(server: Server, prompt: Any, skips: bool) -> None:
    """A token takes its characters of the text where it stands there, and none where it does not."""
    fields = {"echo": True, "logprobs": 0, "max_tokens": 3, "ignore_eos": True, "skip_special_tokens": skips}
    [choice] = server.complete(prompt, **fields).json()["choices"]
    text, logprobs = choice["text"], choice["logprobs"]
    ends = [*logprobs["text_offset"][1:], len(text)]
    shown = [text[start:end] for start, end in zip(logprobs["text_offset"], ends, strict=True)]
    assert "".join(shown) == text
    for token, part in zip(logprobs["tokens"], shown, strict=True):
        assert part == token or (part == "" and token in ("<bos>", "<eos>"))
    if isinstance(prompt, str):
        assert text.startswith(prompt)
    elif not skips:
        assert text.startswith("<bos>a<eos>b")

    streamed = server.complete(prompt, stream=True, **fields).text.split("\n\n")
    chunks = [json.loads(one.removeprefix("data: "))["choices"][0] for one in streamed if one.startswith("data: {")]
    assert [at for chunk in chunks if chunk["logprobs"] for at in chunk["logprobs"]["text_offset"]] == logprobs[
        "text_offset"
    ]


def test_the_fingerprint_changes_with_how_the_model_is_computed(server: Server, start_server: StartServer) -> None:
    other = start_server(computed_as="--rope-theta 1e6")

    prints = {one.complete("a").json()["system_fingerprint"] for one in (server, other, other)}
    assert len(prints) == 2
