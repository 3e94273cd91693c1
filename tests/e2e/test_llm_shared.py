"""One LLM for several threads, streams and coroutines; after a fork, and closed."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forearm import LLM, AsyncEngineArgs, AsyncLLMEngine, BeamSearchParams, RequestOutputKind, SamplingParams
from forearm.errors import EngineUnavailable, InvalidRequest
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.offline.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=200, ignore_eos=True)
SMALL = {"max_model_len": 256, "max_num_seqs": 16}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(**SMALL) as one:  # type: ignore[arg-type]
        yield one


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def test_threads_share_one_llm_and_each_gets_its_own_answers(llm: LLM) -> None:
    prompts = [[f"Thread {thread}, prompt {number}" for number in range(3)] for thread in range(6)]
    alone = [[ids(output) for output in llm.generate(each, GREEDY, use_tqdm=False)] for each in prompts]
    found: dict[int, list[list[int]]] = {}
    most = 0

    def ask(thread: int) -> None:
        nonlocal most
        for _ in range(3):
            outputs = llm.generate(prompts[thread], GREEDY, use_tqdm=False)
            most = max(most, llm._loop.snapshot.running)
        found[thread] = [ids(output) for output in outputs]

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [found.get(number) for number in range(6)] == alone
    assert most > 3  # the requests of several threads were computed together
    assert not llm._loop.busy


def test_a_thread_that_is_refused_harms_no_other(llm: LLM) -> None:
    outputs: list[RequestOutput] = []
    other = threading.Thread(target=lambda: outputs.extend(llm.generate("A lake", ENDLESS, use_tqdm=False)))
    other.start()

    for _ in range(20):
        with pytest.raises(InvalidRequest, match="prompt has 300 tokens"):
            llm.generate([5] * 300, GREEDY, use_tqdm=False)

    other.join(60)
    assert [len(ids(output)) for output in outputs] == [200]


def test_a_stream_grows_to_what_generate_returns(llm: LLM) -> None:
    prompts = ["A glacier is", "The river"]
    whole = llm.generate(prompts, GREEDY, use_tqdm=False)

    seen: dict[str | None, list[RequestOutput]] = {}
    for output in llm.generate(prompts, GREEDY, stream=True):
        seen.setdefault(output.prompt, []).append(output)

    for one in whole:
        grown = seen[one.prompt]
        assert len(grown) > 10
        assert [each.finished for each in grown] == [False] * (len(grown) - 1) + [True]
        lengths = [len(ids(each)) for each in grown]
        assert lengths == sorted(set(lengths))  # an output that was yielded does not change any more
        assert all(ids(one)[: len(ids(each))] == ids(each) for each in grown)
        assert (grown[-1].outputs[0].text, ids(grown[-1])) == (one.outputs[0].text, ids(one))


def test_a_stream_may_give_what_is_new_or_the_end_alone(llm: LLM) -> None:
    (whole,) = llm.generate("A glacier is", GREEDY, use_tqdm=False)
    asked = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 1}

    delta = SamplingParams(output_kind=RequestOutputKind.DELTA, **asked)  # type: ignore[arg-type]
    news = [output.outputs[0] for output in llm.generate("A glacier is", delta, stream=True)]
    final = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **asked)  # type: ignore[arg-type]
    ends = list(llm.generate("A glacier is", final, stream=True))

    assert len(news) > 10
    assert "".join(one.text for one in news) == whole.outputs[0].text
    assert [token for one in news for token in one.token_ids] == ids(whole)
    assert [len(one.logprobs or ()) for one in news] == [len(one.token_ids) for one in news]
    assert [ids(output) for output in ends] == [ids(whole)]


def test_leaving_a_stream_ends_its_requests(llm: LLM) -> None:
    stream = llm.generate(["a", "b"], ENDLESS, stream=True)
    next(stream)
    assert llm._loop.busy

    stream.close()  # type: ignore[attr-defined]  # it is a generator

    assert not llm._loop.busy


def test_beams_are_no_less_likely_than_the_greedy_answer(llm: LLM) -> None:
    prompt = "A glacier is"
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
    (answer,) = llm.generate(prompt, greedy, use_tqdm=False)

    (narrow,) = llm.beam_search([prompt], BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True))
    wide, again = llm.beam_search([prompt, prompt], BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True))

    assert narrow.sequences[0].tokens == answer.prompt_token_ids + ids(answer)
    assert narrow.sequences[0].cum_logprob == pytest.approx(answer.outputs[0].cumulative_logprob)
    assert narrow.sequences[0].text.startswith(prompt)
    likely = [sequence.cum_logprob for sequence in wide.sequences]
    assert likely == sorted(likely, reverse=True)
    assert likely[0] >= narrow.sequences[0].cum_logprob
    assert len({tuple(sequence.tokens) for sequence in wide.sequences}) == 4
    assert wide == again


def in_a_fork(llm: LLM, end: Connection) -> None:
    with pytest.raises(EngineUnavailable) as of_generate:
        llm.generate("A", GREEDY, use_tqdm=False)
    with pytest.raises(EngineUnavailable) as of_chat:
        llm.chat([{"role": "user", "content": "A"}])
    end.send([str(of_generate.value), str(of_chat.value)])


def test_after_a_fork_the_remedy_is_told(llm: LLM) -> None:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_a_fork, args=(llm, theirs), daemon=True)
    child.start()

    assert ours.poll(30), "the fork hangs"
    told = f"this LLM was loaded in process {os.getpid()}; process {child.pid} is its fork"
    assert [message.startswith(told) for message in ours.recv()] == [True, True]
    child.join(30)
    assert child.exitcode == 0
    assert len(llm.generate("A", GREEDY, use_tqdm=False)) == 1


def test_a_closed_llm_says_so_also_to_threads_that_wait() -> None:
    with LLM(**SMALL) as one:  # type: ignore[arg-type]
        stream = one.generate("a", ENDLESS, stream=True)
        next(stream)

    with pytest.raises(EngineUnavailable, match="closed; load the model again"):
        next(stream)
    for call in (one.generate, lambda prompt: one.beam_search([prompt], BeamSearchParams(beam_width=1, max_tokens=1))):
        with pytest.raises(EngineUnavailable, match="closed; load the model again"):
            call("a")
    one.close()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda llm: llm.generate("x", {"temperature": 0}),
            r"sampling_params is {'temperature': 0}, a dict; write Sampl",
        ),
        (lambda llm: llm.generate(["x"], ["y"]), "sampling_params is 'y', a str; write SamplingParams"),
        (lambda llm: llm.generate(None), "prompts is None, a NoneType; write a text"),
        (lambda llm: llm.generate(["x", 1.5]), "a prompt is 1.5, a float; write a text"),
        (
            lambda llm: llm.generate({"prompt_token_ids": "12"}),
            "a prompt is .*'12'.*; write a text, a list of token ids",
        ),
        (lambda llm: llm.generate([{"text": "x"}]), "the prompt has 'text', which is not supported"),
        (lambda llm: llm.generate("x", lora_request="mine"), "LoRA adapters are not built yet"),
        (lambda llm: llm.chat("hello"), r"messages is 'hello'; write \[{'role': 'user', 'content': 'Hello'}\]"),
        (lambda llm: llm.chat(["hello"]), "messages has 'hello' for a conversation"),
        (lambda llm: llm.chat([{"content": "hello"}]), "a message is .*, without a role"),
        (
            lambda llm: llm.chat([{"role": "user", "content": [5]}]),
            r"messages\[0\].content has 5 for a part; write a text",
        ),
        (lambda llm: llm.chat([{"role": "user", "content": b"a"}]), r"messages\[0\].content is b'a'; decode it"),
        (lambda llm: llm.chat([{"role": "user", "content": "a"}], {"n": 1}), "a dict; write SamplingParams"),
        (lambda llm: llm.embed("x"), "load it with runner='pooling'"),
        (lambda llm: llm.beam_search(["x"], GREEDY), "write BeamSearchParams"),
    ],
)
def test_wrong_arguments_are_told_at_once_with_the_remedy(llm: LLM, call: Any, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        call(llm)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"temperature": -1}, "temperature is -1; it must be between 0.0"),
        ({"temperature": "hot"}, "temperature is 'hot': Expected `float`, got `str`"),
        ({"top_p": 0}, "top_p is 0; it must be above 0"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
        ({"n": 2, "temperature": 0}, "n is 2 with temperature 0"),
        ({"stop": ["a", ""]}, "stop has an empty text"),
        ({"stop": 5}, "stop is 5: Expected `str | array | null`, got `int`"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias is {'5': 1.0}: Expected `int`, got `str`"),
    ],
)
def test_sampling_params_are_checked_where_they_are_made(given: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        SamplingParams(**given)

    assert str(found.value).startswith(match)


def test_sampling_params_may_be_numpys_numbers_and_any_sequence(llm: LLM) -> None:
    params: dict[str, Any] = {"max_tokens": np.int64(3), "temperature": np.float32(0), "stop_token_ids": (5,)}

    (output,) = llm.generate("a", SamplingParams(ignore_eos=True, **params), use_tqdm=False)

    assert len(ids(output)) <= 3
    as_array: Any = [np.array(output.prompt_token_ids)]
    (same,) = llm.generate(as_array, SamplingParams(ignore_eos=True, **params), use_tqdm=False)
    assert ids(same) == ids(output)


@pytest.fixture
async def engine() -> AsyncIterator[AsyncLLMEngine]:
    one = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="", **SMALL))
    yield one
    one.shutdown()
    assert not one.is_running


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    found = [output async for output in outputs]
    assert [output.finished for output in found] == [False] * (len(found) - 1) + [True]
    return found[-1]


async def test_many_coroutines_are_answered_together(engine: AsyncLLMEngine, llm: LLM) -> None:
    prompts = [f"Prompt {number}" for number in range(12)]
    alone = [ids(output) for output in llm.generate(prompts, GREEDY, use_tqdm=False)]

    outputs = await asyncio.gather(*(last(engine.generate(prompt, GREEDY, prompt)) for prompt in prompts))

    assert [ids(output) for output in outputs] == alone
    assert [output.request_id for output in outputs] == prompts
    assert engine.is_running
    assert engine.get_tokenizer().encode("A lake") == llm.get_tokenizer().encode("A lake")
    assert await engine.get_default_sampling_params() == llm.get_default_sampling_params()


async def test_a_request_can_be_aborted_refused_and_left(engine: AsyncLLMEngine) -> None:
    stream = engine.generate("a", ENDLESS, "mine")
    await anext(stream)
    with pytest.raises(InvalidRequest, match="request_id 'mine' is in use"):
        await anext(engine.generate("b", GREEDY, "mine"))
    with pytest.raises(InvalidRequest, match="prompt has 300 tokens"):
        await anext(engine.generate([5] * 300, GREEDY))

    await engine.abort("mine")

    assert (await last(stream)).outputs[0].finish_reason == "abort"
    async for _ in (left := engine.generate("c", ENDLESS, "left")):
        break
    await left.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert len(ids(await last(engine.generate("d", GREEDY)))) == 40
    assert not engine._open


async def test_shutdown_ends_waiting_requests() -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**SMALL))
    stream = engine.generate("a", ENDLESS)
    await anext(stream)

    await asyncio.to_thread(engine.shutdown)

    with pytest.raises(EngineUnavailable, match="shut down"):
        await last(stream)
    with pytest.raises(EngineUnavailable, match="closed"):
        await anext(engine.generate("a", GREEDY))


async def test_a_profile_is_recorded_while_requests_run(tmp_path: Path) -> None:
    asked = {"profiler": "torch", "torch_profiler_dir": str(tmp_path)}
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(profiler_config=asked, **SMALL))
    stream = engine.generate("A glacier is", ENDLESS)
    await anext(stream)

    await engine.start_profile()
    await last(stream)
    await engine.stop_profile()

    engine.shutdown()
    [file] = tmp_path.iterdir()
    assert sum(event["name"] == "step" for event in json.loads(file.read_text())) > 10


def test_weights_of_a_torch_file_answer_as_those_of_safetensors(llm: LLM, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    weights = {}
    for path in DEMO_MODEL.iterdir():
        if path.suffix == ".safetensors":
            weights |= load_file(path)
        elif path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save(weights, tmp_path / "pytorch_model.bin")

    with LLM(model=str(tmp_path), **SMALL) as other:  # type: ignore[arg-type]
        [answer] = other.generate("A glacier is", GREEDY, use_tqdm=False)

    [expected] = llm.generate("A glacier is", GREEDY, use_tqdm=False)
    assert ids(answer) == ids(expected)
