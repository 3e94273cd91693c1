"""Calls of tools over HTTP. The echo engine says what the chat says, so a test writes what the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall as FunctionCall
from tests.api.letters import write_letters
from tests.api.server import Server, StartServer, started

from forearm.text.tool_parsers.output_parser import find_dialect

KNOWS_TOOLS = (
    "{% for message in messages %}{{ message.content }}{% endfor %}{{ eos_token }}"
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = {**SCHEMA, "additionalProperties": False}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TWICE = CALLED + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("tools"), chat_template=KNOWS_TOOLS) as running:
        yield running


def asked(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def test_calls_come_out_of_the_text(knowing: Server) -> None:
    reply = knowing.openai.chat.completions.create(model="letters", messages=asked(TWICE), tools=[WEATHER, NOW])

    [choice] = reply.choices
    first, second = choice.message.tool_calls or []
    assert isinstance(first, FunctionCall)
    assert isinstance(second, FunctionCall)
    assert (first.function.name, json.loads(first.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert (second.function.name, second.function.arguments) == ("now", "{}")
    assert first.id != second.id
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)


def test_calls_are_streamed_as_their_name_and_then_pieces_of_their_arguments(knowing: Server) -> None:
    text = "I look.\n" + TWICE
    with knowing.openai.chat.completions.create(
        model="letters", messages=asked(text), tools=[WEATHER, NOW], stream=True
    ) as stream:
        chunks = [chunk.choices[0] for chunk in stream if chunk.choices]

    deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    begun = [(d.index, d.function.name, d.type) for d in deltas if d.id and d.function]
    assert begun == [(0, "get_weather", "function"), (1, "now", "function")]
    assert all(d.function and d.function.name is None and d.type is None for d in deltas if not d.id)
    arguments = ["".join(d.function.arguments or "" for d in deltas if d.function and d.index == i) for i in (0, 1)]
    assert arguments == ['{"city": "Oslo"}', "{}"]
    assert len([d for d in deltas if d.index == 0]) > 5
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "I look.\n"
    assert chunks[-1].finish_reason == "tool_calls"


def test_the_clients_own_accumulation_of_a_stream_has_the_calls(knowing: Server) -> None:
    strict: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    strict["function"]["parameters"] = {**SCHEMA, "additionalProperties": False}
    with knowing.openai.chat.completions.stream(model="letters", messages=asked(CALLED), tools=[strict]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()

    assert [(event.name, event.arguments) for event in done] == [("get_weather", '{"city": "Oslo"}')]
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == {"city": "Oslo"}


def test_one_call_at_a_time_is_kept_where_more_are_not_wanted(knowing: Server) -> None:
    body = {"tools": [WEATHER, NOW], "parallel_tool_calls": False}

    whole = knowing.chat(TWICE, **body).json()["choices"][0]
    stream = knowing.chat(TWICE, stream=True, **body).text

    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["get_weather"]
    assert '"name":"now"' not in stream
    assert '"index":1' not in stream


def test_a_call_cut_at_max_tokens_says_length_and_keeps_what_there_is(knowing: Server) -> None:
    choice = knowing.chat(CALLED, tools=[WEATHER], max_tokens=60).json()["choices"][0]

    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "O'}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call_cut_at_max_tokens_shows_no_markup(
    knowing: Server, listing: Server, choice: Any, stream: bool
) -> None:
    """The available part of a call is a call, and never content, for each place where it may be cut off."""
    as_list = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'
    named = isinstance(choice, dict)
    for server, text in ((knowing, CALLED), (listing, '{"city": "Oslo"}' if named else as_list)):
        for length in range(1, len(text)):
            reply = server.chat(text, tools=[WEATHER], tool_choice=choice, max_tokens=length, stream=stream)
            if stream:
                lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n")]
                chunks = [json.loads(line)["choices"][0] for line in lines if line.startswith("{")]
                assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == ""
                assert chunks[-1]["finish_reason"] == "length"
            else:
                [one] = reply.json()["choices"]
                assert (one["message"]["content"] or "", one["finish_reason"]) == ("", "length")


def test_broken_calls_are_text(knowing: Server) -> None:
    choice = knowing.chat("<tool_call>\n{no}\n</tool_call>", tools=[WEATHER]).json()["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == ("<tool_call>\n{no}\n</tool_call>", "stop")
    assert "tool_calls" not in choice["message"]


def test_without_tools_the_text_is_left_alone(knowing: Server) -> None:
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        message = knowing.chat(CALLED, **fields).json()["choices"][0]["message"]
        assert message["content"] == CALLED
        assert "tool_calls" not in message


def test_a_switch_keeps_the_empty_list_of_calls(start_server: StartServer) -> None:
    server = start_server(include_empty_tool_calls=True)
    assert server.chat("hello").json()["choices"][0]["message"]["tool_calls"] == []


def imposed(server: Server) -> list[Any]:
    """Return the JSON schemas in the last grammar that the engine has received."""
    grammars = json.loads(server.engine.submits[-1].params.grammar or "")["grammars"]
    found = [json.JSONDecoder().raw_decode(part)[0] for part in grammars[0]["lark_grammar"].split("%json ")[1:]]
    for schema in found:
        del schema["x-guidance"]
    return found


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a format whose arguments are not JSON, so that calls are imposed as a JSON list."""
    folder = tmp_path_factory.mktemp("lists")
    with started(folder, chat_template=KNOWS_TOOLS, tool_call_parser="pythonic") as running:
        yield running


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_is_imposed_in_the_models_own_format(knowing: Server, choice: Any) -> None:
    reply = knowing.chat(CALLED, tools=[NOW, WEATHER], tool_choice=choice).json()["choices"][0]
    stream = knowing.chat(CALLED, tools=[NOW, WEATHER], tool_choice=choice, stream=True).text

    assert CLOSED in imposed(knowing)
    assert len(imposed(knowing)) == (2 if choice == "required" else 1)
    [call] = reply["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert (reply["finish_reason"], reply["message"]["content"]) == ("tool_calls", None)
    assert '"finish_reason":"tool_calls"' in stream
    assert '"name":"get_weather"' in stream


@pytest.mark.parametrize("stream", [False, True])
def test_elsewhere_a_required_call_is_imposed_as_json(listing: Server, stream: bool) -> None:
    text = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'

    reply = listing.chat(text, tools=[WEATHER, NOW], tool_choice="required", stream=stream)

    [schema] = imposed(listing)
    options = schema["items"]["anyOf"]
    assert [one["properties"]["name"]["const"] for one in options] == ["get_weather", "now"]
    assert options[0]["properties"]["parameters"] == CLOSED
    assert listing.engine.submits[-1].params.grammar_after is None
    if stream:
        assert '"finish_reason":"tool_calls"' in reply.text
        assert '"name":"get_weather"' in reply.text
    else:
        [call] = reply.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}


