"""The vocabulary in the form that llguidance takes, and the limits for compiling grammars and computing masks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forearm.errors import ConfigError, InvalidRequest
from forearm.model.gguf.gguf import is_gguf

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR_CHARACTERS = 1 << 20  # of the complete grammar, made of all schemas, texts and grammars of a request
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


def tokenizer_text(folder: Path) -> tuple[str, int]:
    """Return the text of tokenizer.json, and one more than its highest token id.

    transformers is imported only to convert a folder without tokenizer.json, and for a .gguf file.

    Raises: ConfigError if there is no tokenizer, or it cannot be read.
    """
    file = folder / "tokenizer.json"
    if is_gguf(folder) or not file.is_file():
        from forearm.text.tokenizer.tokenizer import load_tokenizer

        rust = load_tokenizer(folder).backend.backend_tokenizer
        return rust.to_str(), max(rust.get_vocab(with_added_tokens=True).values()) + 1
    try:
        parsed = json.loads(file.read_text())
        added = parsed.setdefault("added_tokens", [])
        known = {token["id"] for token in added}
        config = folder / "tokenizer_config.json"
        more = json.loads(config.read_text()).get("added_tokens_decoder", {}) if config.is_file() else {}
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        added += [{**plain, **token, "id": int(number)} for number, token in more.items() if int(number) not in known]
        # A training run may have left these settings; they would truncate or pad every text.
        parsed["truncation"] = parsed["padding"] = None
        vocabulary = parsed["model"]["vocab"]  # a mapping to ids; in Unigram models a list in the order of ids
        ids = vocabulary.values() if isinstance(vocabulary, dict) else (len(vocabulary) - 1,)
        return json.dumps(parsed), 1 + max([*ids, *(token["id"] for token in added)])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error!r:.300}") from error
