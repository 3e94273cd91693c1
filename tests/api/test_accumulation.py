"""Clients that accumulate our events get the same answer as without a stream, for any order of parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pydantic
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from tests.api.letters import write_letters
from tests.api.test_responses import Exact

from forearm.api.anthropic.content_blocks import ContentBlocks, message
from forearm.api.generation.logprobs import TokenNames
from forearm.api.generation.output_stream import Tally
from forearm.api.generation.response_bodies import ErrorBody
from forearm.api.generation.served_model import Heading
from forearm.api.responses.output_items import ResponseForm, ResponseProgress
from forearm.api.responses.tools import OfferedTools
from forearm.text.outputs import Piece
from forearm.text.tokenizer.tokenizer import load_tokenizer
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart

TEXT = st.text('ab \n🙂"\\', min_size=1, max_size=5)
OPENAI: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
ANTHROPIC: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(RawMessageStreamEvent)
BROKE = ErrorBody(message="broke", type="InternalServerError", param=None, code=500)
EMPTY = Piece(0, [], [], None, None, None)
REPLY = {
    "id": "resp_0",
    "object": "response",
    "created_at": 0,
    "status": "in_progress",
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
}


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """A turn: parts in any order, in messages of any size; calls are numbered as they come."""
    parts: list[AnswerPart] = []
    for kind in draw(st.lists(st.sampled_from("trc"), max_size=8)):
        if kind == "c":
            index = sum(isinstance(part, CallBegin) for part in parts)
            parts.append(CallBegin(index, f"call_{index}", "look_up"))
            written = json.dumps(draw(st.dictionaries(TEXT, TEXT, max_size=2)))
            cut = draw(st.integers(0, len(written)))
            parts += [CallArguments(index, piece) for piece in (written[:cut], written[cut:]) if piece]
        else:
            parts.append((TextPart if kind == "t" else ReasoningPart)(draw(TEXT)))
    found = []
    while parts:
        size = draw(st.integers(1, 4))
        found.append(replace(EMPTY, parts=parts[:size]))
        parts = parts[size:]
    return found


def names(folder: Path) -> TokenNames:
    folder.mkdir(exist_ok=True)
    return TokenNames(load_tokenizer(write_letters(folder)), as_ids=False)


def bare(item: Any) -> dict[str, Any]:
    """Return the item without the fields that only its last event has."""
    return {name: value for name, value in item.to_dict().items() if name not in ("status", "encrypted_content")}


def test_responses_are_accumulated_to_what_they_end_with(tmp_path: Path) -> None:
    letters = names(tmp_path / "letters")

    @settings(deadline=None)
    @given(
        turn=pieces(),
        reason=st.sampled_from(["stop", "length", "tool_calls", None]),
        flags=st.tuples(*[st.booleans()] * 3),
    )
    def holds(turn: list[Piece], reason: str | None, flags: tuple[bool, bool, bool]) -> None:
        summary, packed, obfuscated = flags
        progress = ResponseProgress(
            dict(REPLY), ResponseForm(letters, False, summary, packed, OfferedTools(), obfuscated)
        )
        tally = Tally(3)
        written = progress.begin()
        for piece in turn:
            written += progress.take(piece)
        written += progress.end(reason, tally) if reason else progress.fail(BROKE, tally)
        state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
        numbers = []
        for block in written:
            event = OPENAI.validate_python(json.loads(block.split(b"data: ")[1]))
            numbers.append(event.sequence_number)
            state.handle_event(event)

        assert numbers == list(range(len(written)))
        final = Exact.response(progress.reply)
        done = [item.to_dict() for _, item in sorted(state._completed_output.items())]
        assert done == [item.to_dict() for item in final.output]
        snapshot = state._ResponseStreamState__current_snapshot
        # the client does not accumulate this field
        grown = [bare(item) for item in snapshot.output if item.type != "reasoning"]
        assert grown == [bare(item) for item in final.output if item.type != "reasoning"]
        assert final.status == {"length": "incomplete", None: "failed"}.get(reason, "completed")

    holds()


@settings(deadline=None)
@given(turn=pieces(), omitted=st.booleans())
def test_messages_are_accumulated_to_what_they_are(turn: list[Piece], omitted: bool) -> None:
    blocks = ContentBlocks(omitted)
    start = {"type": "message_start", "message": message(Heading("m", 0, "m", None), Tally(3))}
    events = [start, *(event for piece in turn for event in blocks.take(piece)), *blocks.end()]
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in json.loads(json.dumps(events)):
        read = ANTHROPIC.validate_python(event)
        snapshot = accumulate_event(event=read, current_snapshot=snapshot, json_bufs=buffers)

    told = [block.to_dict() for block in cast(Any, snapshot).content]
    assert told == blocks.content