def test_elsewhere_a_named_functions_arguments_are_the_whole_answer(listing: Server) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}

    reply = listing.chat('{"city": "Oslo"}', tools=[WEATHER, NOW], tool_choice=choice).json()["choices"][0]

    assert imposed(listing) == [CLOSED]
    [call] = reply["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert (reply["finish_reason"], reply["message"]["content"]) == ("tool_calls", None)


def test_some_of_the_tools_may_be_allowed(knowing: Server) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}

    assert knowing.chat("[]", tools=[WEATHER, NOW], tool_choice=choice).status_code == 200

    assert "get_weather" not in (knowing.engine.submits[-1].params.grammar or "")


def test_definitions_of_a_tools_schema_are_found_from_within_the_list(listing: Server) -> None:
    schema = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in "fg"]

    assert listing.chat("[]", tools=tools, tool_choice="required").status_code == 200

    [made] = imposed(listing)
    assert made["$defs"] == {"f0.Place": {"type": "string"}, "f1.Place": {"type": "string"}}
    references = [one["properties"]["parameters"]["properties"]["at"]["$ref"] for one in made["items"]["anyOf"]]
    assert references == ["#/$defs/f0.Place", "#/$defs/f1.Place"]


def test_a_strict_tools_arguments_fit_its_schema_where_the_model_chooses_to_call(knowing: Server) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}

    knowing.chat("x", tools=[strict, NOW])
    with_strict = imposed(knowing)
    knowing.chat("x", tools=[WEATHER, NOW])

    assert with_strict == [CLOSED, {"type": "object"}]
    assert knowing.engine.submits[-1].params.grammar is None


