"""Samples of answers of DeepSeek V3.2 to V4.1, whose calls have a tag for each parameter, with what they say."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.text.spoken import ONE, TWO, Spoken

_D = "｜DSML｜"
_BEGIN, _END = f"<{_D}function_calls>\n", f"</{_D}function_calls>"


def _parameter(name: str, value: str, kind: str = ' string="true"') -> str:
    return f'<{_D}parameter name="{name}"{kind}>{value}</{_D}parameter>\n'


def _call(name: str, *parameters: str) -> str:
    return f'<{_D}invoke name="{name}">\n{"".join(parameters)}</{_D}invoke>\n'


def _json(name: str, value: str) -> str:
    return _parameter(name, value, ' string="false"')


def _says(name: str, text: str, calls: list[tuple[str, str]], content: str = "") -> Spoken:
    return Spoken("deepseek_v32", name, text, calls, content)


_WEATHER = _call("get_weather", _parameter("city", "Oslo"), _json("days", "3"))
_NOTHING = f"{_BEGIN}now{_END}"

_V32 = [
    _says("one call", f"I look.\n\n{_BEGIN}{_WEATHER}{_END}", ONE, "I look.\n\n"),
    _says("two calls", f"{_BEGIN}{_WEATHER}{_call('now')}{_END}", TWO),
    _says(
        "two sections, and text after", f"{_BEGIN}{_WEATHER}{_END}\n{_BEGIN}{_call('now')}{_END}\nDone.", TWO, "Done."
    ),
    _says("text only", "It is 3 < 4, and <｜DSML is no tag.", [], "It is 3 < 4, and <｜DSML is no tag."),
    _says(
        "a string with lines, quotes and tags",
        _BEGIN + _call("get_weather", _parameter("city", ' a\n"b"\\ <c>\t</parameter>\n')) + _END,
        [("get_weather", '{"city": " a\\n\\"b\\"\\\\ <c>\\t</parameter>\\n"}')],
    ),
    _says(
        "JSON of each type",
        _call(
            "f", *(_json(f"v{i}", one) for i, one in enumerate(('[1, {"a": "b"}]', " true ", "null", "-2.5e3", '"x"')))
        ),
        [("f", '{"v0": [1, {"a": "b"}], "v1": true, "v2": null, "v3": -2.5e3, "v4": "x"}')],
    ),
    _says(
        "strings that look like other types",  # the schema's type of days is a number: the attribute decides
        _call("get_weather", _parameter("days", "3"), _parameter("city", "null"), _parameter("units", '["C"]')),
        [("get_weather", '{"days": "3", "city": "null", "units": "[\\"C\\"]"}')],
    ),
    _says(
        "other types that are no JSON",
        _call("get_weather", _json("city", "Oslo\n"), _json("days", "NaN"), _json("units", '["C",]')),
        [("get_weather", '{"city": "Oslo\\n", "days": "NaN", "units": "[\\"C\\",]"}')],
    ),
    _says(
        "no attribute of the type",
        _call(
            "get_weather", _parameter("city", "Oslo", ""), _parameter("days", "3", ""), _parameter("a", "1", ' x="2"')
        ),
        [("get_weather", '{"city": "Oslo", "days": 3, "": 1}')],
    ),
    _says(
        "tags without an end",
        f'{_BEGIN}<{_D}invoke name="get_weather">\n<{_D}parameter name="city" string="true">Oslo'
        f'<{_D}parameter name="days" string="false">3<{_D}invoke name="now">{_END}',
        TWO,
    ),
    _says("no tags around calls", _WEATHER + _call("now"), TWO),
    _says("no call in the tags", f"I look.\n{_NOTHING}", [], "I look.\n\nnow"),
    _says("no name", _BEGIN + _call("") + _END, [], _call("")),
    _says("a name that is no name", _call("a\nb").rstrip(), [], _call("a\nb").rstrip()),
    _says("another attribute", _call('a" b="c').rstrip(), [], _call('a" b="c').rstrip()),
    _says("cut before the name", f'{_BEGIN}<{_D}invoke name="get_we', [], f'<{_D}invoke name="get_we'),
    _says("cut behind the name", f'<{_D}invoke name="get_weather">\n', [("get_weather", "{")]),
    _says("cut in a tag", f'<{_D}invoke name="get_weather">\n<{_D}parameter name="ci', [("get_weather", "{")]),
    _says(
        "cut in a string",
        f'<{_D}invoke name="get_weather">\n<{_D}parameter name="city" string="true">Os"l',
        [("get_weather", '{"city": "Os\\"l')],
    ),
    _says(
        "cut in JSON",
        f'<{_D}invoke name="get_weather">\n<{_D}parameter name="units" string="false">["C", ',
        [("get_weather", '{"units": ["C", ')],
    ),
    _says(
        "cut behind a parameter",
        _WEATHER.partition(f"</{_D}invoke")[0],
        [("get_weather", '{"city": "Oslo", "days": 3')],
    ),
    Spoken(
        "deepseek_v32",
        "reasoning that the prompt opened",
        f"Hm.</think>\n\n{_BEGIN}{_WEATHER}{_END}",
        ONE,
        reasoning="Hm.",
        reasoning_format="deepseek_v3",
        opened=True,
    ),
]


def _written(spoken: Spoken, format: str, reasoning: str, *tags: tuple[str, str]) -> Spoken:
    """The same sample in another version's tags."""
    text, content = spoken.text, spoken.content
    for old, new in tags:
        text, content = text.replace(old, new), content.replace(old, new)
    named = reasoning if spoken.reasoning else spoken.reasoning_format
    return replace(spoken, format=format, text=text, content=content, reasoning_format=named)


_V4 = [_written(one, "deepseek_v4", "deepseek_v4", ("function_calls>", "tool_calls>")) for one in _V32]
_V41 = [_written(one, "deepseek_v41", "deepseek_v41", ("function_calls>", "calls>"), (_D, _D + " ")) for one in _V32]
_UNENDED = Spoken(
    "deepseek_v32", "reasoning that a call ends", f"Hm.\n{_BEGIN}{_WEATHER}{_END}", ONE, "", "Hm.\n", "qwen3", True
)
DSML = [
    *_V32,
    _written(_UNENDED, "deepseek_v4", "deepseek_v4", ("function_calls>", "tool_calls>")),
    _written(_UNENDED, "deepseek_v41", "deepseek_v41", ("function_calls>", "calls>"), (_D, _D + " ")),
    *_V4,
    *_V41,
    *(
        Spoken("deepseek_v4", f"calls in a tag {name}", f"<{_D}{name}>\n{_WEATHER}{_call('now')}</{_D}tool_calls>", TWO)
        for name in ("toolcalls", "tool")
    ),
]
