"""Constraints of requests become grammars that are known to compile: errors show before anything is submitted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from forearm.errors import InvalidRequest
from forearm.text.constraints import Asked, grammar_of
from forearm.text.deep_threads import deep_threads
from forearm.text.grammar_tokens import MAX_GRAMMAR_CHARACTERS, compiled
from forearm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_THREADS = 2  # one slow grammar does not hold up the others
_REMEMBERED = 1024  # grammars that were right


@dataclass
class _Vocabulary:
    """What LLTokenizer asks of a tokenizer."""

    eos_token_id: int
    bos_token_id: int | None
    tokens: list[bytes]
    special_token_ids: list[int]
    encode: Callable[[str, bool], list[int]]

    def __call__(self, text: str) -> list[int]:
        return self.encode(text, False)


class GrammarCheck:
    """Makes and checks grammars for one tokenizer, on threads of its own. May be called from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._threads = deep_threads(_THREADS, "grammar-check")
        self._made = threading.Lock()
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def special(self) -> dict[str, int]:
        """The special tokens by their text."""
        return {self._tokenizer.added[token_id]: token_id for token_id in self._tokenizer.special_ids}

    def start(self, asked: Asked) -> Future[str]:
        """The grammar of what is asked. The future has InvalidRequest, naming the field, where it cannot be imposed."""
        return self._threads.submit(lambda: self._checked(grammar_of(asked, self.special), asked.field))

    def start_grammar(self, grammar: str, field: str) -> Future[str]:
        """The same for a grammar that is made already (of function calls, say)."""
        return self._threads.submit(self._checked, grammar, field)

    def _checked(self, grammar: str, field: str) -> str:
        try:
            key = sha256(grammar.encode()).digest()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{field}: half a character: {error}", field) from error
        if len(grammar) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"{field}: its grammar has {len(grammar)} characters; at most {MAX_GRAMMAR_CHARACTERS}", field
            )
        with self._lock:
            known = key in self._right
        if not known:
            with self._made:  # once, whoever is first
                vocabulary = self._vocabulary
            compiled(grammar, vocabulary, field)
        with self._lock:
            self._right[key] = None
            self._right.move_to_end(key)
            if len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)
        return grammar

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer that is loaded anyway, a second time only as a tree of its tokens."""
        from llguidance import LLTokenizer, TokenizerWrapper

        tokenizer = self._tokenizer
        backend = tokenizer.backend
        vocabulary = _Vocabulary(
            eos_token_id=backend.eos_token_id or 0,
            bos_token_id=backend.bos_token_id,
            tokens=[tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
            special_token_ids=sorted(tokenizer.special_ids),
            encode=tokenizer.encode,
        )
        return LLTokenizer(TokenizerWrapper(vocabulary), slices=[])
