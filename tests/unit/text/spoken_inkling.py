"""Samples of Inkling's messages, after vLLM's parser inkling, and of messages that the prompt opened."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.text.spoken import ONE, OSLO, TWO, Spoken

_MODEL, _END, _EOS = "<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"
_INVOKE = "<|content_invoke_tool_json|>"


def _thought(text: str) -> str:
    return f"<|content_thinking|>{text}{_END}"


def _said(text: str) -> str:
    return f"<|content_text|>{text}{_END}"


def _called(payload: str, name: str = "") -> str:
    return f"{name}{_INVOKE}{payload}{_END}"


_WEATHER = '{"name":"get_weather","args":' + OSLO + "}"
_NOW = '{"name":"now","args":{}}'
_NOW_CALLED = _called(_NOW, "now")
_ALL = _MODEL.join([_thought("Hm."), _said("I look."), _called(_WEATHER, "get_weather"), _NOW_CALLED]) + _EOS

_SAMPLES = [
    Spoken("", "reasoning, text and two calls", _ALL, TWO, "I look.", "Hm."),
    Spoken("", "the first mark is the model's", _MODEL + _ALL, TWO, "I look.", "Hm."),
    Spoken(
        "",
        "text between calls and after them, reasoning again",
        _MODEL.join([_called(_WEATHER), _said("So.\n"), _thought("Hm."), _NOW_CALLED, _thought(" Yes."), _said("<b>")]),
        TWO,
        "So.\n<b>",
        "Hm. Yes.",
    ),
    Spoken("", "arguments first", _called('{"args":' + OSLO + ',"name":"get_weather"}'), ONE),
    Spoken("", "arguments first, an unknown name before", _called('{"args":{},"name":"now"}', "f"), [("now", "{}")]),
    Spoken(
        "", "arguments first, a known name before", _called('{"args":' + OSLO + ',"name":"now"}', "get_weather"), ONE
    ),
    Spoken("", "two names: JSON's counts", _called(_NOW, "get_weather"), [("now", "{}")]),
    Spoken("", "a name before that no tool has", _called(_NOW, "never"), [("now", "{}")]),
    Spoken("", "a name before alone", _called('{"args":{"a":1}}', "now"), [("now", '{"a":1}')]),
    Spoken(
        "", "white space, other keys", _called(' { "type": "f", "name" : "now" , "arguments" : {} } '), [("now", "{}")]
    ),
    Spoken("", "no arguments", _called('{"name":"now"}', "now"), [("now", "{}")]),
    Spoken("", "written into a string", _called('{"name":"now","args":"{\\"a\\":1}"}'), [("now", '{"a":1}')]),
    Spoken(
        "",
        "brackets and quotes within strings",
        _called('{"name":"now","args":{"a":"}]\\" \\\\","b":[{"c":"{\\"args\\":"}]}}', "now"),
        [("now", '{"a":"}]\\" \\\\","b":[{"c":"{\\"args\\":"}]}')],
    ),
    Spoken(
        "",
        "broken arguments",
        _called('{"name":"now","args":{"a":', "now") + _MODEL + _said("So."),
        [("now", '{"a":')],
        "So.",
    ),
    Spoken("", "no JSON", _called("{name: now}", "now"), content="now" + _called("{name: now}")),
    Spoken(
        "",
        "no name",
        _called('{"args":{}}', "f") + _MODEL + _said("So."),
        content="f" + _called('{"args":{}}') + "So.",
    ),
    Spoken("", "sampling ends a call", f"now{_INVOKE}{_NOW}{_EOS}", [("now", "{}")]),
    Spoken("", "sampling ends reasoning", f"<|content_thinking|>Hm.{_EOS}", reasoning="Hm."),
    Spoken("", "sampling ends a text", f"<|content_text|>So.{_EOS}", content="So."),
    Spoken(
        "", "a text without its end", f"{_thought('Hm.')}{_MODEL}<|content_text|>So.", content="So.", reasoning="Hm."
    ),
    Spoken("", "reasoning without its end", "<|content_thinking|>Hm. <b", reasoning="Hm. <b"),
    Spoken(
        "",
        "no end before the next message",
        f"<|content_thinking|>Hm.{_MODEL}{_NOW_CALLED}",
        [("now", "{}")],
        "",
        "Hm.",
    ),
    Spoken("", "a call that ends reasoning", f"<|content_thinking|>Hm.{_INVOKE}{_NOW}", [("now", "{}")], "", "Hm."),
    Spoken("", "a call without its end", f"now{_INVOKE}{_NOW}{_MODEL}{_said('So.')}", [("now", "{}")], "So."),
    Spoken("", "cut in the arguments", f'now{_INVOKE}{{"name":"now","args":{{"a":"x', [("now", '{"a":"x')]),
    Spoken("", "cut in arguments that come first", f'now{_INVOKE}{{"args":{{"a":"x', [("now", '{"a":"x')]),
    Spoken("", "cut before the name", f'{_INVOKE}{{"na', content=f'{_INVOKE}{{"na'),
    Spoken("", "cut in a name that a mark introduces", f"{_said('So.')}{_MODEL}get_wea", content="So."),
    Spoken("", "cut in a name that none introduces", "get_wea", content="get_wea"),
    Spoken("", "cut in a mark", f"{_said('So.')}{_MODEL}now<|content_inv", content="So."),
    Spoken("", "no marks", "It is 3 < 4, and <|message is no mark.", content="It is 3 < 4, and <|message is no mark."),
    Spoken("", "text that goes on", f"So.{_END}{_MODEL}{_NOW_CALLED}", [("now", "{}")], "So."),
    Spoken("", "long text without marks", "word " * 60 + _END, content="word " * 60),
    Spoken("", "long text behind a mark", f"{_MODEL}{_MODEL}{'word ' * 60}", content="word " * 60),
    Spoken("", "an author of a text", f"me<|content_text|>So.{_END}", content="So."),
    Spoken("", "a call that is no JSON", f"f<|content_invoke_tool_text|>ls{_END}", content="ls"),
    Spoken("", "nothing said", f"{_MODEL}{_END}{_EOS}"),
    Spoken("", "opened by the prompt", f"Hm.{_END}{_MODEL}{_NOW_CALLED}", [("now", "{}")], "", "Hm.", opened=True),
    Spoken(
        "", "an answer that the prompt opened", f"now{_END}{_MODEL}{_NOW_CALLED}", [("now", "{}")], "now", opened=False
    ),
]
INKLING = [
    *(replace(one, format="inkling", reasoning_format="inkling") for one in _SAMPLES),
    Spoken("none", "either name is enough", _ALL, TWO, "I look.", "Hm.", "inkling"),
    Spoken(
        "openai",
        "opened by the prompt",
        "Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.",
        content="So.",
        reasoning="Hm.",
        opened=True,
    ),
    Spoken("openai", "an answer that the prompt opened", "So.<|end|>", content="So.", opened=False),
]
