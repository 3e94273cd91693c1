from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.text.spoken import SPOKEN as OTHERS
from tests.unit.text.spoken import TOOLS, Spoken
from tests.unit.text.spoken_dsml import DSML
from tests.unit.text.spoken_inkling import INKLING
from tests.unit.text.spoken_others import MORE
from tests.unit.text.spoken_tagged import TAGGED

from forearm.config.api_config import REASONING_PARSERS, TOOL_CALL_PARSERS
from forearm.text import tool_parsers
from forearm.text.tool_parsers import reasoning
from forearm.text.tool_parsers.output_parser import Dialect, OutputParser, ParserOptions, find_dialect
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart, joined

SPOKEN = [*OTHERS, *TAGGED, *DSML, *INKLING, *MORE]


def reader(spoken: Spoken) -> OutputParser:
    dialect = find_dialect("", spoken.format, spoken.reasoning_format)
    return OutputParser(dialect, ParserOptions(calls="auto", tools=TOOLS, opened=spoken.opened))


def read(spoken: Spoken, pieces: Iterable[str]) -> list[AnswerPart]:
    one = reader(spoken)
    parts: list[AnswerPart] = []
    for piece in pieces:
        parts += one.add(piece, [0])
    return joined([*parts, *one.finish()])


def without_ids(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    return [CallBegin(part.index, "", part.name) if isinstance(part, CallBegin) else part for part in parts]


def text_of(parts: Sequence[AnswerPart], kind: type[TextPart] | type[ReasoningPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def calls_of(parts: Sequence[AnswerPart]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(found)
            found.append((part.name, ""))
        elif isinstance(part, CallArguments):
            found[part.index] = (found[part.index][0], found[part.index][1] + part.text)
    return found


def meant(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def named(spoken: Spoken) -> str:
    return f"{spoken.format}-{spoken.reasoning_format}-{spoken.name}"


@pytest.mark.parametrize("spoken", SPOKEN, ids=named)
def test_a_text_says_what_its_format_means(spoken: Spoken) -> None:
    parts = read(spoken, [spoken.text])

    assert [(name, meant(text)) for name, text in calls_of(parts)] == [(n, meant(text)) for n, text in spoken.calls]
    assert text_of(parts, TextPart) == spoken.content
    assert text_of(parts, ReasoningPart) == spoken.reasoning


@pytest.mark.parametrize("spoken", SPOKEN, ids=named)
def test_where_a_text_is_cut_changes_nothing(spoken: Spoken) -> None:
    whole = without_ids(read(spoken, [spoken.text]))

    for cut in range(len(spoken.text) + 1):
        assert without_ids(read(spoken, [spoken.text[:cut], spoken.text[cut:]])) == whole, spoken.text[:cut]
    assert without_ids(read(spoken, spoken.text)) == whole


def test_every_format_is_spoken_and_can_be_named() -> None:
    assert {spoken.format for spoken in SPOKEN} - {"none"} == set(tool_parsers.FORMATS) == set(TOOL_CALL_PARSERS)
    spoken = {spoken.reasoning_format for spoken in SPOKEN} - {"none"} | {"openai_gptoss"}
    assert spoken == set(reasoning.FORMATS) == set(REASONING_PARSERS)


# The names in vLLM 0.33's tool_parsers/__init__.py and reasoning/__init__.py, and those that forearm does not know.
VLLM_TOOLS = (
    "apertus beam cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots "
    "ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf hunyuan_a13b hy_v3 "
    "hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic "
    "longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse muse_glimmer musespark1x olmo3 openai phi4_mini_json "
    "plamo3 poolside_v1 pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 step5 xlam"
)
VLLM_REASONING = (
    "beam cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45 glm47 "
    "granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3 ling3 mimo "
    "minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse muse_glimmer musespark1x nemotron_v3 olmo3 "
    "openai_gptoss plamo3 poolside_v1 qwen3 seed_oss step3 step3p5 step5"
)
UNKNOWN = {"beam", "hf", "muse", "muse_glimmer", "musespark1x"}


@pytest.mark.parametrize(("names", "known"), [(VLLM_TOOLS, TOOL_CALL_PARSERS), (VLLM_REASONING, REASONING_PARSERS)])
def test_vllms_names_of_parsers_are_known_but_for_a_few(names: str, known: Sequence[str]) -> None:
    assert {*names.split()} - {*known} == UNKNOWN


FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "functools",
        "<function_call>",
    ),
    *("<function=", "<parameter=", "</parameter>", "</function>", "<|python_tag|>", "<|python_start|>", "<think>"),
    *(
        "</think>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```json",
        "\n",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "functions.f:0"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<seed:tool_call>", "</seed:tool_call>", "<response>"),
    *("<|tool_call>call:f{", "a:", '<|"|>', "<tool_call|>", "<function_calls>", "</function_calls>", "</response>"),
    *("<|tool_call_start|>", "```python", "f(a=1)", "<|tool_call_end|>", '<function name="f">', '<param name="a">'),
    *("<｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', '<｜DSML｜parameter name="a" string="', 'true">'),
    *('false">', "</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
    *(
        "<｜DSML｜tool_calls>",
        "<｜DSML｜ calls>",
        '<｜DSML｜ invoke name="f">',
        '<｜DSML｜ parameter name="a" string="',
    ),
    *("<minimax:tool_call>", '<invoke name="f">', '<parameter name="a">', "</invoke>", "</minimax:tool_call>"),
    *(
        "<｜tool_call_begin｜>",
        "function<｜tool_sep｜>",
        '<steptml:invoke name="f">',
        "<｜tool_call_end｜>",
        "<tool_sep>",
    ),
    *("<tool_calls>", "</tool_calls>", "<ifm|tool_call>", "<ifm|arg_key>", "</ifm|tool_call>", "<dots_function_call>"),
    *("<|tools_prefix|>", '{"f": {', "<|tools_suffix|>", "<|START_ACTION|>[", '{"tool_name": "f", "parameters": '),
    *("<|END_ACTION|>", "<|START_RESPONSE|>", "<answer>", "<|action_start|><|plugin|>", "<|action_end|>", "```"),
    *('<|open|>call tool="f"<|sep|>', '<|open|>argument key="a" type="string"<|sep|>', "<|close|>argument<|sep|>"),
    *("<|plamo:begin_tool_name:plamo|>f<|plamo:end_tool_name:plamo|>", "<|plamo:end_tool_arguments:plamo|>"),
    *(']<]minimax[>[<invoke name="f">', "]<]minimax[>[<a>", "]<]minimax[>[</a>", "]<]minimax[>[</invoke>"),
    *("<longcat_tool_call>", "function call<|role_sep|>", "<|function_call|>", "<|message_sep|>"),
    *("<TOOLCALL>[", "</param>", "<![CDATA[", "]]>", "<start_function_call>call:f{", "<escape>"),
    *("<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"),
    *("<|end_message|>", '{"name":"f","args":', '{"args":{"a":1},"name":"f"}', "<|content_model_end_sampling|>"),
    *("<|channel|>", "<|start|>", "<|message|>", "<|end|>", "analysis", "final", "commentary", " to=functions.f"),
    *('{"name": "f", "arguments": ', "{}", "{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", ";", "=", "f", "1"),
    *(
        '{"name": "f", "arguments": {"a": [1, "x"]}}',
        "[f(a=1)",
        ">",
        " ",
        "Here is my thought process:",
        "\\ud800",
        "é",
    ),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=20).map("".join)


@pytest.mark.parametrize("format", sorted(tool_parsers.FORMATS))
@given(text=TEXTS, seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_any_text_is_read_the_same_however_it_is_cut_and_can_be_sent(format: str, text: str, seed: int) -> None:
    spoken = Spoken(format, "", text, reasoning_format="qwen3")
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=4))

    whole = without_ids(read(spoken, [text]))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert without_ids(read(spoken, pieces)) == whole
    assert without_ids(read(spoken, text)) == whole
    assert calls_of(whole) is not None
    for part in whole:
        (part.name if isinstance(part, CallBegin) else part.text).encode()


@pytest.mark.parametrize("format", sorted(tool_parsers.FORMATS))
@given(text=st.text(alphabet=st.characters(exclude_characters="<[{f\t\n\r ", exclude_categories=["Cs"])))
@example(text="")
@settings(max_examples=15, deadline=None)
def test_a_text_without_markers_is_the_answer(format: str, text: str) -> None:
    assert text_of(read(Spoken(format, "", text), [text]), TextPart) == text


HOSTILE = {
    "nested": '{"name": "f", "arguments": ' + '{"a":[' * 20_000,
    "brackets": "[" * 60_000,
    "markers": "<tool_call>" * 8_000,
    "escapes": '<tool_call>{"name": "f", "arguments": {"a": "' + "\\\\" * 40_000,
    "calls": '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 1_000,
    "parameters": "<tool_call><function=f>" + "<parameter=a>1</parameter>" * 2_000,
    "half markers": "<tool_cal" * 10_000,
    "python": "[f(a=" + "(" * 40_000 + ")" * 40_000 + ")]",
    "python strings": "[f(a='" + "\\'" * 40_000,
    "headers": "<|channel|>" * 8_000,
    "authors": "<|message_model|>f" * 4_000 + "<|message_model|>" + "<" * 20_000,
    "ends": '<|content_invoke_tool_json|>{"name":"f","args":{}}<|end_message|>' * 1_000,
    "space": " \n" * 40_000,
    "keys": "{" + '"a": 1, ' * 10_000,
    "elements": ']<]minimax[>[<invoke name="f">' + "]<]minimax[>[<a>" * 4_000 + "]<]minimax[>[</a>" * 4_000,
    "named": "[TOOL_CALLS]" + "f" * 60_000,
}


def seconds_of(spoken: Spoken, text: str, share: int) -> float:
    """Processor time to read 1 / share of a text: of all of it at once, then of 20,000 characters in pieces of 4."""
    start = time.process_time()
    read(spoken, [text[: len(text) // share]])
    read(spoken, [text[i : i + 4] for i in range(0, 20_000 // share, 4)])
    return time.process_time() - start


@pytest.mark.parametrize("format", sorted(tool_parsers.FORMATS))
def test_a_hostile_text_takes_time_in_proportion_to_its_length(format: str) -> None:
    for name, text in HOSTILE.items():
        spoken = Spoken(format, "", text)
        # 8 times the text takes 8 times as long in linear time, 64 times in quadratic time.
        ratios = (seconds_of(spoken, text, 1) / seconds_of(spoken, text, 8) for _ in range(3))
        assert any(ratio < 24 for ratio in ratios), f"{format}: {name} takes more than linear time"


def test_a_forced_list_and_a_named_function_are_read_as_json() -> None:
    dialect = Dialect(None, None)
    text = ' [{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]'

    for pieces in ([text], list(text)):
        one = OutputParser(dialect, ParserOptions(calls="required"))
        parts = [part for piece in pieces for part in one.add(piece, [0])] + one.finish()
        assert calls_of(parts) == [("f", '{"a": 1}'), ("g", "{}")]
        one = OutputParser(dialect, ParserOptions(calls="named", name="f"))
        assert calls_of([part for piece in list('{"a": 1}') for part in one.add(piece, [0])]) == [("f", '{"a": 1}')]


def test_one_call_alone_is_shown_where_more_are_not_wanted() -> None:
    dialect = find_dialect("", "hermes", "none")
    text = '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>'

    one = OutputParser(dialect, ParserOptions(calls="auto", parallel=False))

    assert calls_of([*one.add(text, [0]), *one.finish()]) == [("f", "{}")]


def test_reasoning_tokens_are_those_between_the_markers() -> None:
    dialect = find_dialect("", "none", "qwen3")
    one, hidden = OutputParser(dialect, ParserOptions()), OutputParser(dialect, ParserOptions(reasoning=False))
    tokens = ["<think>", "\n", "I", " see", ".", "</think>", "\n\n", "Yes"]

    parts = [part for token in tokens for part in one.add(token, [0])]
    shown = [part for token in tokens for part in hidden.add(token, [0])]

    assert joined(parts) == [ReasoningPart("I see."), TextPart("Yes")]
    assert (one.reasoning_tokens, hidden.reasoning_tokens) == (4, 4)
    assert shown == [TextPart("Yes")]
