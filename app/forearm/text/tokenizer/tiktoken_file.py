"""Read Kimi's tokenizer: tiktoken.model, the bytes of each token and its rank, the order in which pairs are merged.

transformers would split texts as Llama 3 does, and give other tokens.
Source: the class TikTokenTokenizer of moonshotai/Kimi-Linear-48B-A3B-Instruct.
"""

from __future__ import annotations

import base64
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from forearm.text.tokenizer.gguf_pre_tokenizers import KIMI
from forearm.text.tokenizer.tokenizer_files import (
    BYTE_OF_CHAR,
    TokenizerParts,
    added_token,
    read_object,
    read_tokenizer_files,
)

_RESERVED = 256  # tokens behind those of the file; tokenizer_config.json names some


def kimi_tokenizer(folder: Path) -> TokenizerParts | None:
    """Return the tokenizer of a folder; None if it is not Kimi's.

    Raises: OSError, ValueError, TypeError, or what the tokenizers library raises on a broken file.
    """
    config = read_object(folder / "tokenizer_config.json")
    if config.get("tokenizer_class") != "TikTokenTokenizer" or not (folder / "tiktoken.model").is_file():
        return None
    ranks: dict[bytes, int] = {}
    for line in (folder / "tiktoken.model").read_bytes().split(b"\n"):
        token, _, rank = line.strip().partition(b" ")
        if token:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError("the ranks in tiktoken.model are not the numbers from 0 on, each once")
    char_of_byte = {byte: char for char, byte in BYTE_OF_CHAR.items()}
    text_of = {token: "".join(map(char_of_byte.__getitem__, token)) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    vocabulary = {text_of[token]: rank for token, rank in ranks.items()}
    listed = [(text_of[left], text_of[right]) for left, right in merges]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=listed, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(KIMI), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    named = {int(number): added_token(token) for number, token in (config.get("added_tokens_decoder") or {}).items()}
    reserved = range(len(ranks), len(ranks) + _RESERVED)
    made.add_tokens([named.get(i, AddedToken(f"<|reserved_token_{i}|>", special=True)) for i in reserved])
    return read_tokenizer_files(folder, made)
