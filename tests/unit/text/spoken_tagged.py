"""Samples of answers whose calls have tags for each argument, or Python between tags, with what they say."""

from __future__ import annotations

from tests.unit.text.spoken import CODER, NOW_CALL, ONE, TWO, WEATHER_CALL, Spoken, hermes


def _glm(name: str, *pairs: tuple[str, str], line: str = "\n") -> str:
    arguments = "".join(f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in pairs)
    return f"<tool_call>{name}{line}{arguments}</tool_call>"


def _gemma(name: str, arguments: str) -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


_SEED = (
    "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>3</parameter>\n"
    "</function>\n</seed:tool_call>"
)
_CPM = '<function name="get_weather"><param name="city">Oslo</param><param name="days">3</param></function>'
_PYTHON = "get_weather(city='Oslo', days=3)"

TAGGED = [
    Spoken("glm45", "one call", "I look.\n" + _glm("get_weather", ("city", "Oslo"), ("days", "3")), ONE, "I look.\n"),
    Spoken(
        "glm47",
        "two calls, no lines",
        _glm("get_weather", ("city", "Oslo"), ("days", "3"), line="") + _glm("now", line=""),
        TWO,
    ),
    Spoken(
        "glm45",
        "lists, and quotes in a string",
        _glm("get_weather", ("city", 'a "b"\n<c>'), ("units", '["C"]')),
        [("get_weather", '{"city": "a \\"b\\"\\n<c>", "units": ["C"]}')],
    ),
    Spoken("glm45", "cut in the name", "<tool_call>get_wea", content="<tool_call>get_wea"),
    Spoken(
        "glm45",
        "cut in a value",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os",
        [("get_weather", '{"city": "Os')],
    ),
    Spoken("glm45", "no call", "<tool_call>{a b}</tool_call>", content="<tool_call>{a b}</tool_call>"),
    Spoken("gemma4", "one call", _gemma("get_weather", 'city:<|"|>Oslo<|"|>,days:3'), ONE),
    Spoken(
        "gemma4",
        "two calls",
        "I look." + _gemma("get_weather", 'city:<|"|>Oslo<|"|>, days:3') + _gemma("now", ""),
        TWO,
        "I look.",
    ),
    Spoken(
        "gemma4",
        "lists, objects, words and quotes",
        _gemma("f", 'a:[1,-2.5,<|"|>x,}"<|"|>,[]],b:{c:true,d:None,e:{}},<|"|>g h<|"|>:word'),
        [("f", '{"a": [1, -2.5, "x,}\\"", []], "b": {"c": true, "d": null, "e": {}}, "g h": "word"}')],
    ),
    Spoken("gemma4", "cut in a string", '<|tool_call>call:get_weather{city:<|"|>Os', [("get_weather", '{"city": "Os')]),
    Spoken("gemma4", "cut in a number", "<|tool_call>call:get_weather{days:1", [("get_weather", '{"days": ')]),
    Spoken("gemma4", "no call", "<|tool_call>now()<tool_call|>", content="<|tool_call>now()<tool_call|>"),
    Spoken(
        "functiongemma",
        "one call",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        ONE,
    ),
    Spoken("seed_oss", "one call", "I look.\n" + _SEED, ONE, "I look.\n"),
    Spoken("minicpm5", "one call", _CPM, ONE),
    Spoken("minicpm5", "two calls", f'{_CPM}\n<function name="now"></function>', TWO),
    Spoken(
        "minicpm5",
        "CDATA",
        '<function name="get_weather"><param name="city"><![CDATA[a < b]]></param></function>',
        [("get_weather", '{"city": "a < b"}')],
    ),
    Spoken("olmo3", "two calls", f"<function_calls>{_PYTHON}\nnow()</function_calls>", TWO),
    Spoken(
        "olmo3",
        "text around",
        f"I look.\n<function_calls>\n{_PYTHON}\n</function_calls>\nDone.",
        ONE,
        "I look.\nDone.",
    ),
    Spoken("olmo3", "no call", "<function_calls>now</function_calls>", content="<function_calls>now</function_calls>"),
    Spoken("lfm2", "two calls", f"<|tool_call_start|>[{_PYTHON}, now()]<|tool_call_end|>Checking.", TWO, "Checking."),
    Spoken("minicpm", "in a block", f"<|tool_call_start|>\n```python\n{_PYTHON}\nnow()\n```\n<|tool_call_end|>", TWO),
    Spoken("ernie45", "one call", "I look.\n" + hermes(WEATHER_CALL), ONE, "I look.\n"),
    Spoken("ernie45", "an answer", "<response>\nIt is <3.\n</response>", content="It is <3."),
    Spoken("nemotron_json", "two calls", f"<TOOLCALL>[{WEATHER_CALL}, {NOW_CALL}]</TOOLCALL>", TWO),
    Spoken(
        "none",
        "reasoning, then an answer in tags",
        "Hm.\n</think>\n\n<response>\nYes.\n</response>",
        content="Yes.",
        reasoning="Hm.\n",
        reasoning_format="ernie45",
    ),
    Spoken(
        "gemma4",
        "reasoning and a call",
        "<|channel>thought\nHm.<channel|>" + _gemma("now", ""),
        [("now", "{}")],
        reasoning="Hm.",
        reasoning_format="gemma4",
    ),
    Spoken(
        "glm45",
        "reasoning and a call",
        "<think>Hm.</think>\n" + _glm("now"),
        [("now", "{}")],
        reasoning="Hm.",
        reasoning_format="glm45",
    ),
    Spoken(
        "seed_oss",
        "reasoning and a call",
        "<seed:think>Hm.</seed:think>" + _SEED,
        ONE,
        reasoning="Hm.",
        reasoning_format="seed_oss",
    ),
    Spoken(
        "olmo3",
        "reasoning that the prompt opened",
        "Hm.</think>Yes.",
        content="Yes.",
        reasoning="Hm.",
        reasoning_format="olmo3",
        opened=True,
    ),
    Spoken(
        "qwen3_coder",
        "reasoning without its beginning",
        "Hm.\n</think>\n\n" + CODER,
        ONE,
        reasoning="Hm.\n",
        reasoning_format="nemotron_v3",
    ),
]
