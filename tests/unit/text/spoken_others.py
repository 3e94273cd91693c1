"""Samples of answers in formats that differ from others by their tags or markers, after vLLM 0.33's parsers."""

from __future__ import annotations

from tests.unit.text.spoken import CODER, NOW_CALL, ONE, OSLO, TWO, WEATHER_CALL, Spoken, hermes


def _xml(tag: str, name: str, *values: tuple[str, str], quote: str = '"') -> str:
    """A call in tags whose names are attributes. tag: what precedes the tags' names."""
    inner = "".join(f"<{tag}parameter name={quote}{key}{quote}>{value}</{tag}parameter>\n" for key, value in values)
    return f"<{tag}invoke name={quote}{name}{quote}>\n{inner}</{tag}invoke>\n"


def _pairs(name: str, *values: tuple[str, str], prefix: str = "", named: str = "", kind: str = "") -> str:
    """A call with two tags for each argument."""
    inner = "".join(
        f"<{prefix}arg_key>{key}</{prefix}arg_key>\n{kind}<{prefix}arg_value>{value}</{prefix}arg_value>\n"
        for key, value in values
    )
    return f"<{prefix}tool_call>{name}{named}\n{inner}</{prefix}tool_call>\n"


_VALUES = (("city", "Oslo"), ("days", "3"))
_MIMO = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>3</parameter>\n"
    "</function>\n</tool_call>"
)


def _minimax(*calls: str) -> str:
    return "<minimax:tool_call>\n" + "".join(calls) + "</minimax:tool_call>"


def _step(*calls: str) -> str:
    listed = "".join(f"<｜tool_call_begin｜>function<｜tool_sep｜>{call}<｜tool_call_end｜>" for call in calls)
    return f"<｜tool_calls_begin｜>{listed}<｜tool_calls_end｜>"


def _hy(*calls: str) -> str:
    return "<tool_calls>\n" + "".join(calls) + "</tool_calls>"


_STEP_TWO = _step(_xml("steptml:", "get_weather", *_VALUES), _xml("steptml:", "now"))
_HY_TWO = _hy(_pairs("get_weather", *_VALUES, named="<tool_sep>"), _pairs("now", named="<tool_sep>"))
_COHERE = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": ' + OSLO + "},\n"
    '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>'
)
_APERTUS = '<|tools_prefix|>[{"get_weather": ' + OSLO + '}, {"now": {}}]<|tools_suffix|>'
_HORIZON = _pairs("get_weather", *_VALUES, prefix="ifm|") + _pairs("now", prefix="ifm|")