@pytest.mark.parametrize("parser", ["pythonic", "qwen3_coder", "openai"])
def test_a_strict_tool_is_imposed_in_every_format_or_refused(parser: str, start_server: StartServer) -> None:
    server = start_server(chat_template=KNOWS_TOOLS, tool_call_parser=parser)

    def asked_for(parameters: Any, strict: bool, **fields: Any) -> Any:
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
        return server.chat("x", tools=[tool], **fields).json()

    assert "error" not in asked_for(SCHEMA, True)
    grammar = server.engine.submits[-1].params.grammar or ""
    assert "error" not in asked_for(SCHEMA, False)
    assert server.engine.submits[-1].params.grammar is None
    refused = asked_for({**SCHEMA, "not": {"required": ["city"]}}, True)["error"]

    assert "f(" in grammar or "f>" in grammar or "functions.f" in grammar
    assert (refused["code"], refused["param"]) == (400, "tools")
    assert "not" in refused["message"]


def test_gpt_oss_with_a_strict_tool_answers_in_json_or_calls_but_no_other_structure(start_server: StartServer) -> None:
    server = start_server(chat_template=KNOWS_TOOLS, tool_call_parser="openai")
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}

    json_too = server.chat("x", tools=[strict], response_format={"type": "json_object"})
    params = server.engine.submits[-1].params
    refused = server.chat("x", tools=[strict], structured_outputs={"regex": "a+"}).json()["error"]

    assert json_too.status_code == 200
    assert params.grammar_after is None
    assert "<|channel|>final" in (params.grammar or "")
    assert "functions.get_weather" in (params.grammar or "")
    assert (refused["code"], refused["param"]) == (400, "structured_outputs")


def test_an_answer_that_must_be_json_may_be_a_call_instead(knowing: Server) -> None:
    answer = {"type": "object", "properties": {"rain": {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": answer}}

    called = knowing.chat(CALLED, tools=[WEATHER], response_format=form).json()["choices"][0]
    schemas = imposed(knowing)
    knowing.chat("{}", tools=[WEATHER], response_format=form, tool_choice="required")

    assert called["finish_reason"] == "tool_calls"
    assert schemas == [{**answer, "additionalProperties": False}, {"type": "object"}]
    assert imposed(knowing) == [CLOSED]


def test_other_constraints_cannot_go_with_a_call_that_must_be(knowing: Server) -> None:
    body = {"tool_choice": "required", "structured_outputs": {"choice": ["a", "b"]}}
    error = knowing.chat("x", tools=[WEATHER], **body).json()["error"]

    assert (error["code"], error["param"]) == (400, "structured_outputs")


def test_arguments_nested_without_end_are_a_400(server: Server, knowing: Server, start_server: StartServer) -> None:
    telling = start_server(chat_template="{{ messages[0].tool_calls[0].function.arguments | tojson }}{{ eos_token }}")
    for depth in (500, 900, 990, 5000):
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * depth + "]" * depth}}
        messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "x"}]
        for one in (server, knowing, telling):
            reply = one.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
            assert reply.status_code in (200, 400), reply.text


def test_a_schema_that_cannot_be_imposed_is_a_400_naming_the_tools(knowing: Server) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}

    error = knowing.chat("x", tools=[tool], tool_choice="required").json()["error"]

    assert (error["code"], error["param"]) == (400, "tools")
    assert "not" in error["message"]


