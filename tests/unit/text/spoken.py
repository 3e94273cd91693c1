"""Outputs of models of each family, after their public documentation and chat templates, with their parsed parts."""

from __future__ import annotations

from dataclasses import dataclass, field

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "array"}},
}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "number"}}},
        },
        "to": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"zip": {"type": "string"}}}]},
        "tags": {"type": ["array", "null"]},
    },
}
TOOLS = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}}, "order": ORDER}
OSLO = '{"city": "Oslo", "days": 3}'


@dataclass(frozen=True)
class Spoken:
    """A text in one format. `calls`: names and arguments; these are compared as JSON where they are JSON."""

    format: str
    name: str
    text: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    reasoning_format: str = "none"
    opened: bool | None = None


def hermes(*objects: str) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


def _v3(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def _v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def _kimi(own_id: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{own_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def _all_v3(*calls: str) -> str:
    return "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>"


WEATHER_CALL = '{"name": "get_weather", "arguments": ' + OSLO + "}"
NOW_CALL = '{"name": "now", "arguments": {}}'
TWO = [("get_weather", OSLO), ("now", "{}")]
ONE = [("get_weather", OSLO)]
CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)

_ANALYSIS = "<|channel|>analysis<|message|>The user wants weather.<|end|>"
_TO_WEATHER = "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + OSLO

SPOKEN = [
    Spoken("hermes", "one call", hermes(WEATHER_CALL), ONE),
    Spoken("hermes", "two calls", hermes(WEATHER_CALL, NOW_CALL), TWO),
    Spoken("hermes", "text first", "Let me look.\n" + hermes(WEATHER_CALL), ONE, content="Let me look.\n"),
    Spoken("hermes", "text only", "It is 3 < 4, and <tool is no tag.", content="It is 3 < 4, and <tool is no tag."),
    Spoken("hermes", "space only", " \n ", content=" \n "),
    Spoken("hermes", "no arguments", hermes('{"name": "now"}'), [("now", "{}")]),
    Spoken("hermes", "arguments first", hermes('{"arguments": ' + OSLO + ', "name": "get_weather"}'), ONE),
    Spoken(
        "hermes",
        "written into a string",
        hermes('{"name": "now", "arguments": "{\\"a\\": 1}"}'),
        [("now", '{"a": 1}')],
    ),
    Spoken("hermes", "null", hermes('{"name": "now", "arguments": null}'), [("now", "{}")]),
    Spoken(
        "hermes",
        "brackets and quotes within strings",
        hermes('{"name": "now", "arguments": {"a": "}]\\" \\\\", "b": [{"c": "{"}]}}'),
        [("now", '{"a": "}]\\" \\\\", "b": [{"c": "{"}]}')],
    ),
    Spoken("hermes", "no JSON", hermes("{name: now}"), content=hermes("{name: now}")),
    Spoken("hermes", "no name", hermes('{"x": 1}'), content=hermes('{"x": 1}')),
    Spoken("hermes", "cut before the name", '<tool_call>\n{"na', content='<tool_call>\n{"na'),
    Spoken(
        "hermes",
        "cut in the arguments",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os',
        [("get_weather", '{"city": "Os')],
    ),
    Spoken("hermes", "broken arguments", hermes('{"name": "now", "arguments": {"a": }}'), [("now", '{"a": }')]),
    Spoken("hermes", "text after", hermes(NOW_CALL) + "\nDone.", [("now", "{}")], content="Done."),
    Spoken("hermes", "half a surrogate", hermes('{"name": "n\\ud83d", "arguments": {}}'), [("n?", "{}")]),
    Spoken("granite4", "one call", hermes(WEATHER_CALL), ONE),
    Spoken("qwen3_coder", "one call", CODER, ONE),
    Spoken("qwen3_coder", "text first", "I look.\n\n" + CODER, ONE, content="I look.\n\n"),
    Spoken(
        "qwen3_xml",
        "lines, and no closing tag before the next",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\na\n"b"\n<parameter=units>\n[1, 2]\n'
        "</function>\n</tool_call>",
        [("get_weather", '{"city": "a\\n\\"b\\"", "units": [1, 2]}')],
    ),
    Spoken("qwen3_coder", "no parameters", "<function=now>\n</function>", [("now", "{}")]),
    Spoken(
        "qwen3_coder",
        "cut in a parameter",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
        [("get_weather", '{"city": "Os')],
    ),
    Spoken("llama3_json", "one call", '{"name": "get_weather", "parameters": ' + OSLO + "}", ONE),
    Spoken(
        "llama3_json",
        "two calls, tagged",
        '<|python_tag|>{"name": "get_weather", "parameters": ' + OSLO + '}; {"name": "now", "parameters": {}}',
        TWO,
    ),
    Spoken("llama3_json", "an answer in JSON", '{"name": "Ada", "age": 36}', content='{"name": "Ada", "age": 36}'),
    Spoken("llama3_json", "text", "The name {x} is fine.", content="The name {x} is fine."),
    Spoken("llama3_json", "Python", "<|python_tag|>print(1)", content="<|python_tag|>print(1)"),
    Spoken("llama4_json", "a type", '{"type": "function", "name": "now", "parameters": {}}', [("now", "{}")]),
    Spoken("pythonic", "two calls", "[get_weather(city='Oslo', days=3), now()]", TWO),
    Spoken("llama4_pythonic", "tagged", "<|python_start|>[get_weather(city='Oslo', days=3)]<|python_end|>", ONE),
    Spoken(
        "pythonic",
        "literals",
        "[f(a=[1, -2.5, True, None], b={'k': ('x', \"it's\\n)\")}, c='\\u00e9')]",
        [("f", '{"a": [1, -2.5, true, null], "b": {"k": ["x", "it\'s\\n)"]}, "c": "é"}')],
    ),
    Spoken("pythonic", "no literal", "[f(a=open('x'))]", content="[f(a=open('x'))]"),
    Spoken("pythonic", "a list", "[1, 2] is a list", content="[1, 2] is a list"),
    Spoken("pythonic", "cut", "[f(a=1), g(b='x", [("f", '{"a": 1}')], content=", g(b='x"),
    Spoken("mistral", "old", f"[TOOL_CALLS] [{WEATHER_CALL}, {NOW_CALL}]", TWO),
    Spoken("mistral", "new", f"[TOOL_CALLS]get_weather[ARGS]{OSLO}[TOOL_CALLS]now[ARGS]{{}}", TWO),
    Spoken("mistral", "with ids", f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{OSLO}", ONE),
    Spoken("mistral", "bare", f"I look.[TOOL_CALLS]get_weather{OSLO}", ONE, content="I look."),
    Spoken("mistral", "broken", "[TOOL_CALLS] nothing", content="[TOOL_CALLS] nothing"),
    Spoken("mistral", "cut", '[TOOL_CALLS]get_weather[ARGS]{"ci', [("get_weather", '{"ci')]),
    Spoken("deepseek_v3", "two calls", _all_v3(_v3("get_weather", OSLO), _v3("now", "{}")), TWO),
    Spoken("deepseek_v3", "text first", "I look." + _all_v3(_v3("get_weather", OSLO)), ONE, content="I look."),
    Spoken("deepseek_v31", "two calls", _all_v3(_v31("get_weather", OSLO), _v31("now", "{}")), TWO),
    Spoken(
        "deepseek_v31",
        "broken",
        "<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>",
        content="<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>",
    ),
    Spoken(
        "kimi_k2",
        "two calls behind text",
        "I look.<|tool_calls_section_begin|>"
        + _kimi("functions.get_weather:0", OSLO)
        + _kimi("functions.now:1", " {} ")
        + "<|tool_calls_section_end|>",
        TWO,
        content="I look.",
    ),
    Spoken("kimi_k2", "a bare name", _kimi("now", "{}"), [("now", "{}")]),
    Spoken("kimi_k2", "no arguments", _kimi("functions.now:0", ""), content=_kimi("functions.now:0", "")),
    Spoken("granite", "two calls", f"<|tool_call|>[{WEATHER_CALL}, {NOW_CALL}]", TWO),
    Spoken("granite", "the other marker", f"<tool_call>[{WEATHER_CALL}]", ONE),
    Spoken("granite", "no marker", f"[{WEATHER_CALL}]", ONE),
    Spoken("granite", "a list", "[1, 2]", content="[1, 2]"),
    Spoken("granite", "the second one broken", f"<|tool_call|>[{NOW_CALL}, {{]", [("now", "{}")], content=", {]"),
    Spoken("granite-20b-fc", "two calls", f"<function_call> {WEATHER_CALL}\n<function_call> {NOW_CALL}", TWO),
    Spoken("phi4_mini_json", "vLLM's template", f"functools[{WEATHER_CALL}, {NOW_CALL}]", TWO),
    Spoken("phi4_mini_json", "the model's own", f"<|tool_call|>[{WEATHER_CALL}]<|/tool_call|>", ONE),
    Spoken("jamba", "one call", f"<tool_calls>[\n    {WEATHER_CALL}\n]</tool_calls>", ONE),
    Spoken("openai", "a call", _ANALYSIS + _TO_WEATHER, ONE, reasoning="The user wants weather."),
    Spoken(
        "openai",
        "an answer",
        _ANALYSIS + "<|start|>assistant<|channel|>final<|message|>Sunny <b>.",
        content="Sunny <b>.",
        reasoning="The user wants weather.",
    ),
    Spoken(
        "openai",
        "a preamble, and the recipient before the channel",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get_weather"
        "<|channel|>commentary json<|message|>" + OSLO + "<|call|>",
        ONE,
        content="I look.",
    ),
    Spoken("openai", "no channel", "Just text.", content="Just text."),
    Spoken("openai", "cut in the header", "<|channel|>anal"),
    Spoken(
        "none",
        "R1",
        "I think.\n</think>\n\nYes.",
        content="Yes.",
        reasoning="I think.\n",
        reasoning_format="deepseek_r1",
    ),
    Spoken(
        "none",
        "R1 with its marker",
        "<think>\nI think.</think>Yes.",
        content="Yes.",
        reasoning="I think.",
        reasoning_format="deepseek_r1",
    ),
    Spoken("none", "R1 cut", "I thi", reasoning="I thi", reasoning_format="deepseek_r1"),
    Spoken("none", "R1 closed by its prompt", "Yes.", content="Yes.", reasoning_format="deepseek_r1", opened=False),
    Spoken("none", "Qwen 3 without", "Yes < no.", content="Yes < no.", reasoning_format="qwen3"),
    Spoken(
        "none",
        "opened by the prompt",
        "Hm.</think>Yes.",
        content="Yes.",
        reasoning="Hm.",
        reasoning_format="qwen3",
        opened=True,
    ),
    Spoken(
        "hermes",
        "Qwen 3 thinks and calls",
        "<think>\nHm.\n</think>\n\n" + hermes(WEATHER_CALL),
        ONE,
        reasoning="Hm.\n",
        reasoning_format="qwen3",
    ),
    Spoken(
        "none",
        "Granite",
        "Here is my thought process:\n\nHm. Here is my idea.\n\nHere's my response:\nYes.",
        content="Yes.",
        reasoning="Hm. Here is my idea.\n\n",
        reasoning_format="granite",
    ),
    Spoken("none", "Granite without", "Here is my cat.", content="Here is my cat.", reasoning_format="granite"),
    Spoken(
        "mistral", "Magistral", "[THINK]Hm.[/THINK]Yes.", content="Yes.", reasoning="Hm.", reasoning_format="mistral"
    ),
]
