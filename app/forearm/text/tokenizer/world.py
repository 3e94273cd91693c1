"""RWKV's World tokenizer: at each place of a text the longest token that its bytes begin with.

The tokenizers library has no such model. But a regular expression can be the tokens' trie, in which each node that ends
a token is followed by an optional group of its branches: it matches the longest token. What it cuts off is looked up.
Source: rwkv_vocab_v20230424.txt of BlinkDL/ChatRWKV, and llm_tokenizer_rwkv in src/llama-vocab.cpp of
ggml-org/llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from forearm.text.tokenizer.tokenizer_files import BYTE_OF_CHAR

_LONGEST = 256  # bytes of a token, as groups of the expression are nested; RWKV's has 128
_CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
_ESCAPED = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
# What llama.cpp makes of a chat where a file's template is this name.
CHAT_TEMPLATES = {
    "rwkv-world": (
        "{% set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} %}"
        "{% for message in messages %}{% if message['role'] in names %}"
        "{{ names[message['role']] + ': ' + message['content'] | trim + '\\n\\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    )
}


def world_piece(token: str) -> str:
    """Return a token as the vocabulary spells it, a letter for each byte. token: as a file has it, escaped."""
    data = _ESCAPED.sub(_byte, token.encode())
    return "".join(map(_CHAR_OF_BYTE.__getitem__, data))


def _byte(found: re.Match[bytes]) -> bytes:
    code, letter = found.groups()
    return bytes([int(code, 16)]) if code else _CONTROLS.get(letter, letter)


def world_tokenizer(vocabulary: Sequence[str], pieces: Iterable[str]) -> Tokenizer:
    """Return the tokenizer. vocabulary: all tokens, by id; pieces: those that a text is cut into.

    Raises: ValueError if a byte has no token, or a token is too long.
    """
    trie: dict[str, Any] = {}
    for piece in pieces:
        if len(piece) > _LONGEST:
            raise ValueError(f"a token of {len(piece)} bytes; a token has at most {_LONGEST}")
        node = trie
        for char in piece:
            node = node.setdefault(char, {})
        node[""] = {}  # a token ends here
    for char, byte in BYTE_OF_CHAR.items():
        if "" not in trie.get(char, {}):
            raise ValueError(f"no token of the byte 0x{byte:02x}; a text may have each")
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(False, use_regex=False), pre_tokenizers.Split(Regex(_expression(trie)), "isolated")]
    )
    made.decoder = decoders.ByteLevel()
    return made


def _expression(node: dict[str, Any]) -> str:
    """Return the expression that matches the longest way from a node to the end of a token."""
    branches = {char: below for char, below in node.items() if char}
    leaves = "".join(re.escape(char) for char, below in branches.items() if below.keys() == {""})
    ways = [re.escape(char) + _expression(below) for char, below in branches.items() if below.keys() != {""}]
    ways += [f"[{leaves}]"] if leaves else []
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)})" + "?" * ("" in node)