def test_a_template_that_knows_no_tools_gets_them_as_text(server: Server) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "yes"},
    ]
    body = {"messages": messages, "tools": [WEATHER], "return_prompt_text": True, "max_tokens": 1}

    prompt = server.http.post("/v1/chat/completions", json=body).json()["prompt_text"]

    assert json.dumps(WEATHER) in prompt
    told = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert prompt.endswith(f"Rain?{told}<tool_response>\nyes\n</tool_response><eos>")


def test_a_template_that_knows_no_system_gets_them_in_the_users_message(start_server: StartServer) -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}{{ eos_token }}"
    )
    server = start_server(chat_template=template)

    prompt = server.chat("Rain?", tools=[NOW], return_prompt_text=True, max_tokens=1).json()["prompt_text"]

    assert prompt.startswith("[user]Rain?\n# Tools\n")
    own = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    assert server.chat("x", tools=[NOW], messages=own).status_code == 400


def test_a_template_that_shows_calls_but_no_tools_gets_both_as_text(start_server: StartServer) -> None:
    """A template like R1's: tools are written in Hermes' format, in which calls are read, not in the template's own."""
    server = start_server(
        chat_template="{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% endif %}"
        "{% endfor %}{{ eos_token }}"
    )

    reply = server.chat("x", tools=[NOW], return_prompt_text=True, max_tokens=1).json()

    assert "<tool_call>" in reply["prompt_text"]
    assert server.engine.submits
    server.chat("x", tools=[NOW], tool_choice="required")
    assert "<tool_call>" in (server.engine.submits[-1].params.grammar or "")


def test_a_template_that_shows_a_messages_tools_gets_them_there(start_server: StartServer) -> None:
    shown = (  # as Phi-4-mini's
        "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m %}"
        "{{ '<|tool|>' + m['tools'] + '<|/tool|>' }}{% endif %}{{ m['content'] }}{% endfor %}{{ eos_token }}"
    )
    server = start_server(chat_template=shown)

    prompt = server.chat("x", tools=[NOW], return_prompt_text=True, max_tokens=1).json()["prompt_text"]

    assert prompt == '<|tool|>[{"name": "now"}]<|/tool|>You are a helpful assistant with some tools.x<eos>'


def test_a_models_own_template_for_tools_is_taken_where_there_are_tools(
    start_server: StartServer, tmp_path: Path
) -> None:
    folder = write_letters(tmp_path / "hermes")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(KNOWS_TOOLS)
    server = start_server(model_folder=str(folder))

    def prompt(**fields: Any) -> str:
        return str(server.chat("x", return_prompt_text=True, max_tokens=1, **fields).json()["prompt_text"])

    assert prompt() == "x<eos>"
    assert prompt(tools=[NOW]) == f"x<eos>[{json.dumps(NOW)}] <tool_call>"


def test_tools_may_be_kept_from_the_template_where_none_is_to_be_called(start_server: StartServer) -> None:
    server = start_server(chat_template=KNOWS_TOOLS, exclude_tools_when_tool_choice_none=True)

    def prompt(**fields: Any) -> str:
        reply = server.chat("x", tools=[WEATHER], return_prompt_text=True, max_tokens=1, **fields)
        return str(reply.json()["prompt_text"])

    assert "get_weather" not in prompt(tool_choice="none")
    assert "get_weather" in prompt()


@pytest.mark.parametrize(
    ("settings", "param", "says"),
    [
        ({"enable_auto_tool_choice": False}, "tool_choice", "--no-enable-auto-tool-choice"),
        ({"chat_template": "{{ tools }}{{ messages[0].content }}"}, "tools", "--tool-call-parser (apertus, "),
    ],
)
def test_where_models_cannot_be_left_the_choice_that_is_said(
    start_server: StartServer, settings: dict[str, Any], param: str, says: str
) -> None:
    server = start_server(**settings)

    error = server.chat("x", tools=[WEATHER]).json()["error"]

    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert server.chat("[]", tools=[WEATHER], tool_choice="required").status_code == 200


