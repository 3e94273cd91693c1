"""A model's vocabulary as llguidance takes it, and the limits under which grammars are compiled and followed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forearm.errors import ConfigError, InvalidRequest
from forearm.model.gguf.gguf import is_gguf

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR_CHARACTERS = 1 << 20  # of what is made of schemas, texts and grammars together
COMPILE_S = 10.0  # most that one grammar may take
# Of llguidance.LLParserLimits. Its fuels bound the work of one compilation and of one mask (some 14 ms); a lexer state
# takes 1 to 2 kB, so that one output holds 100 MB at most. An optional property takes 4 items of a row.
LIMITS: dict[str, Any] = {"max_lexer_states": 50_000, "max_items_in_row": 8_000, "verbose_errors": False}
_REASONS = {
    "NoExtension": "no text fits it",
    "NoExtensionBias": "no text fits it",
    "ParserTooComplex": "it is too complex",
    "LexerTooComplex": "it is too complex",
}


def compiled(source: str, tokenizer: LLTokenizer, field: str | None = None) -> LLMatcher:
    """The grammar at its beginning.

    Raises: InvalidRequest, naming the field, if it is wrong, too large, or no text fits it.
    """
    from llguidance import LLMatcher, LLParserLimits

    made = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**LIMITS))
    first = made.deep_copy()
    first.compute_bitmask()  # some limits only show here
    what = f"{field}: it" if field else "the grammar"
    for one in (made, first):
        if one.is_error():
            raise InvalidRequest(f"{what} cannot be imposed: {explained(one.get_error())}", field)
    if first.is_stopped():
        raise InvalidRequest(f"{what} cannot be imposed: only the empty text fits it", field)
    return made


def explained(error: str) -> str:
    """An error of llguidance in one line; its first one, without what it shows of the grammar."""
    lines = [line.strip() for line in error.split("\n")]
    kept = " ".join(line for line in lines if line and not re.match(r"<|\d+ \||\^+$", line))
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema|invalid regex \".*?\" \(in regex\)): ", "", kept)
    return _REASONS.get(text, text)[:300]


def tokenizer_text(folder: Path) -> tuple[str, int]:
    """tokenizer.json's text, and one more than the highest id in it.

    transformers is imported only for a folder without tokenizer.json, which it converts, and for a .gguf file.
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
        added += _more_added(folder, {token["id"] for token in added})
        # A training run may have left these; they would cut or fill what is tokenised.
        parsed["truncation"] = parsed["padding"] = None
        return json.dumps(parsed), 1 + max([*_ids(parsed["model"]["vocab"]), *(token["id"] for token in added)])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error!r:.300}") from error


def _more_added(folder: Path, known: set[int]) -> list[dict[str, Any]]:
    """Tokens that only tokenizer_config.json has."""
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return []
    listed = json.loads(file.read_text()).get("added_tokens_decoder", {})
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return [{**plain, **token, "id": int(number)} for number, token in listed.items() if int(number) not in known]


def _ids(vocabulary: dict[str, int] | list[Any]) -> list[int]:
    """The ids of a model's vocabulary: a mapping, or, in Unigram models, a list in order."""
    if isinstance(vocabulary, dict):
        return list(vocabulary.values())
    return [len(vocabulary) - 1]
