"""Build the tokenizer of an encoder from the metadata of a .gguf file: BERT's word pieces, unigrams.

Source: src/llama-vocab.cpp and convert_hf_to_gguf.py of ggml-org/llama.cpp; transformers' tokenizers of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys

ENCODERS = ("bert", "t5")  # values of tokenizer.ggml.model
_SPACE = "\u2581"
_CONTINUED = "##"


def word_pieces(tokens: Sequence[str], plain: Sequence[bool], special: Mapping[str, str]) -> Tokenizer:
    """Return a tokenizer of BERT's kind. plain: whether each token is neither special nor unused.

    The file marks the beginnings of words, where the model's own vocabulary marks their other pieces. A vocabulary
    without capital letters is of a model that reads none: llama.cpp reads none in any case.
    """
    own = [
        token if not is_plain else token[1:] if token.startswith(_SPACE) else _CONTINUED + token
        for token, is_plain in zip(tokens, plain, strict=True)
    ]
    unknown = special.get("unk_token", "[UNK]")
    made = Tokenizer(models.WordPiece({token: i for i, token in enumerate(own)}, unk_token=unknown))
    lower = not any(token != token.lower() for token, is_plain in zip(own, plain, strict=True) if is_plain)
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    begin, end = _around(tokens, special)
    made.post_processor = processors.TemplateProcessing(
        single=f"{begin[0]} $A {end[0]}",
        pair=f"{begin[0]} $A {end[0]} $B:1 {end[0]}:1",
        special_tokens=[begin, end],
    )
    return made


def unigram(keys: Keys, tokens: Sequence[str], scores: Sequence[float], special: Mapping[str, str]) -> Tokenizer:
    """Return a tokenizer of XLM-RoBERTa's kind, or T5's: the pieces whose scores have the largest sum.

    T5 has no token before a text, and one behind each of a pair.

    Raises: ConfigError naming the key whose value is wrong.
    """
    if "unk_token" not in special:
        raise keys.wrong("tokenizer.ggml.unknown_token_id", "the id of the token that stands for unknown letters")
    pieces = list(zip(tokens, scores, strict=True))
    made = Tokenizer(models.Unigram(pieces, tokens.index(special["unk_token"]), byte_fallback=False))
    if charsmap := keys.get("tokenizer.ggml.precompiled_charsmap"):
        try:
            made.normalizer = normalizers.Precompiled(bytes(value % 256 for value in charsmap))
        except Exception as error:  # the library raises its own
            raise ConfigError(f"{keys.source}: tokenizer.ggml.precompiled_charsmap cannot be read: {error}") from None
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")]
    )
    made.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    if not special.keys() & {"cls_token", "bos_token"} and "eos_token" in special:
        end = special["eos_token"], tokens.index(special["eos_token"])
        made.post_processor = processors.TemplateProcessing(
            single=f"$A {end[0]}", pair=f"$A {end[0]} $B {end[0]}", special_tokens=[end]
        )
        return made
    begin, end = _around(tokens, special)
    made.post_processor = processors.TemplateProcessing(
        single=f"{begin[0]} $A {end[0]}",
        pair=f"{begin[0]} $A {end[0]} {end[0]} $B {end[0]}",
        special_tokens=[begin, end],
    )
    return made


def _around(tokens: Sequence[str], special: Mapping[str, str]) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the tokens before and behind a text, with their ids."""
    begin = special.get("cls_token") or special.get("bos_token") or "[CLS]"
    end = special.get("sep_token") or special.get("eos_token") or "[SEP]"
    for token in (begin, end):
        if token not in tokens:
            raise ConfigError(f"a vocabulary of {len(tokens)} tokens without {token}, which stands around each text")
    return (begin, tokens.index(begin)), (end, tokens.index(end))
