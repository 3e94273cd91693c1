"""Structured output: grammars compiled once, and for each output the tokens that may come next (llguidance).

llguidance (Moskal et al., github.com/guidance-ai/llguidance) runs an Earley parser over lexemes that are derivatives of
regular expressions, and walks the vocabulary's trie with them. Text is bytes to it, so that a part of a character is
allowed where the whole one is. It is imported with the first grammar: start-up does not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forearm.array_types import UInt32Array
from forearm.errors import ConstraintFailed, EngineFailed, InvalidRequest, Overloaded
from forearm.text.grammars.grammar_tokens import COMPILE_S, compiled, explained, tokenizer_text
from forearm.text.sandbox.deep_threads import deep_threads

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


_NOT_ALLOWED = "Parser Error: token "  # llguidance's error for a forbidden token; its other errors are limits
_THREADS = 2  # two, so that one slow grammar does not delay the others
# The estimated size of a compiled grammar. Resident memory grew by 67 kB for one of 295 characters, by 127 kB for 917,
# by 3.4 MB for 28,700 (x86-64, llguidance 1.9.1, mean of 4 to 600 schemas).
_BYTES, _BYTES_A_CHARACTER = 128 << 10, 200
_LEAST_BYTES = 16 << 20  # least limit for grammars in use: some hundred small ones

log = logging.getLogger(__name__)


class Matcher:
    """The state of one output in its grammar. One thread at a time may call it; the GIL is released while it works."""

    def __init__(self, matcher: LLMatcher, words: int, own_words: int, held: _Held) -> None:
        self._matcher = matcher
        self._held = held
        self._words, self._own_words = words, own_words  # of a mask: of the model's vocabulary, of the tokenizer's

    @property
    def over(self) -> bool:
        """Return whether only the end of sequence is allowed now."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def mask(self) -> UInt32Array:
        """Return uint32 [ceil(vocabulary / 32)]: bit i % 32 of word i // 32 is set if token i may come next. At least
        one is set; the end-of-sequence tokens are if the grammar may end here.

        Raises: ConstraintFailed when the grammar has become too large to go on with.
        """
        bits = np.empty(self._own_words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)  # 5 us in strings; compute_bitmask 14
        self._check()
        return bits[: self._words]

    def masks(self, drafts: Sequence[int]) -> list[UInt32Array]:
        """Return the mask here and after each of the first drafts that the grammar allows.

        Raises: ConstraintFailed as `mask`.
        """
        found = [self.mask()]
        taken = 0
        for token in drafts:
            if not found[-1][token // 32] >> np.uint32(token % 32) & 1 or self.over:
                break
            self.take(token)
            taken += 1
            found.append(self.mask())
        if taken and not self._matcher.rollback(taken):
            self._check()
        return found

    def take(self, token: int) -> None:
        """Advance by a token of the output.

        Raises: ConstraintFailed as `mask`; EngineFailed if the grammar does not allow it.
        """
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        """Return the forced tokens: each is the only one that the mask at its place would allow."""
        return list(self._matcher.compute_ff_tokens())

    def allowed_prefix(self, drafts: Sequence[int]) -> int:
        """Count the first drafts that the grammar allows one after the other."""
        return int(self._matcher.validate_tokens(list(drafts)))

    def fork(self) -> Matcher:
        """Return a copy for another output in the same state."""
        return Matcher(self._matcher.deep_copy(), self._words, self._own_words, self._held)

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        error = self._matcher.get_error()
        if error.startswith(_NOT_ALLOWED):
            raise EngineFailed(f"the grammar cannot go on: {explained(error)}")
        raise ConstraintFailed(
            f"the grammar (regex, schema) is too complex to go on with: {explained(error)}; simplify it"
        )


class _Held:
    """The memory of a compiled grammar, which its outputs share; it is counted until the last of them ends."""


def _held_bytes(source: str) -> int:
    return _BYTES + _BYTES_A_CHARACTER * len(source)


class Grammars:
    """The compiled grammars of one model, with an LRU cache.

    folder: of the tokenizer, or its .gguf file. eos_ids: what may end an output where its grammar may end.
    most_bytes: of all that are kept or in use. compile_s: time limit of one grammar.
    All methods may be called from any thread.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        eos_ids: Sequence[int],
        *,
        most_bytes: int = 512 << 20,
        compile_s: float = COMPILE_S,
    ) -> None:
        self._folder, self._vocab_size, self._eos_ids = folder, vocab_size, tuple(sorted(eos_ids))
        self._most_bytes, self._compile_s = most_bytes, compile_s
        self._live_bytes = 0  # of all grammars that the cache or an output still has
        self._kept: OrderedDict[str, Matcher] = OrderedDict()
        self._lock = threading.RLock()  # a grammar's last holder may let it go while it has the lock
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()
        self._threads = deep_threads(_THREADS, "grammar")

    def start(self, source: str) -> Future[Matcher]:
        """Compile a grammar (in llguidance's syntax); the future gets the matcher of an output's beginning.

        The future has InvalidRequest when the grammar is wrong, too large or takes too long, and then names no field.

        Raises: Overloaded while the grammars of open requests take all the memory for them.
        """
        found: Future[Matcher] = Future()
        matcher = self._known(source)
        if matcher is None:
            held, most = self._make_room(_held_bytes(source)), max(self._most_bytes, _LEAST_BYTES)
            if held and held + _held_bytes(source) > most:
                raise Overloaded(
                    f"the grammars of open requests take {held} of {most} bytes (VLLM_XGRAMMAR_CACHE_MB), and this one "
                    "does not fit"
                )
            self._threads.submit(self._compile_for, source, found)
        else:
            found.set_result(matcher)
        return found

    def close(self) -> None:
        """End the threads, without waiting for running compilations."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _known(self, source: str) -> Matcher | None:
        with self._lock:
            compiled = self._kept.get(source)
            if compiled is None:
                return None
            self._kept.move_to_end(source)
            return compiled.fork()

    def _compile_for(self, source: str, found: Future[Matcher]) -> None:
        """Compile on a thread of this class. A slow compilation cannot be interrupted, but no request waits for it."""
        waiting = weakref.ref(found)  # a cancelled timer ends late: until then it would keep the grammar in memory

        def refuse() -> None:
            if (future := waiting()) is not None:
                late = InvalidRequest(f"the grammar takes longer than {self._compile_s:g} s to compile; simplify it")
                _settle(future, error=late)

        limit = threading.Timer(self._compile_s, refuse)
        limit.daemon = True
        try:
            tokenizer = self._loaded()
            limit.start()
            matcher = self._known(source)
            if matcher is None:
                start_s = time.monotonic()
                made = compiled(source, tokenizer)
                log.debug("a grammar of %d characters is compiled in %.3f s", len(source), time.monotonic() - start_s)
                words, own_words = ((size + 31) // 32 for size in (self._vocab_size, tokenizer.vocab_size))
                held = _Held()
                self._count(_held_bytes(source))
                weakref.finalize(held, self._count, -_held_bytes(source)).atexit = False
                kept = Matcher(made, words, own_words, held)
                matcher = kept.fork()
                with self._lock:
                    self._kept[source] = kept
                self._make_room(0)
        except Exception as error:
            _settle(found, error=error)
        else:
            _settle(found, matcher)
        finally:
            limit.cancel()

    def _count(self, change: int) -> None:
        with self._lock:
            self._live_bytes += change

    def _make_room(self, size: int) -> int:
        """Remove the least recently used grammars until `size` more bytes fit. Returns: the bytes held then."""
        with self._lock:
            while self._kept and self._live_bytes + size > self._most_bytes:
                self._kept.popitem(last=False)
            return self._live_bytes

    def _loaded(self) -> LLTokenizer:
        """Return the vocabulary for llguidance, made once: a large one takes a second.

        Raises: ConfigError if the tokenizer cannot be read.
        """
        with self._tokenizer_lock:
            if self._tokenizer is None:
                from llguidance import LLTokenizer

                text, tokens = tokenizer_text(self._folder)
                # It may have more tokens than the model (masks are cut then), or fewer (they are never allowed).
                n_vocab = max(self._vocab_size, tokens)
                self._tokenizer = LLTokenizer(text, n_vocab=n_vocab, eos_token=list(self._eos_ids) or None)
            return self._tokenizer


def _settle(found: Future[Matcher], matcher: Matcher | None = None, error: Exception | None = None) -> None:
    """Set the future's result, unless the time limit or the compiling thread has set one before."""
    try:
        if matcher is not None:
            found.set_result(matcher)
        else:
            found.set_exception(error)
    except InvalidStateError:
        pass
