"""Structured output through the whole engine: every text validates, whatever the weights; cut by max_tokens alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from safetensors.numpy import save_file
from tests.e2e.served import Served, series, serve
from tests.json_schemas import HARD, schemas

from forearm import LLM, SamplingParams, StructuredOutputsParams
from forearm.engine.executor import NativeExecutor
from forearm.errors import ConfigError, InvalidRequest
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.offline.outputs import CompletionOutput
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "What is a glacier?"


def write_random_model(folder: Path) -> Path:
    """The demo model's tokenizer and shapes, two layers, weights at random: it has no idea of JSON."""
    config = json.loads((DEMO_MODEL / "config.json").read_text()) | {"num_hidden_layers": 2, "torch_dtype": "float32"}
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner, head, kv = config["hidden_size"], config["intermediate_size"], 64, 2 * 64
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        for name, rows in (("q", 4 * head), ("k", kv), ("v", kv)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, 4 * head)
        shapes[f"{at}mlp.gate_proj.weight"] = shapes[f"{at}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, inner)
    rng = np.random.default_rng(3)
    tensors = {name: rng.normal(0, 0.08, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = ["model.norm"] + [f"model.layers.{i}.{n}_layernorm" for i in range(2) for n in ("input", "post_attention")]
    tensors |= {f"{name}.weight": np.ones(hidden, np.float32) for name in norms}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=["the demo model", "random weights"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    demo = request.param == "the demo model"
    folder = DEMO_MODEL if demo else write_random_model(tmp_path_factory.mktemp("random"))
    return LLM(folder, max_model_len=512, max_num_seqs=16, kv_cache_memory_bytes=64 << 20)


@pytest.mark.parametrize("threads", [1, None])
def test_masks_have_a_thread_of_their_own_where_a_cpu_is_left_to_them(threads: int | None) -> None:
    cpus, before = len(os.sched_getaffinity(0)), masking()

    llm = LLM(DEMO_MODEL, max_model_len=256, max_num_seqs=4, kv_cache_memory_bytes=64 << 20, omp_num_threads=threads)

    executor = llm._loop._stepper.executor
    assert isinstance(executor, NativeExecutor)
    assert len(masking() - before) == (cpus > executor.native.threads)


def masking() -> set[threading.Thread]:
    """Threads of this process that work out masks."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("masks")}


def generate(llm: LLM, asked: list[StructuredOutputsParams], seed: int = 0, **params: Any) -> list[CompletionOutput]:
    """One output of each, all at a time, at temperature 1."""
    every = [
        SamplingParams(**{"temperature": 1.0, "max_tokens": 150, "seed": seed + i, **params}, structured_outputs=one)
        for i, one in enumerate(asked)
    ]
    return [found.outputs[0] for found in llm.generate([PROMPT] * len(asked), every, use_tqdm=False)]


def check(output: CompletionOutput, schema: Any) -> bool:
    """Validate a complete answer; return whether it is one. Raises: AssertionError, ValidationError, ValueError."""
    if output.finish_reason == "length":
        return False
    assert output.finish_reason == "stop"
    jsonschema.Draft202012Validator(schema).validate(json.loads(output.text))
    return True


def supported(llm: LLM, schema: Any) -> bool:
    try:
        llm._params(SamplingParams(structured_outputs=StructuredOutputsParams(json=schema)), 1)
    except InvalidRequest:
        return False
    return True


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(schemas, min_size=16, max_size=16), seed=st.integers(0, 1 << 32))
def test_texts_of_random_schemas_validate(llm: LLM, batch: list[Any], seed: int) -> None:
    fit = [schema for schema in batch if supported(llm, schema)]

    outputs = generate(llm, [StructuredOutputsParams(json=schema) for schema in fit], seed)

    for output, schema in zip(outputs, fit, strict=True):
        check(output, schema)


def test_texts_of_hard_schemas_validate(llm: LLM) -> None:
    repeated = [schema for schema in HARD.values() for _ in range(3)]

    outputs = generate(llm, [StructuredOutputsParams(json=schema) for schema in repeated])

    assert sum([check(output, schema) for output, schema in zip(outputs, repeated, strict=True)]) > len(repeated) / 3


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}])
@pytest.mark.parametrize("penalty", [{}, {"repetition_penalty": 1.3, "frequency_penalty": 0.5}])
def test_it_holds_for_every_way_to_choose(llm: LLM, params: dict[str, Any], penalty: dict[str, Any]) -> None:
    asked = [StructuredOutputsParams(json=PERSON, disable_any_whitespace=True)] * 4

    outputs = generate(llm, asked, **params, **penalty)

    for output in outputs:
        assert check(output, PERSON)


def test_white_space_may_be_ruled_out_for_all_calls_of_an_llm(tmp_path: Path) -> None:
    asked = [StructuredOutputsParams(json=PERSON)] * 8
    with LLM(
        write_random_model(tmp_path), max_model_len=512, structured_outputs_config={"disable_any_whitespace": True}
    ) as llm:
        texts = [output.text for output in generate(llm, asked)]

    between = [re.sub(r'"(\\.|[^"\\])*"', "", text) for text in texts]
    assert not any(re.search(r"\s", text) for text in between)
    with pytest.raises(ConfigError, match="structured_outputs_config: no_such is 1; write disable_any_whitespace"):
        LLM(tmp_path, structured_outputs_config={"no_such": 1})


def test_regular_expressions_choices_and_grammars_hold(llm: LLM) -> None:
    choices = ["yes", "yes please", "no", "ø 😀", '"']
    asked = [
        *[StructuredOutputsParams(regex=r"[A-F]{2,5}-\d{3}")] * 6,
        *[StructuredOutputsParams(choice=choices)] * 6,
        *[StructuredOutputsParams(grammar='root ::= "(" [0-9]{1,3} ("," [0-9]{1,3}){0,3} ")"')] * 6,
        *[StructuredOutputsParams(json_object=True)] * 6,
    ]

    outputs = generate(llm, asked)

    assert all(output.finish_reason == "stop" for output in outputs[:18])
    assert all(re.fullmatch(r"[A-F]{2,5}-\d{3}", output.text) for output in outputs[:6])
    assert {output.text for output in outputs[6:12]} <= set(choices)
    assert all(re.fullmatch(r"\(\d{1,3}(,\d{1,3}){0,3}\)", output.text) for output in outputs[12:18])
    for output in outputs[18:]:
        check(output, {"type": "object"})


def test_outputs_of_one_request_follow_the_grammar_each_for_itself(llm: LLM) -> None:
    asked = StructuredOutputsParams(regex="[a-z]{3,6}")

    (found,) = llm.generate(
        PROMPT, SamplingParams(n=6, seed=5, max_tokens=20, structured_outputs=asked), use_tqdm=False
    )

    texts = [output.text for output in found.outputs]
    assert all(re.fullmatch("[a-z]{3,6}", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_stop_string_may_end_it_earlier(llm: LLM) -> None:
    asked = [StructuredOutputsParams(regex="(ab){1,20}X[0-9]{3}")] * 3

    outputs = generate(llm, asked, stop=["X"])

    for output in outputs:
        assert re.fullmatch("(ab){1,20}", output.text)
        assert (output.finish_reason, output.stop_reason) == ("stop", "X")


def test_neither_ignore_eos_nor_min_tokens_goes_past_the_end_of_the_grammar(llm: LLM) -> None:
    asked = [StructuredOutputsParams(regex="[a-c]{4}")] * 2

    for params in ({"ignore_eos": True}, {"min_tokens": 30, "max_tokens": 40}):
        for output in generate(llm, asked, **params):
            assert re.fullmatch("[a-c]{4}", output.text)
            assert output.finish_reason == "stop"


def test_same_request_same_tokens_whatever_else_is_in_the_batch(llm: LLM) -> None:
    asked = [StructuredOutputsParams(json=PERSON), StructuredOutputsParams(regex="[a-z]{9}")]
    others = [StructuredOutputsParams(json=schema) for schema in list(HARD.values())[:8]]

    alone = [generate(llm, [one], seed=i)[0].token_ids for i, one in enumerate(asked)]
    together = [output.token_ids for output in generate(llm, [*asked, *others])[:2]]

    assert together == alone


def test_other_constraints_hold_as_well(llm: LLM) -> None:
    asked = [StructuredOutputsParams(regex="[a-c]{4}")] * 4
    b = llm.get_tokenizer().encode("b", add_special_tokens=False)

    outputs = generate(llm, asked, logit_bias={b[0]: -100.0}, bad_words=["b", "ab", "bc", "bb", "ba", "cb"], logprobs=2)

    for output in outputs:
        assert re.fullmatch("[a-c]{4}", output.text)
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)


def test_what_leaves_no_token_ends_that_request_alone(llm: LLM) -> None:
    impossible = SamplingParams(
        max_tokens=9, allowed_token_ids=[50], structured_outputs=StructuredOutputsParams(regex="[0-9]{3}")
    )
    fine = SamplingParams(max_tokens=9, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}"))

    first, second = llm.generate([PROMPT] * 2, [impossible, fine], use_tqdm=False)

    assert first.outputs[0].finish_reason == "error"
    assert re.fullmatch("[0-9]{3}", second.outputs[0].text)
    assert re.fullmatch("[0-9]{3}", llm.generate(PROMPT, fine, use_tqdm=False)[0].outputs[0].text)


def test_what_cannot_be_imposed_is_refused_before_anything_is_generated(llm: LLM) -> None:
    good = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a"]))
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json={"not": {}}))

    with pytest.raises(InvalidRequest, match="'not'") as caught:
        llm.generate([PROMPT] * 2, [good, bad], use_tqdm=False)
    assert caught.value.param == "structured_outputs"


def test_a_chat_follows_it(llm: LLM) -> None:
    if llm._template is None:
        pytest.skip("the random model has no chat template")
    asked = StructuredOutputsParams(json=PERSON, disable_any_whitespace=True)
    params = SamplingParams(max_tokens=80, seed=2, structured_outputs=asked)

    (found,) = llm.chat([{"role": "user", "content": PROMPT}], params, use_tqdm=False)

    assert check(found.outputs[0], PERSON)


def test_a_grammar_may_begin_after_reasoning(llm: LLM) -> None:
    """Here whatever comes before the first full stop is the reasoning."""
    (stop,) = llm.get_tokenizer().encode(".", add_special_tokens=False)
    grammar = grammar_of(ConstraintRequest("json", PERSON, "f", any_whitespace=False), {})
    budget = {"thinking_token_budget": 30, "thinking_end": (stop,), "logit_bias": {0: -100.0, 2: -100.0}}
    params = SamplingParams(max_tokens=200, seed=1, grammar=grammar, grammar_after=(stop,), **budget)  # type: ignore[arg-type]

    for found in llm.generate([PROMPT] * 6, params, use_tqdm=False):
        ids = found.outputs[0].token_ids
        thought = ids.index(stop) + 1

        assert thought <= 31
        answer = str(llm.get_tokenizer().decode(ids[thought:], skip_special_tokens=True))
        jsonschema.validate(json.loads(answer), PERSON)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--served-model-name", "demo", "--generation-config", "vllm", "--api-server-count", "2")
    with serve(tmp_path_factory.mktemp("structured"), *flags) as running:
        yield running


class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=150)]
    pet: Literal["cat", "dog"] | None


def test_the_openai_client_parses_answers_into_a_model(served: Served) -> None:
    for seed in range(5):
        reply = served.openai.chat.completions.parse(
            model="demo", messages=[{"role": "user", "content": PROMPT}], response_format=Person, seed=seed
        )

        assert isinstance(reply.choices[0].message.parsed, Person)
        assert reply.choices[0].finish_reason == "stop"


def test_a_stream_adds_up_to_what_fits(served: Served) -> None:
    chunks = served.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": PROMPT}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        stream=True,
    )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    jsonschema.validate(json.loads(text), PERSON)


def test_many_at_a_time_each_follow_their_own(served: Served) -> None:
    def ask(number: int) -> bool:
        lengths = f"{{{number % 5 + 1}}}"
        fields: dict[str, Any] = {"structured_outputs": {"regex": f"[a-f]{lengths}=[0-9]{lengths}"}, "max_tokens": 40}
        reply = served.http.post("/v1/completions", json={"prompt": PROMPT, "seed": number, **fields})
        text = reply.json()["choices"][0]["text"]
        return re.fullmatch(fields["structured_outputs"]["regex"], text) is not None

    with ThreadPoolExecutor(12) as threads:
        assert all(threads.map(ask, range(36)))


def test_structural_tags_hold_within_running_text(served: Served) -> None:
    """A bias has the model write the trigger at once; what follows it is imposed."""
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<"],
            "tags": [
                {"begin": "<call f>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</call>"}
            ],
            "at_least_one": True,
            "stop_after_first": True,
        },
    }
    trigger = served.http.post("/tokenize", json={"prompt": "<"}).json()["tokens"]
    bias = dict.fromkeys(trigger, 100.0)

    reply = served.chat(response_format=tag, max_tokens=300, temperature=0, logit_bias=bias)

    found = re.fullmatch(r"(?s)<call f>(.*?)</call>", reply.json()["choices"][0]["message"]["content"])
    assert found is not None, reply.text
    jsonschema.validate(json.loads(found[1]), PERSON)


def test_a_heavy_format_is_refused_while_others_are_answered(served: Served) -> None:
    heavy = {"type": "object", "properties": {f"property {number}": {"type": "string"} for number in range(3000)}}

    reply = served.chat(guided_json=heavy)

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "guided_json"
    assert served.chat(guided_choice=["a"]).json()["choices"][0]["message"]["content"] == "a"


# Its automaton has states without end: some hundred tokens in, a limit of the parser is met.
_HOSTILE = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^(.{1,50}a){1,50}$"}},
    "required": ["a"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": _HOSTILE}}
_MESSAGES = [{"role": "user", "content": PROMPT}]
_HOSTILE_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "response_format": _FORMAT, "max_tokens": 1500},
    "/v1/chat/completions": {"messages": _MESSAGES, "response_format": _FORMAT, "max_tokens": 1500},
    "/v1/responses": {"input": PROMPT, "text": {"format": {"name": "a", "schema": _HOSTILE, "type": "json_schema"}}},
    "/v1/messages": {
        "messages": _MESSAGES,
        "max_tokens": 1500,
        "output_config": {"format": {"type": "json_schema", "schema": _HOSTILE}},
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", _HOSTILE_BODIES)
def test_a_form_that_grows_too_complex_is_the_clients_error(served: Served, path: str, stream: bool) -> None:
    body = {"model": "demo", "stream": stream, "seed": 1, **_HOSTILE_BODIES[path]}

    reply = served.http.post(path, json=body)

    assert "too complex to go on with" in reply.text, reply.text[-600:]
    assert "InternalServerError" not in reply.text
    assert "api_error" not in reply.text
    assert "server_error" not in reply.text
    assert reply.status_code == (200 if stream else 400)
    counted = series(served.http.get("/metrics").text)
    assert not any(value for name, value in counted.items() if name.startswith("vllm:corrupted_requests_total"))


_UNIQUE = {
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True, "maxItems": 3}},
    "required": ["a"],
}
_FORM: dict[str, Any] = {"type": "json_schema", "schema": _UNIQUE}
_WARNED_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "response_format": _FORM, "max_tokens": 9},
    "/v1/chat/completions": {"messages": _MESSAGES, "response_format": _FORM, "max_tokens": 9},
    "/v1/responses": {"input": PROMPT, "text": {"format": {"name": "a", **_FORM}}, "max_output_tokens": 16},
    "/v1/messages": {"messages": _MESSAGES, "max_tokens": 9, "output_config": {"format": _FORM}},
}


@pytest.mark.parametrize("path", _WARNED_BODIES)
def test_what_is_not_imposed_is_told_in_the_answer(served: Served, path: str) -> None:
    body = {"model": "demo", **_WARNED_BODIES[path]}

    whole = served.http.post(path, json=body)
    stream = served.http.post(path, json={**body, "stream": True}).text

    [warning] = whole.json()["warnings"]
    assert "properties/a: uniqueItems is not imposed" in warning
    assert json.dumps(warning) in stream
