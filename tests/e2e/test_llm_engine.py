"""LLMEngine, whose caller takes the steps, and LLM.get_metrics, on the demo model."""

from __future__ import annotations

import pytest

from forearm import LLM, EngineArgs, LLMEngine, RequestOutputKind, SamplingParams
from forearm.errors import InvalidRequest
from forearm.offline.metric_values import CounterValue, GaugeValue, HistogramValue, VectorValue
from forearm.offline.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> LLMEngine:
    return LLMEngine.from_engine_args(EngineArgs(max_model_len=128, max_num_seqs=4, enforce_eager=True))


def finish(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_steps_yield_what_has_grown_and_the_answers_are_those_of_generate(engine: LLMEngine) -> None:
    [alone] = LLM(max_model_len=128).generate("A glacier is", GREEDY, use_tqdm=False)

    assert engine.step() == []
    assert engine.add_request("1", "A glacier is", GREEDY) == "1"
    first = engine.step()
    engine.add_request("2", {"prompt_token_ids": alone.prompt_token_ids}, GREEDY)
    assert engine.get_num_unfinished_requests() == 2
    outputs = first + finish(engine)

    grown = [len(one.outputs[0].token_ids) for one in outputs if one.request_id == "1"]
    assert grown == [1, 2, 3, 4, 5, 6]
    ended = {one.request_id: one.outputs[0].text for one in outputs if one.finished}
    assert ended == dict.fromkeys("12", alone.outputs[0].text)


def test_final_outputs_alone(engine: LLMEngine) -> None:
    final = SamplingParams(n=2, max_tokens=4, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    engine.add_request("1", "A river", final)

    [output] = finish(engine)

    assert [len(one.token_ids) for one in output.outputs] == [4, 4]


def test_an_aborted_request_is_over(engine: LLMEngine) -> None:
    engine.add_request("1", "A river", SamplingParams(max_tokens=100, ignore_eos=True))
    engine.step()
    engine.abort_request(["1", "unknown"])

    assert not engine.has_unfinished_requests()
    engine.add_request("1", "A river", GREEDY)
    assert len(finish(engine)) == 6


def test_a_refused_request_leaves_the_others(engine: LLMEngine) -> None:
    engine.add_request("1", "A river", GREEDY)
    with pytest.raises(InvalidRequest, match="'1' is in use"):
        engine.add_request("1", "A river", GREEDY)
    engine.add_request("2", "river " * 500, GREEDY)

    with pytest.raises(InvalidRequest, match="128"):
        finish(engine)

    assert finish(engine)[-1].request_id == "1"


def test_metrics_are_values_by_vllms_names() -> None:
    llm = LLM(max_model_len=128, speculative_config={"method": "ngram"})
    llm.generate(["A glacier is", "A river"], GREEDY, use_tqdm=False)

    by_name = {one.name: one for one in llm.get_metrics()}

    assert by_name["vllm:generation_tokens"] == CounterValue(
        "vllm:generation_tokens", by_name["vllm:generation_tokens"].labels, 12
    )
    assert isinstance(by_name["vllm:kv_cache_usage_perc"], GaugeValue)
    latency = by_name["vllm:e2e_request_latency_seconds"]
    assert isinstance(latency, HistogramValue)
    assert latency.count == latency.buckets["+Inf"] == 2
    assert latency.sum > 0
    drafts = by_name["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(drafts, VectorValue)
    assert drafts.values
    assert set(drafts.labels) == {"model_name", "engine"}
    assert {name.partition(":")[0] for name in by_name} == {"vllm", "forearm"}
