from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forearm.errors import ConfigError, InvalidRequest
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.templates import bounded_template
from forearm.text.templates.chat_template import (
    ChatTemplate,
    TemplateMessage,
    check_rendering,
    find_chat_template,
    find_tool_template,
)
from forearm.text.tokenizer.tokenizer import load_tokenizer

TURNS = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls is defined %}!{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO: list[TemplateMessage] = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[TemplateMessage], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_a_conversation_is_rendered_with_the_models_special_tokens() -> None:
    assert render(TURNS, HELLO) == "<s><user>hello<assistant>"
    assert render(TURNS, HELLO, add_generation_prompt=False) == "<s><user>hello"


def test_an_explicit_null_is_as_good_as_absent() -> None:
    assert render(TURNS, [{"role": "user", "content": "hello", "tool_calls": None}]) == "<s><user>hello<assistant>"


def test_the_last_message_can_be_continued() -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The answer"}]

    assert render(TURNS, begun, add_generation_prompt=False, continue_final_message=True).endswith("The answer")


def test_variables_of_the_request_reach_the_template() -> None:
    assert render("{{ mood }}{{ documents[0].title }}", HELLO, kwargs={"mood": "gay"}, documents=[{"title": "T"}]) == (
        "gayT"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only users may speak') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_whatever_a_template_does_wrong_is_the_requests_fault_and_stays_in_the_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source, HELLO)


def test_a_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    assert find_chat_template(tmp_path, None, None) is None
    assert find_chat_template(tmp_path, None, "from the tokenizer") == "from the tokenizer"
    assert find_chat_template(tmp_path, None, {"default": "D", "rag": "R"}) == "D"

    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert find_chat_template(tmp_path, None, "from the tokenizer") == "J"

    (tmp_path / "chat_template.jinja").write_text("file")
    assert find_chat_template(tmp_path, None, "from the tokenizer") == "file"

    (tmp_path / "mine.txt").write_text("mine")
    assert find_chat_template(tmp_path, str(tmp_path / "mine.txt"), None) == "mine"
    assert find_chat_template(tmp_path, "{{ inline }}", None) == "{{ inline }}"


def test_a_template_for_tools_is_found_beside_the_others(tmp_path: Path) -> None:
    assert find_tool_template(tmp_path, None, "one") is None
    assert find_tool_template(tmp_path, None, {"default": "D", "tool_use": "T"}) == "T"
    assert find_tool_template(tmp_path, "{{ given }}", {"default": "D", "tool_use": "T"}) is None

    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file")
    assert find_tool_template(tmp_path, None, {"tool_use": "T"}) == "file"


def test_a_template_that_is_not_there_is_said_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no/such/file"):
        find_chat_template(tmp_path, "no/such/file", None)


def test_the_demo_models_template_renders_as_transformers_renders_it() -> None:
    tokenizer = load_tokenizer(DEMO_MODEL)
    source = find_chat_template(DEMO_MODEL, None, tokenizer.parts.chat_template)
    assert source is not None
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is ice?"},
        {"role": "assistant", "content": "Frozen water."},
        {"role": "user", "content": "And snow?"},
    ]

    rendered = ChatTemplate(source, tokenizer.parts.special_tokens_map).render(turns)

    expected = tokenizer.as_transformers.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert rendered == expected
    token_ids = tokenizer.as_transformers.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode(rendered, add_special_tokens=False) == token_ids


def test_a_template_that_cannot_render_a_greeting_within_bounds_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_template, "MOST_S", 0.2)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    with pytest.raises(ConfigError, match=r"takes more than 0\.2 s; give another with --chat-template"):
        check_rendering(ChatTemplate(endless, {}), given=False)

    check_rendering(ChatTemplate("{{ raise_exception('a tool, please') }}", {}), given=True)


def test_a_malformed_template_ends_the_start_if_the_operator_gave_it() -> None:
    malformed = ChatTemplate("{% if messages %}", {})

    with pytest.raises(ConfigError, match="--chat-template: the chat template is malformed: Unexpected end"):
        check_rendering(malformed, given=True)
    check_rendering(malformed, given=False)  # completions need none


def test_half_a_surrogate_pair_and_megabytes_are_no_template(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\\ud800', half a surrogate pair, at character 2"):
        find_chat_template(tmp_path, None, "ab\ud800")
    with pytest.raises(ConfigError, match="at most 1048576 are read"):
        find_chat_template(tmp_path, None, "x" * 1_048_577)
