"""Convert token ids to text as they arrive: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forearm.text.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Tokens of the prompt that give the first output tokens their context (a leading space, an incomplete character).
_CONTEXT_TOKENS = 6


class Detokenizer:
    """Converts one output's token ids to text. The joined pieces are the text of all ids, without an incomplete
    character.

    Each step decodes a small window: the last tokens that gave text, and those that gave none yet. The text of the
    window beyond the text of its first part is new. A window never begins inside a character, nor with tokens that
    give no text (decoders strip the space from what they take for the start of a text).
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
        # As many of the prompt's last tokens as it takes to begin with a whole character.
        count, prompt = _CONTEXT_TOKENS, prompt_token_ids
        while count < len(prompt) and self._decode(prompt[-count:]).strip()[:1] in ("", _REPLACEMENT):
            count *= 2
        self._window = list(prompt[-count:])
        # Tokens of the window whose text was returned. The last character may be incomplete: at most three of its four
        # bytes are there. (If no count fits, the text itself contains U+FFFD.)
        counts = range(len(self._window), max(len(self._window) - 4, -1), -1)
        whole = (n for n in counts if not self._decode(self._window[:n]).endswith(_REPLACEMENT))
        self._read = next(whole, len(self._window))
        self._shown = self._decode(self._window[: self._read])

    def add(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        self._window.append(token_id)
        before, self._after_added = self._after_added, token_id in self._tokenizer.added
        if self._tight and before and self._after_added:  # two added tokens in a row, without a space between them
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
        """Return the text that was withheld, without an incomplete character."""
        whole = self._decode(self._window).rstrip(_REPLACEMENT)
        return whole[len(self._shown) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special)


class StopStrings:
    """Cuts a text, piece by piece, at the first stop string that is completed.

    Only what may be the beginning of a stop string is withheld, so the result does not depend on how the text is
    cut.
    """

    def __init__(self, strings: Sequence[str], include: bool = False) -> None:
        self._strings = strings
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Return the text that may be shown now. `matched` is set once a stop string has ended the text."""
        text = self._held + text
        self._held = ""
        ends = [(start + len(s), start, s) for s in self._strings if (start := text.find(s)) >= 0]
        if ends:
            end, start, self.matched = min(ends)
            return text[: end if self._include else start]
        kept = max((begun(text, 0, string) for string in self._strings), default=0)
        if kept:
            self._held = text[-kept:]
            return text[:-kept]
        return text

    def finish(self) -> str:
        """Return the text that was withheld, because no stop string followed."""
        held, self._held = self._held, ""
        return held


def begun(text: str, start: int, marker: str) -> int:
    """Return how many characters at the end of `text[start:]` are a beginning of `marker`, but not all of it."""
    for count in range(min(len(text) - start, len(marker) - 1), 0, -1):
        if text.endswith(marker[:count]):
            return count
    return 0


@dataclass(frozen=True)
class TextOptions:
    """The options of one request for its text, with SamplingParams' names. shown: special tokens to be shown as
    text.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    shown: frozenset[int] = frozenset()


class OutputText:
    """The text of one output: detokenizer and stop strings combined."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], options: TextOptions) -> None:
        # Where some special tokens are shown, the others are skipped here instead of by the decoder.
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
        """The stop string that ended this output, if any."""
        return self._stops.matched

    def add(self, token_id: int, silent: bool = False) -> str:
        """Return the text that may be shown after this token; `matched` may be set afterwards.

        silent: the token ends the output and is not part of the text (end of sequence, a stop token).
        """
        self._tokens += 1
        if silent or token_id in self._skipped:
            return ""
        text = self._detokenizer.add(token_id)
        # No stop string counts before min_tokens, so no text is withheld either.
        return text if self._tokens <= self._options.min_tokens else self._stops.add(text)

    def finish(self) -> str:
        """Return the withheld text, once no token follows. A stop string can still be completed here."""
        if self.matched is not None:
            return ""
        text = self._stops.add(self._detokenizer.finish())
        return text if self.matched is not None else text + self._stops.finish()