XML = [
    Spoken("mimo", "one call", "I look.\n" + _MIMO, ONE, "I look.\n"),
    Spoken(
        "mimo",
        "lines at the ends of a value",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", '{"city": "\\nOslo\\n"}')],
    ),
    Spoken("mimo", "reasoning", "<think>Hm.</think>" + _MIMO, ONE, "", "Hm.", "mimo"),
    Spoken("step3p5", "one call", CODER, ONE, "", "Hm.\n", "step3p5", None)
    if False
    else Spoken("step3p5", "reasoning that the prompt opened", "Hm.\n</think>\n" + CODER, ONE, "", "Hm.\n", "step3p5"),
    Spoken("step5", "reasoning and a call", "Hm.</think>" + CODER, ONE, "", "Hm.", "step5"),
    Spoken("minimax_m2", "two calls", _minimax(_xml("", "get_weather", *_VALUES), _xml("", "now")), TWO),
    Spoken(
        "minimax_m2",
        "two sections, and text around",
        f"I look.\n\n{_minimax(_xml('', 'get_weather', *_VALUES))}\n{_minimax(_xml('', 'now'))}\nDone.",
        TWO,
        "I look.\n\nDone.",
    ),
    Spoken("minimax_m2", "no tag around", _xml("", "get_weather", *_VALUES), ONE),
    Spoken("minimax_m2", "bare names", _minimax(_xml("", "get_weather", *_VALUES, quote="")), ONE),
    Spoken("minimax_m2", "other quotes", _minimax(_xml("", "get_weather", *_VALUES, quote="'")), ONE),
    Spoken(
        "minimax_m2",
        "space and lines in a value",
        _minimax(_xml("", "get_weather", ("city", '\n "Oslo"\n'), ("units", '["C"]'))),
        [("get_weather", '{"city": "\\n \\"Oslo\\"\\n", "units": ["C"]}')],
    ),
    Spoken("minimax_m2", "no call", _minimax("now").rstrip(), content=_minimax("now")),
    Spoken(
        "minimax_m2",
        "cut in the second name",
        "<minimax:tool_call>" + _xml("", "now") + '<invoke name="get_we',
        [("now", "{}")],
        '<invoke name="get_we',
    ),
    Spoken(
        "minimax_m2",
        "cut in a value",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Os',
        [("get_weather", '{"city": "Os')],
    ),
    Spoken(
        "minimax_m2", "reasoning", "Hm.</think>" + _minimax(_xml("", "now")), [("now", "{}")], "", "Hm.", "minimax_m2"
    ),
    Spoken("none", "reasoning alone", "Hm.", reasoning="Hm.", reasoning_format="minimax_m2"),
    Spoken(
        "none",
        "reasoning that stays in the answer",
        "Hm.\n</think>\n\nYes.",
        content="<think>Hm.\n</think>\n\nYes.",
        reasoning_format="minimax_m2_append_think",
    ),
    Spoken(
        "none", "no reasoning to stay", "Yes.", content="Yes.", reasoning_format="minimax_m2_append_think", opened=False
    ),
    Spoken(
        "dots",
        "two calls",
        "I look.\n<dots_function_call>\n"
        + _xml("", "get_weather", *_VALUES)
        + _xml("", "now")
        + "</dots_function_call>",
        TWO,
        "I look.\n",
    ),
    Spoken("dots", "JSON", f"<dots_function_call>{WEATHER_CALL}</dots_function_call>", ONE),
    Spoken("step3", "two calls", "I look." + _STEP_TWO, TWO, "I look."),
    Spoken("step3", "text after", _STEP_TWO + "Done.", TWO, "Done."),
    Spoken("step3", "no call", _step("now")[:-22], content=_step("now")[20:-22]),
    Spoken("step3", "reasoning", "Hm.</think>" + _STEP_TWO, TWO, "", "Hm.", "step3"),
]
PAIRS = [
    Spoken("ling3", "one call", "I look.\n" + _pairs("get_weather", *_VALUES), ONE, "I look.\n"),
    Spoken("ling3", "reasoning", "<think>Hm.</think>" + _pairs("now"), [("now", "{}")], "", "Hm.", "ling3"),
    Spoken("poolside_v1", "reasoning", "<think>Hm.</think>" + _pairs("now"), [("now", "{}")], "", "Hm.", "poolside_v1"),
    Spoken("glm47", "JSON", hermes(WEATHER_CALL), ONE),
    Spoken("glm47", "reasoning", "<think>Hm.</think>Yes.", [], "Yes.", "Hm.", "glm47"),
    Spoken("hy_v3", "two calls", "I look.\n" + _HY_TWO + "\nDone.", TWO, "I look.\nDone."),
    Spoken("hy_v3", "cut in the name", "<tool_calls>\n<tool_call>get_wea", content="<tool_call>get_wea"),
    Spoken(
        "hy_v3",
        "cut in a value",
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Os",
        [("get_weather", '{"city": "Os')],
    ),
    Spoken("hy_v3", "no call", "<tool_call>{a b}</tool_call>", content="<tool_call>{a b}</tool_call>"),
    Spoken("hy_v3", "reasoning", "<think>Hm.</think>" + _HY_TWO, TWO, "", "Hm.", "hy_v3"),
    Spoken("hy_v4", "two calls", _hy(_pairs("get_weather", *_VALUES), _pairs("now")), TWO),
    Spoken("hy_v4", "reasoning that the prompt opened", "Hm.</think>Yes.", [], "Yes.", "Hm.", "hy_v4", True),
    Spoken("k2_horizon", "two calls", f"<ifm|tool_calls>\n{_HORIZON}</ifm|tool_calls>", TWO),
    Spoken(
        "k2_horizon",
        "values with types",
        _pairs("get_weather", *_VALUES, prefix="ifm|", kind="<ifm|arg_type>string</ifm|arg_type>\n"),
        ONE,
    ),
    Spoken(
        "k2_horizon", "JSON", f"<ifm|tool_calls><ifm|tool_call>{WEATHER_CALL}</ifm|tool_call></ifm|tool_calls>", ONE
    ),
    *(
        Spoken(
            "k2_horizon",
            f"thinks{effort}",
            f"<ifm|think{effort}>Hm.</ifm|think{effort}>{_HORIZON}",
            TWO,
            "",
            "Hm.",
            "k2_horizon",
        )
        for effort in ("", "_fast", "_faster")
    ),
]
LISTS = [
    Spoken("apertus", "two calls", "I look." + _APERTUS, TWO, "I look."),
    Spoken("apertus", "text after", _APERTUS + "\nDone.", TWO, "Done."),
    Spoken("apertus", "a list", '[{"a": {}}]', content='[{"a": {}}]'),
    Spoken("apertus", "no call", '<|tools_prefix|>[{"a": 1}]', content='<|tools_prefix|>[{"a": 1}]'),
    Spoken("apertus", "cut in the name", '<|tools_prefix|>[{"get', content='<|tools_prefix|>[{"get'),
    Spoken("apertus", "cut", '<|tools_prefix|>[{"get_weather": {"ci', [("get_weather", '{"ci')]),
    Spoken("cohere_command3", "two calls", "I look." + _COHERE, TWO, "I look."),
    Spoken("cohere_command3", "an answer", "<|START_RESPONSE|>Yes <b>.<|END_RESPONSE|>", content="Yes <b>."),
    Spoken("cohere_command3", "a list", f"[{WEATHER_CALL}]", content=f"[{WEATHER_CALL}]"),
    Spoken(
        "cohere_command3",
        "another name's key",
        f"<|START_ACTION|>[{NOW_CALL}]",
        content=f"<|START_ACTION|>[{NOW_CALL}]",
    ),
    Spoken(
        "cohere_command3",
        "reasoning and calls",
        f"<|START_THINKING|>Hm.<|END_THINKING|>{_COHERE}",
        TWO,
        reasoning="Hm.",
        reasoning_format="cohere_command3",
    ),
    Spoken(
        "cohere_command4",
        "reasoning and an answer",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>",
        content="Yes.",
        reasoning="Hm.",
        reasoning_format="cohere_command4",
    ),
    Spoken(
        "none",
        "an answer in tags, no tools",
        "<|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        content="Yes.",
        reasoning_format="cohere_command3",
    ),
    Spoken("hunyuan_a13b", "two calls", f"<tool_calls>[\n{WEATHER_CALL},\n{NOW_CALL}\n]</tool_calls>", TWO),
    Spoken(
        "hunyuan_a13b",
        "reasoning, then an answer in tags",
        "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>",
        content="Yes.",
        reasoning="Hm.\n",
        reasoning_format="hunyuan_a13b",
    ),
    Spoken(
        "hunyuan_a13b",
        "reasoning, then a call in tags",
        f"<think>\nHm.\n</think>\n<answer>\n<tool_calls>[{WEATHER_CALL}]</tool_calls>\n</answer>",
        ONE,
        reasoning="Hm.\n",
        reasoning_format="hunyuan_a13b",
    ),
    Spoken("xlam", "a bare list", f"[{WEATHER_CALL}, {NOW_CALL}]", TWO),
    Spoken("xlam", "in a block", f"I look.\n```json\n[{WEATHER_CALL}]\n```\nDone.", ONE, "I look.\nDone."),
    Spoken("xlam", "in a block without a language", f"```\n[{WEATHER_CALL}]\n```", ONE),
    Spoken("xlam", "in a tag", f"<tool_call>[{WEATHER_CALL}, {NOW_CALL}]</tool_call>", TWO),
    Spoken("xlam", "a block of code", "See:\n```python\nf([1])\n```\nOK.", content="See:\n```python\nf([1])\n```\nOK."),
    Spoken("xlam", "a block of JSON", "```json\n[1, 2]\n```", content="```json\n[1, 2]\n```"),
]
OBJECTS = [
    Spoken("qwen3_json", "two calls", hermes(WEATHER_CALL, NOW_CALL), TWO),
    Spoken("longcat", "two calls", hermes(WEATHER_CALL, NOW_CALL).replace("tool_call", "longcat_tool_call"), TWO),
    Spoken("longcat", "another tag", hermes(WEATHER_CALL), content=hermes(WEATHER_CALL)),
    Spoken(
        "longcat",
        "no call",
        "<longcat_tool_call>x</longcat_tool_call>",
        content="<longcat_tool_call>x</longcat_tool_call>",
    ),
    Spoken(
        "internlm",
        "one call",
        'I look.\n<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": ' + OSLO + "}<|action_end|>\n",
        ONE,
        "I look.\n",
    ),
    Spoken(
        "internlm",
        "an interpreter",
        "<|action_start|><|interpreter|>print(1)<|action_end|>",
        content="<|action_start|><|interpreter|>print(1)<|action_end|>",
    ),
    Spoken(
        "gigachat3", "a message", f"I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{WEATHER_CALL}", ONE, "I look."
    ),
    Spoken("gigachat3", "a token", f"<|function_call|>{WEATHER_CALL}", ONE),
    Spoken("gigachat3", "no call", "<|function_call|>{x}", content="<|function_call|>{x}"),
    Spoken("gigachat3", "cut", '<|function_call|>{"name": "now", "arguments": {"a', [("now", '{"a')]),
]


