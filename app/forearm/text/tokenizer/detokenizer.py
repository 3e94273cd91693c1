"""Token ids to text as they come: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forearm.text.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Tokens of the prompt that give the first output tokens their context (a leading space, a character begun).
_CONTEXT_TOKENS = 6


class Detokenizer:
    """One output's ids to text. The pieces joined equal the text of the whole, less an unfinished last character.

    Each step decodes a small window: the last tokens that gave text, and those that did not yet. What the window says
    beyond what its first part said is new. A window never begins inside a character, nor with tokens that give no text
    (decoders strip the space of what they take for the start of a text).
    Technique: prefix and read offsets, as in Text Generation Inference and vLLM.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._tight = not skip_special_tokens and not spaces_between_special_tokens
        self._after_added = False
        self._window = self._context(prompt_token_ids)
        self._read = self._whole_characters(self._window)  # tokens of the window whose text is out
        self._shown = self._decode(self._window[: self._read])

    def add(self, token_id: int) -> str:
        """The text this token completes; empty while a character is unfinished."""
        self._window.append(token_id)
        if self._tight and self._is_second_added(token_id):
            text = self._tokenizer.added[token_id]
        else:
            whole = self._decode(self._window)
            if len(whole) <= len(self._shown) or whole.endswith(_REPLACEMENT):
                return ""
            text = whole[len(self._shown) :]
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._shown = self._decode(self._window)
        return text

    def finish(self) -> str:
        """What was held back; of an unfinished character nothing comes."""
        whole = self._decode(self._window).rstrip(_REPLACEMENT)
        return whole[len(self._shown) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special)

    def _is_second_added(self, token_id: int) -> bool:
        """Is this the second of two added tokens in a row, which are to stand without a space between?"""
        before, self._after_added = self._after_added, token_id in self._tokenizer.added
        return before and self._after_added

    def _whole_characters(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, spell whole characters: the last one may be begun only."""
        for unfinished in range(min(4, len(token_ids) + 1)):  # of at most four bytes, three can be there
            count = len(token_ids) - unfinished
            if not self._decode(token_ids[:count]).endswith(_REPLACEMENT):
                return count
        return len(token_ids)  # it truly says U+FFFD

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's last tokens: as many as it takes to begin with a whole character."""
        count = _CONTEXT_TOKENS
        while count < len(prompt) and self._decode(prompt[-count:]).strip()[:1] in ("", _REPLACEMENT):
            count *= 2
        return list(prompt[-count:])


class StopStrings:
    """Cuts a text, piece by piece, at the stop string that is completed first.

    Between pieces it holds back only what may be the beginning of one, so where the pieces are cut changes nothing.
    """

    def __init__(self, strings: Sequence[str], include: bool = False) -> None:
        self._strings = strings
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """What may be shown now. `matched` is set once a stop string has ended the text; nothing comes after it."""
        text = self._held + text
        self._held = ""
        ends = [(start + len(s), start, s) for s in self._strings if (start := text.find(s)) >= 0]
        if ends:
            end, start, self.matched = min(ends)
            return text[: end if self._include else start]
        kept = max((_begun(text, string) for string in self._strings), default=0)
        if kept:
            self._held = text[-kept:]
            return text[:-kept]
        return text

    def finish(self) -> str:
        """What was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, string: str) -> int:
    """Characters at the end of `text` that are a beginning of `string`, at most all but one of it."""
    for count in range(min(len(text), len(string) - 1), 0, -1):
        if string.startswith(text[-count:]):
            return count
    return 0


@dataclass(frozen=True)
class TextOptions:
    """How one request's tokens become text; the names are SamplingParams'. `shown`: special tokens that are text."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    shown: frozenset[int] = frozenset()


class OutputText:
    """The text of one output: detokenizer and stop strings in a row."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], options: TextOptions) -> None:
        # Where some special tokens are shown, the others are left out here, and not by the decoder.
        skips = options.skip_special_tokens
        self._skipped = tokenizer.special_ids - options.shown if skips and options.shown else frozenset()
        self._detokenizer = Detokenizer(
            tokenizer, prompt_token_ids, skips and not options.shown, options.spaces_between_special_tokens
        )
        self._stops = StopStrings(options.stop, options.include_stop_str_in_output)
        self._options = options
        self._tokens = 0

    @property
    def matched(self) -> str | None:
        """The stop string that ended this output."""
        return self._stops.matched

    def add(self, token_id: int, silent: bool = False) -> str:
        """Text that may be shown after this token; look at `matched` afterwards.

        silent: the token ends the output and is not part of the text (end of sequence, a stop token).
        """
        self._tokens += 1
        if silent or token_id in self._skipped:
            return ""
        text = self._detokenizer.add(token_id)
        # Up to min_tokens nothing stops, so nothing needs to wait either.
        return text if self._tokens <= self._options.min_tokens else self._stops.add(text)

    def finish(self) -> str:
        """What both held back, once no token follows. A stop string can still be completed here."""
        if self.matched is not None:
            return ""
        text = self._stops.add(self._detokenizer.finish())
        return text if self.matched is not None else text + self._stops.finish()
