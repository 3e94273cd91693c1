"""`forearm chat` at a real terminal: editing, history, Ctrl-C, errors, and the commands within a conversation."""

from __future__ import annotations

import json
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.served import serve, wait_until
from tests.e2e.terminals import PROMPT, terminal
from tests.unit.test_chat import TinyServer
from tests.unit.test_chat import server as server  # the fixture

UP, HOME, ESCAPE_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x01", "\x1b\r", "\x03", "\x04"
DONE = r"tokens/s\]"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def asked(server: TinyServer) -> list[Any]:
    """The last message of each request."""
    return [body["messages"][-1]["content"] for body in server.bodies]


def test_lines_are_edited_continued_and_pasted_and_recalled_the_next_time(server: TinyServer, tmp_path: Path) -> None:
    with terminal("chat", "--url", server.url) as screen:
        for keys in (f"lacier?{HOME}G", "one\\\rtwo", f"one{ESCAPE_ENTER}two", "\x1b[200~1\n2\n3\x1b[201~"):
            screen.enter(keys)
            screen.expect(DONE)
        screen.expect(PROMPT)
        screen.type(f"not sent{CTRL_C}")
        screen.expect("/help tells more")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.ended() == 0
    assert asked(server) == ["Glacier?", "one\ntwo", "one\ntwo", "1\n2\n3"]

    with terminal("chat", "--url", server.url) as screen:
        screen.enter(UP * 4)
        screen.expect(DONE)
        screen.enter("/bye")
        assert screen.ended() == 0
    assert len(server.bodies) == 5
    history = tmp_path / "state/forearm/chat_history"
    assert "Glacier?" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_the_answer_alone(tmp_path: Path) -> None:
    with (
        serve(tmp_path, "--override-generation-config", '{"max_new_tokens": 4000}') as served,
        terminal("chat", "--url", served.url, "--max-tokens", "1900") as screen,
    ):
        screen.enter("/set ignore_eos true")
        screen.expect("max_tokens 1900\r\nignore_eos true")
        with served.endless(n=64):  # beside it the answer takes several seconds
            screen.enter("What is a glacier?")
            screen.expect("glacier is")
            screen.type(CTRL_C)
            screen.expect("stopped")
        wait_until(lambda: served.running() == 0)
        screen.enter("/set ignore_eos")
        screen.expect("max_tokens 1900")
        screen.enter("And a sparrow?")
        screen.expect(DONE)
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.ended() == 0


def test_errors_and_a_busy_server_do_not_end_it_and_a_failed_question_is_forgotten(server: TinyServer) -> None:
    server.key = "sesame"
    with terminal("chat", "--url", server.url, "--api-key", "other") as screen:
        screen.enter("first")
        screen.expect("401: the API key is wrong")
        server.key, server.busy = None, 1
        screen.enter("second")
        screen.expect("503: no engine answers; waiting")
        screen.expect("SECOND")
        server.breaks = True
        screen.expect(DONE)
        screen.enter("third")
        screen.expect("the engine went away")
        server.breaks = False
        screen.enter("fourth")
        screen.expect("FOURTH")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.ended() == 0
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["second", "SECOND", "fourth"]


def test_answers_are_drawn_as_markdown(server: TinyServer) -> None:
    server.thought = "Hm."
    with terminal("chat", "--url", server.url, "-q", "a **big**\n\n- word") as screen:
        shown = screen.expect("• WORD")
        assert "Hm." in shown
        assert "A BIG" in shown
        assert "**" not in shown
        assert screen.ended() == 0
        assert "tokens/s" not in screen.shown  # as --stats was not given


COMMANDS = (
    ("/help", r"/image FILE"),
    ("/hlp", "there is no command /hlp; did you mean /help"),
    ("/system", "system message: Be kind"),
    ("/system Be brief.", "system message: Be brief"),
    ("/set temperature 0.5", "\r\ntemperature 0.5"),
    ('/set stop ["."]', "stop"),
    ("/image cat.png", "tiny takes text alone"),
    ("/model big", "no model big; it has tiny, small"),
    ("/model small", "small .the server has tiny, small"),
    ("/load /no/such", "No such file"),
    ("/save", "name a file: /save FILE"),
)


def test_commands_of_a_conversation(server: TinyServer, tmp_path: Path) -> None:
    tools, saved = tmp_path / "tools.json", tmp_path / "saved.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "weather"}}]))
    with terminal("chat", "--url", server.url, "--system-prompt", "Be kind.") as screen:
        for typed, shown in COMMANDS:
            screen.enter(typed)
            screen.expect(shown)
        screen.enter(f"/tools {tools}")
        screen.expect("tools: weather")
        screen.enter("weather?")
        screen.expect('weather.*"of": 1')
        screen.expect("result of weather:")
        screen.type("rain\r")
        screen.expect("RAIN")
        screen.expect(DONE)
        screen.enter(f"/save {saved}")
        screen.expect("saved 5 messages")
        screen.enter("/clear")
        screen.expect("begins anew")
        screen.enter("new")
        screen.expect("NEW")
        screen.expect(DONE)
        screen.enter(f"/load {saved}")
        screen.expect("loaded 5 messages")
        screen.enter("more")
        screen.expect("MORE")
        screen.enter("/bye")
        assert screen.ended() == 0
    tool, anew, loaded = server.bodies[-3:]
    assert (tool["model"], tool["temperature"], tool["stop"]) == ("small", 0.5, ["."])
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"of": 1}'}}
    assert tool["messages"][-2:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    assert [message["content"] for message in anew["messages"]] == ["Be brief.", "new"]
    assert loaded["messages"] == [*tool["messages"], {"role": "assistant", "content": "RAIN"}, loaded["messages"][-1]]


def test_a_call_whose_result_is_given_up_leaves_nothing_in_the_conversation(server: TinyServer, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "weather"}}]))
    with terminal("chat", "--url", server.url) as screen:
        screen.enter(f"/tools {tools}")
        screen.expect("tools: weather")
        for given_up in (CTRL_C, CTRL_D):
            screen.enter("weather?")
            screen.expect("result of weather:")
            screen.type(given_up)
            screen.expect("stopped")
        screen.enter("later")
        screen.expect("LATER")
        screen.expect(DONE)
        screen.enter("/bye")
        assert screen.ended() == 0
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "later"}]


def test_a_history_for_which_the_disk_has_no_room_ends_no_conversation(server: TinyServer) -> None:
    with terminal("chat", "--url", server.url) as screen:
        screen.enter("first")
        screen.expect(DONE)
        resource.prlimit(screen.pid, resource.RLIMIT_FSIZE, (0, 0))  # writing to a file is an OSError from now on
        screen.enter("second")
        assert "exception" not in screen.expect(DONE)
        screen.enter("/bye")
        assert screen.ended() == 0
