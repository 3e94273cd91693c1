"""RWKV's World tokenizer: at each place of a text the longest token that its bytes begin with.

The tokenizers library has no such model. But a regular expression can be the tokens' trie, in which each node that ends
a token is followed by an optional group of its branches: it matches the longest token. What it cuts off is looked up.
Source: rwkv_vocab_v20230424.txt of BlinkDL/ChatRWKV, and llm_tokenizer_rwkv in src/llama-vocab.cpp of
ggml-org/llama.cpp.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys
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


def _byte(found: re.Match[bytes]) -> bytes:
    code, letter = found.groups()
    return bytes([int(code, 16)]) if code else _CONTROLS.get(letter, letter)


def world(keys: Keys, tokens: list[str], normal: list[bool]) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer of a file, and its tokens as the vocabulary spells them: a letter for each byte.

    normal: whether a token is cut from texts; others, which are not escaped, are found before or have no text.
    Raises: ConfigError if a byte has no token, or a token is too long.
    """

    def wrong(problem: str) -> ConfigError:
        return ConfigError(f"{keys.source}: tokenizer.ggml.tokens has {problem}; download it again")

    spelled, trie = [], dict[str, Any]()
    for token, whole in zip(tokens, normal, strict=True):
        data = _ESCAPED.sub(_byte, token.encode()) if whole else b""
        if len(data) > _LONGEST:
            raise wrong(f"a token of {len(data)} bytes; a token has at most {_LONGEST}")
        spelled.append("".join(map(_CHAR_OF_BYTE.__getitem__, data)) if whole else token)
        node = trie
        for char in spelled[-1] if whole else "":
            node = node.setdefault(char, {})
        node |= {"": {}} if data else {}  # a token ends here
    for char, byte in BYTE_OF_CHAR.items():
        if "" not in trie.get(char, {}):
            raise wrong(f"no token of the byte 0x{byte:02x}; a text may have each")
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(spelled)}, unk_token=spelled[0]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(False, use_regex=False), pre_tokenizers.Split(Regex(_expression(trie)), "isolated")]
    )
    made.decoder = decoders.ByteLevel()
    return made, spelled


def _expression(node: dict[str, Any]) -> str:
    """Return the expression that matches the longest way from a node to the end of a token."""
    branches = {char: below for char, below in node.items() if char}
    leaves = "".join(re.escape(char) for char, below in branches.items() if below.keys() == {""})
    ways = [re.escape(char) + _expression(below) for char, below in branches.items() if below.keys() != {""}]
    ways += [f"[{leaves}]"] if leaves else []
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)})" + "?" * ("" in node)