_N = "]<]minimax[>["


def _element(name: str, *inner: str, line: str = "") -> str:
    return f"{_N}<{name}>{line}{''.join(inner)}{_N}</{name}>{line}"


def _m3(*calls: str) -> str:
    return f"{_N}<tool_call>\n{''.join(calls)}{_N}</tool_call>"


def _m3_call(name: str, *elements: str, quote: str = '"') -> str:
    return f"{_N}<invoke name={quote}{name}{quote}>\n{''.join(elements)}{_N}</invoke>\n"


_M3_WEATHER = _m3_call("get_weather", _element("city", "Oslo") + "\n", _element("days", "3") + "\n")
NESTED = [
    Spoken("minimax_m3", "two calls", f"I look.\n{_m3(_M3_WEATHER, _m3_call('now'))}", TWO, "I look.\n"),
    Spoken("minimax_m3", "bare names", _m3(_M3_WEATHER.replace('"', "")), ONE),
    Spoken(
        "minimax_m3",
        "elements in elements",
        _m3_call(
            "order",
            _element("id", "42"),
            _element(
                "items",
                _element("item", _element("sku", " b-1\n"), _element("count", "2")),
                _element("item", _element("sku", "2")),
                line="\n",
            ),
            _element("to", _element("zip", "0150")),
        ),
        [("order", '{"id": 42, "items": [{"sku": " b-1\\n", "count": 2}, {"sku": "2"}], "to": {"zip": "0150"}}')],
    ),
    Spoken(
        "minimax_m3",
        "empty elements, repeated names, and text beside elements",
        _m3_call(
            "order",
            *(_element("items"), _element("to"), _element("tags", "null"), _element("a", "1"), _element("a", "2")),
            _element("b", "x", _element("c", "y")),
        ),
        [("order", '{"items": [], "to": {}, "tags": null, "a": ["1", "2"], "b": {"c": "y", "$text": "x"}}')],
    ),
    Spoken(
        "minimax_m3",
        "an element that is not closed",
        _m3_call("get_weather", _element("city", "Oslo"), f"{_N}<days>3"),
        [("get_weather", '{"city": "Oslo"}')],
    ),
    Spoken("minimax_m3", "no end of a call", _m3(_M3_WEATHER.replace(f"{_N}</invoke>", ""), _m3_call("now")), TWO),
    Spoken(
        "minimax_m3",
        "elements too deep",
        _m3_call("now", _element("a", "1"), f"{_N}<b>" * 60, f"{_N}</b>" * 60),
        [("now", '{"a": "1"}')],
    ),
    Spoken("minimax_m3", "cut in the name", _m3_call("now")[:30], content=_m3_call("now")[:30]),
    Spoken("minimax_m3", "cut", _M3_WEATHER.partition("Oslo")[0] + "Os", [("get_weather", "{")]),
    Spoken("minimax_m3", "no name", _m3_call("").rstrip(), content=_m3_call("").rstrip()),
]