def test_mistrals_calls_have_ids_that_its_templates_take(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(tool_call_parser="mistral")

    call = server.chat("x", tools=[NOW], messages=asked("[TOOL_CALLS]now[ARGS]{}")).json()["choices"][0]["message"]

    assert [len(one["id"]) for one in call["tool_calls"]] == [9]


def test_arguments_of_earlier_calls_are_objects_for_templates(start_server: StartServer) -> None:
    shown = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}{{ call.id }}:"
        "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}"
        "{% if m.role == 'tool' %}{{ m.tool_call_id }}>{% endif %}{{ m.content or '' }}{% endfor %}{{ eos_token }}"
    )
    server = start_server(chat_template=shown)
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": [true]}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
        {"id": "c", "type": "function", "function": {"name": "h", "arguments": '{"city": "O'}},
        {"id": "d", "type": "function", "function": {"name": "i", "arguments": "[1]"}},
        {"id": "e", "type": "function", "function": {"name": "j", "arguments": "null"}},
    ]
    messages = [
        {"role": "user", "content": "hi "},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "ok"}]},
    ]

    reply = server.http.post("/v1/chat/completions", json={"messages": messages}).json()

    assert reply["choices"][0]["message"]["content"] == 'hi a:x=1;y=[True];b:c:invalid={"city": "O;d:invalid=[1];e:a>ok'


@pytest.mark.parametrize("content", [None, "", []])
def test_templates_that_know_calls_by_their_missing_content_see_them(start_server: StartServer, content: Any) -> None:
    shown = (  # as in DeepSeek V3's and R1's templates
        "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}"
        "{{ m['tool_calls'][0]['function']['name'] + m['tool_calls'][0]['function']['arguments'] }}{% endif %}"
        "{% if m['content'] is not none %}{{ m['content'] }}{% endif %}{% endfor %}{{ eos_token }}"
    )
    server = start_server(chat_template=shown)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "hi "}, {"role": "assistant", "content": content, "tool_calls": [call]}]

    reply = server.http.post("/v1/chat/completions", json={"messages": messages}).json()

    assert reply["choices"][0]["message"]["content"] == 'hi f{"a": 1}'


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("mistral", "I look.[TOOL_CALLS]now[ARGS]{}"),
        ("deepseek_v31", "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        ("deepseek_v32", 'I look.<｜DSML｜function_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>'),
        ("granite", 'I look.<|tool_call|>[{"name": "now", "arguments": {}}]'),
        (
            "openai",
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
            "<|constrain|>json<|message|>{}<|call|>",
        ),
    ],
)
def test_markers_that_are_special_tokens_are_seen_and_others_left_out(
    start_server: StartServer, tmp_path: Path, parser: str, text: str
) -> None:
    marks = sorted(find_dialect("", parser, "").marks("auto"))
    folder = write_letters(tmp_path / "special", template=KNOWS_TOOLS, special=["<|other|>", *marks])
    server = start_server(model_folder=str(folder), tool_call_parser=parser)

    whole = server.chat(f"<|other|>{text}", tools=[NOW]).json()["choices"][0]
    stream = server.chat(f"<|other|>{text}", tools=[NOW], stream=True).text
    shown = server.chat("a<|other|>b", skip_special_tokens=False).json()["choices"][0]["message"]["content"]

    assert (whole["message"]["content"], whole["finish_reason"]) == ("I look.", "tool_calls")
    assert [call["function"] for call in whole["message"]["tool_calls"]] == [{"name": "now", "arguments": "{}"}]
    assert '"name":"now"' in stream
    assert "other" not in stream
    assert shown == "a<|other|>b"


@pytest.mark.parametrize("content", [None, "", []])
def test_templates_that_look_into_the_content_of_calls_find_text(start_server: StartServer, content: Any) -> None:
    server = start_server(  # as in Qwen3's first templates
        chat_template="{% for m in messages %}{% if '</think>' not in m.content %}<{{ m.content }}>{% endif %}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{{ eos_token }}{% endif %}{% endfor %}"
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content, "tool_calls": [call]}]

    reply = server.http.post("/v1/chat/completions", json={"messages": messages}).json()

    assert reply["choices"][0]["message"]["content"] == "<hi><>f"
