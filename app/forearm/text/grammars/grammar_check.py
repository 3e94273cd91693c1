"""Constraints of requests become grammars that are known to compile: errors show before anything is submitted."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from functools import cached_property
from hashlib import sha256

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.grammars.constraints import ConstraintRequest
from forearm.text.grammars.lark import warnings_of
from forearm.text.sandbox.forked import Forked
from forearm.text.tokenizer.tokenizer import Tokenizer

_REMEMBERED_CHARACTERS = 32 << 20  # of grammars that were right

log = logging.getLogger(__name__)


class GrammarCheck:
    """Makes and checks grammars for one tokenizer, in a process of its own that begins with the first one.

    May be called from any thread. The process holds 22 MB of its own with 2,048 tokens and 61 MB with 151,936. The
    first grammar waits 0.3 s and 1.8 s for it, each other one that is new 10 ms for its fork (x86-64, two cores with
    other work).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._forked = Forked("forearm.text.grammars.grammar_process", lambda: _vocabulary(tokenizer))
        self._right = _Remembered()

    @cached_property
    def special(self) -> dict[str, int]:
        """The special tokens by their text."""
        return _special(self._tokenizer)

    def start(self, asked: ConstraintRequest) -> Future[str]:
        """The grammar of what is asked. The future has InvalidRequest, naming the field, where it cannot be imposed or
        takes too long; Overloaded where too many are being compiled.
        """
        return self._start({"asked": vars(asked), "field": asked.field})

    def start_grammar(self, grammar: str, field: str) -> Future[str]:
        """The same for a grammar that is made already (of function calls, say)."""
        return self._start({"grammar": grammar, "field": field})

    def _start(self, job: Json) -> Future[str]:
        found: Future[str] = Future()
        found.set_running_or_notify_cancel()  # a client that leaves cancels nothing
        try:
            text = json.dumps(job)
        except RecursionError:
            found.set_exception(InvalidRequest(f"{job['field']}: it is nested too deeply", job["field"]))
            return found
        key, right = sha256(text.encode()).digest(), self._right
        known = right.find(key)
        if known is not None:
            found.set_result(known)
            return found

        def settle(answer: Future[Json]) -> None:
            error = answer.exception()
            if error is None:
                grammar: str = answer.result()["grammar"]
                for warning in warnings_of(grammar):
                    log.warning("%s", warning)
                right.keep(key, grammar)
                found.set_result(grammar)
            else:
                found.set_exception(error)

        self._forked.start(text).add_done_callback(settle)
        return found


class _Remembered:
    """Grammars that were right, by their jobs; those used longest ago go first."""

    def __init__(self) -> None:
        self._grammars: OrderedDict[bytes, str] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def find(self, key: bytes) -> str | None:
        with self._lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
            return self._grammars.get(key)

    def keep(self, key: bytes, grammar: str) -> None:
        with self._lock:
            if key not in self._grammars:
                self._grammars[key] = grammar
                self._characters += len(grammar)
            while self._characters > _REMEMBERED_CHARACTERS:
                self._characters -= len(self._grammars.popitem(last=False)[1])


def _special(tokenizer: Tokenizer) -> dict[str, int]:
    return {tokenizer.added[token_id]: token_id for token_id in tokenizer.special_ids}


def _vocabulary(tokenizer: Tokenizer) -> Json:
    """What grammar_process.py needs to know of it."""
    tokens = (tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size))
    return {
        "eos": tokenizer.backend.eos_token_id or 0,
        "bos": tokenizer.backend.bos_token_id,
        "tokens": [token.decode("latin-1") for token in tokens],
        "special": _special(tokenizer),
    }
