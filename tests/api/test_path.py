"""The files of the worker that a live request enters."""

from __future__ import annotations

import threading
from pathlib import Path
from types import FrameType

from tests.api.server import started
from tests.house.test_code import PACKAGE, at
from tests.house.test_path import request_path

# Files and folders of app/forearm that a streamed chat enters in addition to the path, each with its purpose.
BESIDE = {
    "api/http/": "before and after the route: request id, keys, limits, the body's bytes, metrics",
    "api/app.py": "makes the observers of each request",
    "api/engine_client/connection.py": "the socket of the engine client",
    "api/generation/dependencies.py": "the services that are arguments of the route",
    "api/generation/request_bodies.py": "the fields of the body",
    "api/generation/unsupported.py": "refuses fields that are not supported",
    "api/generation/served_model.py": "the heading of the answer",
    "api/generation/tool_choice.py": "checks the tools, of which there are none",
    "text/templates/messages.py": "messages in the form that the template takes",
    "api/generation/reasoning_constraints.py": "the constraint of the answer, of which there is none",
    "api/generation/response_format.py": "the format of the answer, of which there is none",
    "api/generation/usage.py": "the usage in chunks",
    "api/generation/logprobs.py": "the names of tokens in log-probabilities",
    "api/generation/sse.py": "frames of events, keep-alive comments",
    "errors.py": "the default of an exception's fields",
    "text/grammars/lark.py": "warnings of a grammar, of which there is none",
    "text/templates/bounded_template.py": "bounds of the template's time and memory",
    "text/templates/rendering.py": "Jinja's environment, for chat_template.py",
    "text/tokenizer/bad_words.py": "forbidden words, of which there are none",
    "text/tokenizer/detokenizer.py": "token ids to text, for outputs.py",
    "timeouts.py": "the limit of the wait for the engine",
    "text/tool_parsers/": "reasoning and calls in the text, for outputs.py",
}


def test_a_streamed_chat_enters_the_files_of_the_path_and_few_beside(tmp_path: Path) -> None:
    entered: set[str] = set()

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    threading.setprofile(record)  # profiles threads that start from now on: uvicorn's and those it starts
    try:
        with started(tmp_path) as server:
            server.chat("hello", stream=True, max_tokens=3)
            entered.clear()
            reply = server.chat("hello", stream=True, max_tokens=3)
            assert reply.text.endswith("data: [DONE]\n\n")
            files = {at(Path(name)) for name in entered if Path(name).is_relative_to(PACKAGE)}
            print(f"{len(files)} files entered:", *sorted(files), sep="\n")  # pytest -s tests/api/test_path.py
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    worker, _, _, back = request_path()

    assert sorted({*worker, *back} - files) == []
    others = (file.removeprefix("app/forearm/") for file in files - {*worker, *back})
    assert sorted(file for file in others if not file.startswith(tuple(BESIDE))) == []
