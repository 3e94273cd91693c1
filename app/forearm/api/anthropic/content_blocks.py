"""The content blocks of a message made from a turn's pieces, and the events that report them."""

from __future__ import annotations

import hashlib
import uuid

import pydantic_core
from msgspec import UNSET

from forearm.api.generation.output_stream import Tally
from forearm.api.generation.served_model import Heading
from forearm.api.responses.input_items import pack_reasoning
from forearm.json_types import Json
from forearm.text.outputs import Piece
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use"}


class ContentBlocks:
    """The content of one message while it is generated. Each method returns the events that report its changes.

    `omitted`: thinking is not shown; its signature holds the text, so that the client sends it back with the messages.
    """

    def __init__(self, omitted: bool) -> None:
        self.content: list[Json] = []
        self._omitted = omitted
        self._open: Json | None = None  # the last block, while it is incomplete
        self._text: list[str] = []  # the pieces of its text

    def take(self, piece: Piece) -> list[Json]:
        """Add a piece of the engine's output."""
        events: list[Json] = []
        for part in piece.parts:
            events += self._part(part)
        return events

    def end(self) -> list[Json]:
        """Complete the open block."""
        block, text, index = self._open, "".join(self._text), len(self.content) - 1
        self._open, self._text = None, []
        if block is None:
            return []
        events: list[Json] = []
        if block["type"] == "text":
            block["text"] = text
        elif block["type"] == "tool_use":
            block["input"] = arguments(text)
        else:
            block["thinking"] = "" if self._omitted else text
            # Unchecked: clients send it back, and some drop thinking without a signature.
            unread = "forearm-" + hashlib.sha256(text.encode()).hexdigest()[:32]
            block["signature"] = pack_reasoning(text) if self._omitted else unread
            events.append(_delta(index, {"type": "signature_delta", "signature": block["signature"]}))
        return [*events, {"type": "content_block_stop", "index": index}]

    def _part(self, part: AnswerPart) -> list[Json]:
        if isinstance(part, CallBegin):
            block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            return [*self.end(), *self._begin(block)]
        events: list[Json] = []
        if isinstance(part, TextPart):
            if self._open is None or self._open["type"] != "text":
                events = [*self.end(), *self._begin({"type": "text", "text": ""})]
            delta = {"type": "text_delta", "text": part.text}
        elif isinstance(part, ReasoningPart):
            if self._open is None or self._open["type"] != "thinking":
                events = [*self.end(), *self._begin({"type": "thinking", "thinking": "", "signature": ""})]
            delta = {"type": "thinking_delta", "thinking": part.text}
        else:
            assert isinstance(part, CallArguments)
            delta = {"type": "input_json_delta", "partial_json": part.text}
        self._text.append(part.text)
        if self._omitted and isinstance(part, ReasoningPart):
            return events
        return [*events, _delta(len(self.content) - 1, delta)]

    def _begin(self, block: Json) -> list[Json]:
        self._open = block
        self.content.append(block)
        return [{"type": "content_block_start", "index": len(self.content) - 1, "content_block": dict(block)}]


def message(head: Heading, tally: Tally) -> Json:
    """Return a message that has no content yet."""
    warnings = {} if head.warnings is UNSET else {"warnings": head.warnings}
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(tally),
        **warnings,
    }


def usage(tally: Tally) -> Json:
    """Return the usage in tokens. Cached tokens do not count as input; tokens written to the cache have no count."""
    return {
        "input_tokens": tally.prompt_tokens - tally.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tally.cached_tokens,
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"thinking_tokens": tally.reasoning_tokens},
    }


def stop(piece: Piece, tally: Tally, max_tokens: int, context: int) -> Json:
    """Return `stop_reason` and `stop_sequence` of a message that has ended."""
    reason = _STOPS.get(str(piece.finish_reason), "end_turn")
    sequence = piece.stop_reason if isinstance(piece.stop_reason, str) else None
    if sequence is not None:
        reason = "stop_sequence"
    full = tally.prompt_tokens + tally.completion_tokens >= context and tally.completion_tokens < max_tokens
    if reason == "max_tokens" and full:
        reason = "model_context_window_exceeded"
    return {"stop_reason": reason, "stop_sequence": sequence}


def arguments(text: str) -> Json:
    """Return a call's input as an object; the readable part of it if the text is cut off or not an object."""
    try:
        parsed = pydantic_core.from_json(text or "{}", allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}