def _plamo(name: str, arguments: str, line: str = "") -> str:
    return (
        f"<|plamo:begin_tool_request:plamo|>{line}<|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}"
        f"<|plamo:end_tool_arguments:plamo|>{line}<|plamo:end_tool_request:plamo|>"
    )


def _all_plamo(*calls: str) -> str:
    return f"<|plamo:begin_tool_requests:plamo|>{''.join(calls)}<|plamo:end_tool_requests:plamo|>"


PLAMO = [
    Spoken(
        "plamo3", "two calls", f"I look.{_all_plamo(_plamo('get_weather', OSLO), _plamo('now', '{}'))}", TWO, "I look."
    ),
    Spoken("plamo3", "lines between marks", _all_plamo(_plamo("get_weather", OSLO, "\n")), ONE),
    Spoken("plamo3", "cut", _all_plamo(_plamo("now", '{"a')).partition('"a')[0] + '"a', [("now", '{"a')]),
    Spoken(
        "plamo3",
        "cut in the name",
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>no",
        content="<|plamo:begin_tool_name:plamo|>no",
    ),
    Spoken(
        "plamo3",
        "reasoning",
        f"<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>{_all_plamo(_plamo('now', '{}'))}",
        [("now", "{}")],
        reasoning="Hm.",
        reasoning_format="plamo3",
    ),
]
_K3_TWO = (
    '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>'
)
XTML = [
    Spoken("kimi_k3", "two calls", _K3_TWO, TWO),
    Spoken(
        "kimi_k3",
        "reasoning, an answer and calls",
        f"<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>{_K3_TWO}",
        TWO,
        "I look.",
        "Hm.",
        "kimi_k3",
    ),
    Spoken(
        "none",
        "an answer that the prompt opened, no tools",
        "Yes.<|close|>response<|sep|><|close|>message<|sep|>",
        content="Yes.",
        reasoning_format="kimi_k3",
    ),
    Spoken(
        "kimi_k3",
        "escaped names, values as they are, and no type",
        '<|open|>call index="1" tool="a&amp;&quot;"<|sep|><|open|>argument key="&quot;"<|sep|> &amp;\n<|close|>argument'
        '<|sep|><|open|>argument key="b" type="object"<|sep|>{"c": [1]}<|close|>argument<|sep|><|close|>call<|sep|>',
        [('a&"', '{"\\"": " &amp;\\n", "b": {"c": [1]}}')],
    ),
    Spoken("kimi_k3", "no name", '<|open|>call index="1"<|sep|>', content='<|open|>call index="1"<|sep|>'),
    Spoken(
        "kimi_k3",
        "cut in a value",
        '<|open|>call tool="get_weather"<|sep|><|open|>argument key="city" type="string"<|sep|>Os<|clo',
        [("get_weather", '{"city": "Os<|clo')],
    ),
]
UNENDED = [
    *(
        Spoken(name, f"reasoning that a call ends, of {thinks}", f"Hm.\n{text}", calls, "", "Hm.\n", thinks, True)
        for name, thinks, text, calls in (
            ("hermes", "qwen3", hermes(WEATHER_CALL), ONE),
            ("qwen3_coder", "qwen3", CODER, ONE),
            ("glm45", "glm45", _pairs("now"), [("now", "{}")]),
            ("minimax_m2", "minimax_m2", _minimax(_xml("", "now")), [("now", "{}")]),
            ("mimo", "mimo", _MIMO, ONE),
            ("k2_horizon", "k2_horizon", f"<ifm|tool_calls>{_HORIZON}", TWO),
            ("plamo3", "plamo3", _all_plamo(_plamo("now", "{}")), [("now", "{}")]),
            ("seed_oss", "seed_oss", CODER.replace("tool_call>", "seed:tool_call>"), ONE),
            ("zaya_xml", "qwen3", CODER.replace("tool_call>", "zyphra_tool_call>"), ONE),
        )
    ),
    Spoken(
        "hermes",
        "R1's reasoning about tags",
        f"Hm. {hermes(NOW_CALL)}",
        [],
        "",
        f"Hm. {hermes(NOW_CALL)}",
        "deepseek_r1",
    ),
    Spoken("none", "no calls wanted", f"Hm. {hermes(NOW_CALL)}", [], "", f"Hm. {hermes(NOW_CALL)}", "qwen3", True),
]
REASONING = [
    *(
        Spoken("none", "opened by the model", "<think>\nHm.</think>\n\nYes.", [], "Yes.", "Hm.", name)
        for name in ("kimi_k2", "minicpmv")
    ),
    *(
        Spoken("none", "not opened at all", "Hm.</think>Yes.", [], "Yes.", "Hm.", name)
        for name in ("holo2", "granite_thinking_parser")
    ),
    Spoken("none", "MiniMax M3", "<mm:think>Hm.</mm:think>Yes.", [], "Yes.", "Hm.", "minimax_m3"),
]
MORE = [*XML, *PAIRS, *LISTS, *OBJECTS, *XTML, *PLAMO, *NESTED, *UNENDED, *REASONING]
