"""The output items of a response made from a turn's pieces, and the events that report them."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from forearm import wire
from forearm.api.generation.logprobs import TokenNames, chat_logprobs
from forearm.api.generation.output_stream import Tally
from forearm.api.generation.response_bodies import ErrorBody, encoder
from forearm.api.responses.input_items import pack_reasoning
from forearm.api.responses.tools import OfferedTools, custom_input
from forearm.json_types import Json
from forearm.text.outputs import Piece
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart

_PADDED = 16  # obfuscation pads deltas to multiples of this many characters


@dataclass(frozen=True)
class ResponseForm:
    """The parameters by which one request's output is written."""

    names: TokenNames
    logprobs: bool
    summary: bool  # show reasoning as a summary, which is its whole text
    packed: bool  # add encrypted_content to reasoning items
    tools: OfferedTools
    obfuscated: bool


class OutputItems:
    """The items of one response while they are generated. Each method returns the events that report its changes."""

    def __init__(self, form: ResponseForm) -> None:
        self.items: list[Json] = []
        self._form = form
        self._open: Json | None = None  # the last item, while it is incomplete
        self._text: list[str] = []  # the pieces of its text
        self._logprobs: list[Json] = []
        self._held: list[wire.PositionLogprobs] = []  # log-probabilities of tokens whose text is withheld

    def take(self, piece: Piece) -> list[Json]:
        """Add a piece of the engine's output."""
        events: list[Json] = []
        self._held += piece.logprobs or ()
        for part in piece.parts:
            events += self._part(part)
        return events

    def end(self, whole: bool) -> list[Json]:
        """Close the last item. An answer without any item gets an empty message."""
        events = [] if self.items else self._begin("message", {"role": "assistant", "content": []})
        return events + self._close("completed" if whole else "incomplete")

    def _part(self, part: AnswerPart) -> list[Json]:
        events: list[Json] = []
        if isinstance(part, TextPart):
            if self._open is None or self._open["type"] != "message":
                events = self._close("completed") + self._begin("message", {"role": "assistant", "content": []})
            logprobs: list[Json] = []
            if self._form.logprobs:
                listed = chat_logprobs(self._held, self._form.names).content
                logprobs = [msgspec.to_builtins(one) for one in listed]
            self._held = []
            self._logprobs += logprobs
            return [*events, self._delta("response.output_text.delta", part.text, content_index=0, logprobs=logprobs)]
        self._held = []
        if isinstance(part, ReasoningPart):
            if self._open is None or self._open["type"] != "reasoning":
                fields: Json = {"summary": []} if self._form.summary else {"summary": [], "content": []}
                events = self._close("completed") + self._begin("reasoning", fields)
            if self._form.summary:
                return [*events, self._delta("response.reasoning_summary_text.delta", part.text, summary_index=0)]
            return [*events, self._delta("response.reasoning_text.delta", part.text, content_index=0)]
        if isinstance(part, CallBegin):
            kind, fields = self._form.tools.call(part.name)
            return self._close("completed") + self._begin(kind, {"call_id": part.id, **fields})
        assert isinstance(part, CallArguments)
        if self._open is not None and self._open["type"] == "custom_tool_call":
            self._text.append(part.text)  # part of a JSON object, which can be read only when complete
            return []
        return [self._delta("response.function_call_arguments.delta", part.text)]

    def _begin(self, kind: str, fields: Json) -> list[Json]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}[kind]
        self._open = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self._text, self._logprobs = [], []
        self.items.append(self._open)
        added = {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(self._open)}
        return [added, *self._told("added", self._written("", [], self._open))]

    def _close(self, status: str) -> list[Json]:
        """Complete the open item; it does not change any more."""
        item, text = self._open, "".join(self._text)
        if item is None:
            return []
        part = self._written(text, self._logprobs, item)
        events = self._ended(text, item)
        events += self._told("done", part)
        if item["type"] == "function_call":
            item["arguments"] = text
        elif item["type"] == "custom_tool_call":
            item["input"] = custom_input(text)
        elif item["type"] == "reasoning" and self._form.summary:
            item["summary"] = [part]
        else:
            item["content"] = [part]
        if item["type"] == "reasoning" and self._form.packed:
            item["encrypted_content"] = pack_reasoning(text)
        item["status"] = status
        events.append({"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item})
        self._open = None
        return events

    def _ended(self, text: str, item: Json) -> list[Json]:
        if item["type"] == "function_call":
            fields = {"name": item["name"], "arguments": text}
            return [self._event("response.function_call_arguments.done", **fields)]
        if item["type"] == "custom_tool_call":
            given = custom_input(text)
            delta = self._event("response.custom_tool_call_input.delta", delta=given)
            return [delta, self._event("response.custom_tool_call_input.done", input=given)]
        if item["type"] == "message":
            fields = {"content_index": 0, "text": text, "logprobs": self._logprobs}
            return [self._event("response.output_text.done", **fields)]
        if self._form.summary:
            return [self._event("response.reasoning_summary_text.done", summary_index=0, text=text)]
        return [self._event("response.reasoning_text.done", content_index=0, text=text)]

    def _told(self, change: str, part: Json | None) -> list[Json]:
        """Report the open item's one part as added or done; a call has no parts."""
        if part is None:
            return []
        if part["type"] == "summary_text":
            return [self._event(f"response.reasoning_summary_part.{change}", summary_index=0, part=part)]
        return [self._event(f"response.content_part.{change}", content_index=0, part=part)]

    def _written(self, text: str, logprobs: list[Json], item: Json) -> Json | None:
        """Return the part as an item has it; None for a call."""
        if item["type"] in ("function_call", "custom_tool_call"):
            return None
        if item["type"] == "message":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        return {"type": "summary_text" if self._form.summary else "reasoning_text", "text": text}

    def _delta(self, kind: str, text: str, **fields: object) -> Json:
        self._text.append(text)
        if self._form.obfuscated:
            fields["obfuscation"] = secrets.token_hex(_PADDED)[: _PADDED - len(text) % _PADDED]
        return self._event(kind, delta=text, **fields)

    def _event(self, kind: str, **fields: object) -> Json:
        assert self._open is not None
        return {"type": kind, "item_id": self._open["id"], "output_index": len(self.items) - 1, **fields}


class ResponseProgress:
    """One response from its first event to its last. `told`: whether any client reads the events."""

    def __init__(self, reply: Json, form: ResponseForm, told: bool = True) -> None:
        self.reply = reply  # the response object in its present state
        self._output = OutputItems(form)
        self._told = told
        self._number = 0

    @property
    def status(self) -> str:
        """Return the status of the response object."""
        return str(self.reply["status"])

    def begin(self) -> list[bytes]:
        """Return the events that open the stream."""
        kinds = ["created", "queued"] if self.status == "queued" else ["created", "in_progress"]
        return self._written({"type": f"response.{kind}", "response": self.reply} for kind in kinds)

    def take(self, piece: Piece) -> list[bytes]:
        """Add a piece of the engine's output."""
        events: list[Json] = []
        if self.status == "queued":
            self.reply["status"] = "in_progress"
            events = [{"type": "response.in_progress", "response": self.reply}]
        return self._written([*events, *self._output.take(piece)])

    def end(self, reason: str | None, tally: Tally) -> list[bytes]:
        """Complete the reply and return the last events. `reason`: the turn's finish_reason."""
        whole = reason in ("stop", "tool_calls")
        events = self._output.end(whole)
        self._settle("completed" if whole else "incomplete", tally)
        if not whole:
            self.reply["incomplete_details"] = {"reason": "max_output_tokens" if reason == "length" else None}
        return self._written([*events, {"type": f"response.{self.status}", "response": self.reply}])

    def fail(self, error: ErrorBody, tally: Tally) -> list[bytes]:
        """Mark the response as failed and return the last events."""
        events = self._output.end(whole=False)
        self._settle("failed", tally)
        code = "invalid_prompt" if error.code < 500 else "server_error"
        self.reply["error"] = {"code": code, "message": error.message}
        return self._written([*events, {"type": "response.failed", "response": self.reply}])

    def _settle(self, status: str, tally: Tally) -> None:
        self.reply["status"] = status
        self.reply["output"] = self._output.items
        self.reply["usage"] = usage(tally)
        if status == "completed":
            self.reply["completed_at"] = int(time.time())

    def _written(self, events: Iterable[Json]) -> list[bytes]:
        found: list[bytes] = []
        for event in events if self._told else ():
            numbered = encoder.encode({**event, "sequence_number": self._number})
            found.append(b"event: " + event["type"].encode() + b"\ndata: " + numbered + b"\n\n")
            self._number += 1
        return found


def usage(tally: Tally) -> Json:
    """Return the usage in tokens; tokens written to the prefix cache are not counted separately."""
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
    }
