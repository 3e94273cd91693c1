"""One output as it grows: what each message of the engine adds to it, and all of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forearm import wire
from forearm.text.tokenizer.detokenizer import OutputText, TextOptions
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.text.tool_parsers.output_parser import OutputParser
from forearm.text.tool_parsers.parts import AnswerPart, CallBegin, ReasoningPart, TextPart, joined


@dataclass(frozen=True)
class Piece:
    """The part of one choice that one message of the engine adds.

    finish_reason: stop, length, repetition, abort, or tool_calls, where the model stopped after it had called a tool.
    """

    choice: int
    parts: list[AnswerPart]
    token_ids: list[int]
    logprobs: list[wire.PositionLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None

    @property
    def text(self) -> str:
        """The text of the answer itself."""
        return "".join([part.text for part in self.parts if isinstance(part, TextPart)])

    def after(self, before: Piece) -> Piece:
        """Return both as one."""
        return Piece(
            self.choice,
            joined([*before.parts, *self.parts]),
            [*before.token_ids, *self.token_ids],
            None if self.logprobs is None else [*(before.logprobs or ()), *self.logprobs],
            self.finish_reason,
            self.stop_reason,
        )


@dataclass
class ToolCall:
    """One call of a tool; `arguments` is the JSON text that the model wrote, cut where the answer was."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Choice:
    """One choice with all its pieces."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[wire.PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, piece: Piece) -> None:
        """Take in the next piece."""
        for part in piece.parts:
            if isinstance(part, TextPart):
                self.text += part.text
            elif isinstance(part, ReasoningPart):
                self.reasoning += part.text
            elif isinstance(part, CallBegin):
                self.calls.append(ToolCall(part.id, part.name))
            else:
                self.calls[part.index].arguments += part.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs or ()
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason


class OutputReader:
    """Reads one output: tokens to text up to a stop string, and text to reasoning and calls where there is a parser.

    options: None: tokens stay tokens. must_call: the answer has to be calls.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        options: TextOptions | None,
        parser: OutputParser | None = None,
        must_call: bool = False,
    ) -> None:
        self._text = None if options is None else OutputText(tokenizer, prompt, options)
        self._silent_end = options is not None and not options.include_stop_str_in_output
        self._parser = parser
        self._must_call = must_call
        self._has_called = False

    @property
    def is_stopped(self) -> bool:
        """Return whether a stop string has ended the output, which the engine does not know."""
        return self._text is not None and self._text.matched is not None

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return 0 if self._parser is None else self._parser.reasoning_tokens

    def read(self, choice: int, message: wire.Tokens) -> Piece:
        """Return what the message adds, up to the token with which a stop string ends the output."""
        text, texts = self._text, list[str]()
        used, last = len(message.token_ids), len(message.token_ids) - 1
        finish_reason: str | None = message.finish_reason
        stop_reason: int | str | None = message.stop_reason
        if text is not None:
            for position, token_id in enumerate(message.token_ids):
                # The engine says stop for the end of sequence and for stop tokens: they are no text.
                silent = position == last and finish_reason == "stop" and self._silent_end
                texts.append(text.add(token_id, silent))
                if text.matched is not None:
                    break
            used = len(texts)
            if finish_reason is not None:
                texts.append(text.finish())
            if text.matched is not None:
                finish_reason, stop_reason = "stop", text.matched
        token_ids = message.token_ids[:used]
        logprobs = None if message.logprobs is None else message.logprobs[:used]
        if self._parser is None:
            whole = "".join(texts)
            return Piece(choice, [TextPart(whole)] if whole else [], token_ids, logprobs, finish_reason, stop_reason)
        parts: list[AnswerPart] = []
        for number, one in enumerate(texts):
            parts += self._parser.add(one, token_ids[number : number + 1])
        if finish_reason is not None:
            # If a required call is cut off before its name, the text that the parser has withheld is only markup.
            drops_text = self._must_call and (finish_reason != "stop" or isinstance(stop_reason, str))
            parts += [one for one in self._parser.finish() if not (drops_text and isinstance(one, TextPart))]
        self._has_called = self._has_called or any(isinstance(part, CallBegin) for part in parts)
        if finish_reason == "stop" and self._has_called:  # one that was cut off says so: its last call may be cut too
            finish_reason = "tool_calls"
        return Piece(choice, joined(parts), token_ids, logprobs, finish_reason, stop_reason)
