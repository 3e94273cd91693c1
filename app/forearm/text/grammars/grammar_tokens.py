"""The vocabulary in the form that llguidance takes, and the limits for compiling grammars and computing masks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forearm.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR_CHARACTERS = 1 << 20  # of the complete grammar, made of all schemas, texts and grammars of a request
_MOST_TOKENS = 1 << 24
COMPILE_S = 10.0  # time limit for one grammar
# Fields of llguidance.LLParserLimits; its default fuels bound the work of one compilation and of one mask (about
# 14 ms). A lexer state takes 1 to 2 kB, so that one output holds at most 100 MB. An optional property takes 4 items.
LIMITS: dict[str, Any] = {"max_lexer_states": 50_000, "max_items_in_row": 8_000, "verbose_errors": False}
_REASONS = {
    "NoExtension": "no text fits it",
    "NoExtensionBias": "no text fits it",
    "ParserTooComplex": "it is too complex",
    "LexerTooComplex": "it is too complex",
}


def compiled(source: str, tokenizer: LLTokenizer, field: str | None = None) -> LLMatcher:
    """Return a matcher at the start of the grammar.

    Raises: InvalidRequest naming the field if the grammar is wrong, too large, or matches no text.
    """
    from llguidance import LLMatcher, LLParserLimits

    made = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**LIMITS))
    first = made.deep_copy()
    first.compute_bitmask()  # some limits are only checked here
    what = f"{field}: it" if field else "the grammar"
    for one in (made, first):
        if one.is_error():
            raise InvalidRequest(f"{what} cannot be imposed: {explained(one.get_error())}", field)
    if first.is_stopped():
        raise InvalidRequest(f"{what} cannot be imposed: only the empty text fits it", field)
    return made


def explained(error: str) -> str:
    """Return the first error of llguidance in one line, without the excerpt of the grammar."""
    lines = [line.strip() for line in error.split("\n")]
    kept = " ".join(line for line in lines if line and not re.match(r"<|\d+ \||\^+$", line))
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema|invalid regex \".*?\" \(in regex\)): ", "", kept)
    return _REASONS.get(text, text)[:300]


def tokenizer_text(source: Path) -> tuple[str, int]:
    """Return a tokenizer as the text of a tokenizer.json, and one more than its highest token id.

    source: a model folder or a .gguf file

    Raises: ConfigError if there is no tokenizer, or it cannot be read.
    """
    from forearm.text.tokenizer.tokenizer import load_tokenizer  # an engine needs it for this alone

    rust = load_tokenizer(source).parts.backend_tokenizer
    tokens = max(rust.get_vocab(with_added_tokens=True).values()) + 1
    if tokens > _MOST_TOKENS:  # to_str goes through all ids, also those that no token has
        file = source / "tokenizer.json" if source.is_dir() else source
        raise ConfigError(f"{file} has a token with the id {tokens - 1}; the highest may be {_MOST_TOKENS - 1}")
    return rust.to_str(), tokens
