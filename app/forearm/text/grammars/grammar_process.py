"""python -m forearm.text.grammars.grammar_process: make and compile grammars, each in a fork, for grammar_check.py.

Converting EBNF is Python whose time grows with the square of the rules; a Lark grammar's first mask may take minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.grammar_tokens import COMPILE_S, MAX_GRAMMAR_CHARACTERS, compiled
from forearm.text.sandbox.forks import SandboxTask, serve_forks

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Of a core. What passes is compiled in the engine too, which has two threads for it: the largest schemas that
# json_schema.py lets through take 1.0 to 1.3 s (x86-64, other work beside it), most others milliseconds.
COMPILE_CPU_S = 2.0
_FORK_BYTES = 1 << 30  # whole processes were 177 MB large at most (deep_threads.py)


def work_of(shared: Json) -> SandboxTask:
    """Jobs of this vocabulary."""
    tokenizer = _tokenizer(shared)

    def do(job: Json) -> Json:
        grammar = job.get("grammar") or grammar_of(ConstraintRequest(**job["asked"]), shared["special"])
        check(grammar, job["field"], tokenizer)
        return {"grammar": grammar}

    return SandboxTask("compiling it", do, COMPILE_S, _FORK_BYTES)


def check(grammar: str, named: str, tokenizer: LLTokenizer) -> None:
    """Raises: InvalidRequest naming the field."""
    try:
        grammar.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{named}: half a character: {error}", named) from error
    if len(grammar) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(
            f"{named}: its grammar has {len(grammar)} characters; at most {MAX_GRAMMAR_CHARACTERS}", named
        )
    begun_s = time.process_time()
    compiled(grammar, tokenizer, named)
    if time.process_time() - begun_s > COMPILE_CPU_S:
        raise InvalidRequest(f"{named}: compiling it takes more than {COMPILE_CPU_S:g} s; simplify it", named)


@dataclass
class _Vocabulary:
    """What LLTokenizer asks of a tokenizer."""

    eos_token_id: int
    bos_token_id: int | None
    tokens: list[bytes]
    special_token_ids: list[int]

    def __post_init__(self) -> None:
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """Text that a grammar forces, in the longest tokens from its beginning on: for the check any will do."""
        found, at = [], 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), 0)
            if not size:
                break
            found.append(self._ids[text[at : at + size]])
            at += size
        return found


def _tokenizer(shared: Json) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    tokens = [token.encode("latin-1") for token in shared["tokens"]]
    known = _Vocabulary(shared["eos"], shared["bos"], tokens, sorted(shared["special"].values()))
    return LLTokenizer(TokenizerWrapper(known), slices=[])


if __name__ == "__main__":
    serve_forks(work_of)
