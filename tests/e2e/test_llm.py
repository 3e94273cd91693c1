"""The offline API on the demo model."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from forearm import LLM, SamplingParams
from forearm.errors import ConfigError, EngineFailed, InvalidRequest

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
QUESTION = [{"role": "user", "content": "What is a glacier?"}]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_model_len=256, max_num_seqs=16, enforce_eager=True, tensor_parallel_size=1, quantization=None)


def test_answers_come_in_the_order_of_the_prompts_with_all_their_fields(llm: LLM) -> None:
    prompts = ["A glacier is", "The river", "Hello"]

    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)

    assert [output.prompt for output in outputs] == prompts
    assert len({output.request_id for output in outputs}) == 3
    for output in outputs:
        (answer,) = output.outputs
        assert output.finished
        assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt)
        assert (answer.index, len(answer.token_ids), answer.finish_reason) == (0, 12, "length")
        assert answer.text == llm.get_tokenizer().decode(answer.token_ids, skip_special_tokens=True)
        assert answer.logprobs is None
        assert answer.cumulative_logprob is None
        assert output.metrics.first_token_time is not None
        assert output.metrics.finished_time is not None
        assert output.metrics.arrival_time <= output.metrics.first_token_time <= output.metrics.finished_time


def test_a_prompt_may_be_text_or_token_ids_alone_or_in_a_dict(llm: LLM) -> None:
    text = "A glacier is"
    ids = llm.get_tokenizer().encode(text)

    forms = [text, ids, {"prompt": text}, {"prompt_token_ids": ids}]
    together = llm.generate([*forms], GREEDY, use_tqdm=False)
    alone = [llm.generate(form, GREEDY, use_tqdm=False)[0] for form in forms]

    answers = {tuple(output.outputs[0].token_ids) for output in (*together, *alone)}
    assert len(answers) == 1


def test_each_prompt_can_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 5, 3)]

    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)

    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(InvalidRequest, match="2 sampling_params for 3 prompts"):
        llm.generate(["a", "b", "c"], params[:2], use_tqdm=False)


def test_sampling_params_may_be_set_later_and_are_checked_by_the_call(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.temperature, params.max_tokens, params.ignore_eos = 0.0, 3, True
    kept = params.clone()
    lazy = llm.generate("A glacier is", params, stream=True)
    params.max_tokens = 5

    (output,) = llm.generate("A glacier is", params, use_tqdm=False)

    assert len(output.outputs[0].token_ids) == 5
    assert [len(grown.outputs[0].token_ids) for grown in lazy][-1] == kept.max_tokens == 3
    params.top_p = 1.5
    with pytest.raises(InvalidRequest, match=r"top_p is 1\.5"):
        llm.generate("A glacier is", params, use_tqdm=False)
    params.top_p, params.max_tokens = 1.0, "many"  # type: ignore[assignment]
    with pytest.raises(InvalidRequest, match="max_tokens is 'many'"):
        llm.generate(["A", "B"], [kept, params], use_tqdm=False)
    with pytest.raises(AttributeError):
        params.top_o = 0.5  # type: ignore[attr-defined]


def test_a_stop_string_ends_the_answer_and_is_not_in_it(llm: LLM) -> None:
    (whole,) = llm.generate("A glacier is", GREEDY, use_tqdm=False)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 :][:3]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=[stop])
    kept = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=stop, include_stop_str_in_output=True)

    (cut,) = llm.generate("A glacier is", params, use_tqdm=False)
    (included,) = llm.generate("A glacier is", kept, use_tqdm=False)

    answer = cut.outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.text == text[: text.index(stop)]
    assert included.outputs[0].text == answer.text + stop


def test_outputs_of_one_prompt_are_seeded_apart_and_repeat(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=10, ignore_eos=True)

    first, again = (llm.generate("Hello", params, use_tqdm=False)[0].outputs for _ in range(2))

    assert [answer.index for answer in first] == [0, 1, 2]
    assert [answer.token_ids for answer in first] == [answer.token_ids for answer in again]
    assert len({tuple(answer.token_ids) for answer in first}) == 3


def test_log_probabilities_have_the_chosen_token_and_the_alternatives(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=1)

    (output,) = llm.generate("A glacier is", params, use_tqdm=False)

    (answer,) = output.outputs
    assert answer.logprobs is not None
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token_id, candidates in zip(answer.token_ids, answer.logprobs, strict=True):
        assert candidates[token_id].rank == 1  # greedy
        assert len(candidates) == 2
        assert candidates[token_id].decoded_token is not None
    chosen = [
        candidates[token_id].logprob for token_id, candidates in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    assert answer.cumulative_logprob == pytest.approx(sum(chosen))
    for token_id, scored in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert scored is not None
        assert math.isfinite(scored[token_id].logprob)


def test_a_chat_is_the_template_and_then_generate(llm: LLM) -> None:
    (chat,) = llm.chat(QUESTION, GREEDY, use_tqdm=False)
    two = llm.chat([QUESTION, QUESTION], GREEDY, use_tqdm=False)
    prompt = llm.get_tokenizer().apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)

    (generated,) = llm.generate({"prompt_token_ids": chat.prompt_token_ids}, GREEDY, use_tqdm=False)

    assert chat.prompt == prompt
    answers = [output.outputs[0].token_ids for output in (chat, *two, generated)]
    assert answers == [answers[0]] * 4


CALLS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content.strip() }}"
    "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments.city }}{% endfor %}\n{% endfor %}"
)


def test_calls_made_earlier_are_given_as_the_template_takes_them(llm: LLM) -> None:
    """Calls without content and with arguments as JSON text suit templates that look into both, as in the API."""
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]

    (chat,) = llm.chat(messages, GREEDY, use_tqdm=False, chat_template=CALLS)

    assert chat.prompt is not None
    assert chat.prompt.endswith("assistant: weather Oslo")


def test_a_template_without_tools_is_told_of_them_by_a_message(llm: LLM) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}

    (chat,) = llm.chat(QUESTION, GREEDY, use_tqdm=False, tools=[tool], chat_template="{{ messages[0].content }}")

    assert chat.prompt is not None
    assert '"name": "weather"' in chat.prompt


def test_a_template_gets_contents_in_the_form_that_is_asked_for(llm: LLM) -> None:
    asked = partial(llm.chat, QUESTION, GREEDY, use_tqdm=False, chat_template="{{ messages[0].content }}")

    (text,), (parts,) = asked(chat_template_content_format="string"), asked(chat_template_content_format="openai")

    assert text.prompt == asked()[0].prompt == QUESTION[0]["content"]
    assert parts.prompt == str([{"type": "text", "text": QUESTION[0]["content"]}])
    with pytest.raises(InvalidRequest, match="chat_template_content_format is 'parts': write auto, string or openai"):
        asked(chat_template_content_format="parts")


def test_without_parameters_the_models_own_advice_is_taken(llm: LLM) -> None:
    default = llm.get_default_sampling_params()

    (output,) = llm.chat(QUESTION, use_tqdm=False)

    assert default.max_tokens is not None
    neutral = LLM(max_model_len=64, max_num_seqs=1, generation_config="vllm", override_generation_config={"top_k": 3})
    assert neutral.get_default_sampling_params() == SamplingParams(top_k=3)
    assert 0 < len(output.outputs[0].token_ids) <= default.max_tokens


def test_a_refused_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="prompt has 300 tokens; the context is 256"):
        llm.generate([[5, 6], [5] * 300], GREEDY, use_tqdm=False)

    (output,) = llm.generate("Hello", GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 12


def test_a_bad_word_is_not_generated(llm: LLM) -> None:
    (free,) = llm.generate("A glacier is", GREEDY, use_tqdm=False)
    word = free.outputs[0].text.split()[0]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, bad_words=[word])

    (output,) = llm.generate("A glacier is", params, use_tqdm=False)

    assert word not in output.outputs[0].text.split()


def test_the_progress_bars_are_vllms(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)

    shown = capfd.readouterr().err
    assert "Adding requests: 100%" in shown
    assert "Processed prompts: 100%" in shown
    assert "est. speed input: " in shown
    assert " toks/s, output: " in shown


def test_ranks_change_no_token(llm: LLM) -> None:
    prompts = ["A glacier is", "A long river that " * 20, "Hello"]
    sampled = SamplingParams(max_tokens=12, seed=3, ignore_eos=True, logprobs=1)
    two = LLM(max_model_len=256, max_num_seqs=16, tensor_parallel_size=2, distributed_executor_backend="mp")

    for params in (GREEDY, sampled):
        one = llm.generate(prompts, params, use_tqdm=False)
        again = two.generate(prompts, params, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in again] == [output.outputs[0].token_ids for output in one]
        assert [output.outputs[0].logprobs for output in again] == [output.outputs[0].logprobs for output in one]


def test_embeddings_of_a_prompt_are_refused_by_name(llm: LLM) -> None:
    """A tensor is neither true nor false: what is no prompt was looked for by its truth."""
    with pytest.raises(InvalidRequest, match="'prompt_embeds', which is not supported; write a text"):
        llm.generate({"prompt_embeds": np.zeros((3, 4), np.float32)}, GREEDY, use_tqdm=False)


def test_arguments_that_cannot_be_served_are_refused_and_unknown_ones_are_an_error() -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size: 64 ranks need a core each"):
        LLM(tensor_parallel_size=64)
    with pytest.raises(ConfigError, match="--tensor-parallel-size 65: it must be from 1 to 64"):
        LLM(tensor_parallel_size=65)
    with pytest.raises(ConfigError, match="--max-model-len -5: it must be at least 1"):
        LLM(max_model_len=-5)
    with pytest.raises(ConfigError, match="tokenizer '/nowhere': there is no such folder"):
        LLM(tokenizer="/nowhere")
    with pytest.raises(ConfigError, match="LoRA adapters are not built yet"):
        LLM(enable_lora=True)
    with pytest.raises(ConfigError, match=r"logits_processors=.*use logit_bias, allowed_token_ids, bad_words"):
        LLM(logits_processors=[dict])
    with pytest.raises(ConfigError, match="skip_tokenizer_init=True: it is not built yet"):
        LLM(skip_tokenizer_init=True)
    with pytest.raises(TypeError, match="no_such_argument"):
        LLM(no_such_argument=1)


def test_a_profile_has_the_steps_between_its_start_and_its_stop(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="--profiler-config"):
        llm.start_profile()
    asked = {"profiler": "torch", "torch_profiler_dir": str(tmp_path)}
    with LLM(max_model_len=256, max_num_seqs=4, profiler_config=asked) as profiled:
        profiled.generate("A glacier is", GREEDY, use_tqdm=False)
        profiled.start_profile()
        profiled.generate("A glacier is", GREEDY, use_tqdm=False)
        profiled.stop_profile()

    [file] = tmp_path.iterdir()
    steps = [event for event in json.loads(file.read_text()) if event["name"] == "step"]
    assert [step["args"]["prompt_tokens"] > 0 for step in steps] == [True] + [False] * 11
