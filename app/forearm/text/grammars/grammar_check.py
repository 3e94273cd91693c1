"""Compile the grammars of requests before anything is submitted, so that errors are reported early."""

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
from forearm.text.sandbox.fork_client import ForkClient
from forearm.text.tokenizer.tokenizer import Tokenizer

_CACHED_CHARACTERS = 32 << 20  # of accepted grammars

log = logging.getLogger(__name__)


class GrammarCheck:
    """Converts constraints to grammars and compiles them for one tokenizer, in a separate process.

    Methods may be called from any thread. The process starts with the first grammar; it holds 22 MB of its own with
    2,048 tokens and 61 MB with 151,936. The first grammar waits 0.3 s or 1.8 s for it, every other new one 10 ms
    for its fork (x86-64, two cores with other load).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._forked = ForkClient("forearm.text.grammars.grammar_process", self._vocabulary)
        self._accepted = _GrammarCache()

    @cached_property
    def special(self) -> dict[str, int]:
        """The ids of the special tokens by their text."""
        return {self._tokenizer.added[token_id]: token_id for token_id in self._tokenizer.special_ids}

    def _vocabulary(self) -> Json:
        """Return what grammar_process.py needs to know of the tokenizer."""
        tokenizer = self._tokenizer
        tokens = (tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size))
        return {
            "eos": tokenizer.parts.eos_token_id or 0,
            "bos": tokenizer.parts.bos_token_id,
            "tokens": [token.decode("latin-1") for token in tokens],
            "special": self.special,
        }

    def start(self, asked: ConstraintRequest | str, field: str = "") -> Future[str]:
        """Return the grammar of a constraint as a future. asked: the constraint, or a grammar that exists already (of
        function calls, say), and the `field` to name.

        The future has InvalidRequest, naming the field, where the constraint cannot be imposed or takes too
        long to compile; Overloaded where too many are being compiled.
        """
        job: Json = {"grammar": asked, "field": field}
        if isinstance(asked, ConstraintRequest):
            job = {"asked": vars(asked), "field": asked.field}
        found: Future[str] = Future()
        found.set_running_or_notify_cancel()  # a client that disconnects must not cancel it
        try:
            text = json.dumps(job)
        except RecursionError:
            found.set_exception(InvalidRequest(f"{job['field']}: it is nested too deeply", job["field"]))
            return found
        key, accepted = sha256(text.encode()).digest(), self._accepted
        known = accepted.find(key)
        if known is not None:
            found.set_result(known)
            return found

        def settle(answer: Future[Json]) -> None:
            error = answer.exception()
            if error is None:
                grammar: str = answer.result()["grammar"]
                for warning in warnings_of(grammar):
                    log.warning("%s", warning)
                accepted.keep(key, grammar)
                found.set_result(grammar)
            else:
                found.set_exception(error)

        self._forked.start(text).add_done_callback(settle)
        return found


class _GrammarCache:
    """A least-recently-used cache of accepted grammars, by their jobs."""

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
            while self._characters > _CACHED_CHARACTERS:
                self._characters -= len(self._grammars.popitem(last=False)[1])
