"""Compile grammars, each in a fork, for grammar_check.py: python -m forearm.text.grammars.grammar_process.

The time to convert EBNF grows with the square of its rules; the first mask of a Lark grammar may take minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.grammar_tokens import COMPILE_S, MAX_GRAMMAR_CHARACTERS, compiled
from forearm.text.sandbox.fork_server import SandboxTask, serve

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Processor time. The engine compiles accepted grammars again, on two threads: the largest schemas that json_schema.py
# accepts take 1.0 to 1.3 s (x86-64 with other load), most others milliseconds.
COMPILE_CPU_S = 2.0
_FORK_BYTES = 1 << 30  # the largest process measured had 177 MB (deep_threads.py)


def work_of(shared: Json) -> SandboxTask:
    """Return the task that compiles grammars for this vocabulary."""
    tokenizer = _tokenizer(shared)

    def do(job: Json) -> Json:
        grammar = job.get("grammar") or grammar_of(ConstraintRequest(**job["asked"]), shared["special"])
        named = job["field"]
        try:
            grammar.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{named}: half a surrogate pair: {error}", named) from error
        if len(grammar) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"{named}: its grammar has {len(grammar)} characters; at most {MAX_GRAMMAR_CHARACTERS}", named
            )
        begun_s = time.process_time()
        compiled(grammar, tokenizer, named)
        if time.process_time() - begun_s > COMPILE_CPU_S:
            raise InvalidRequest(f"{named}: compiling it takes more than {COMPILE_CPU_S:g} s; simplify it", named)
        return {"grammar": grammar}

    return SandboxTask("compiling it", do, COMPILE_S, _FORK_BYTES)


@dataclass
class _Vocabulary:
    """The tokenizer interface that LLTokenizer wraps."""

    eos_token_id: int
    bos_token_id: int | None
    tokens: list[bytes]
    special_token_ids: list[int]

    def __post_init__(self) -> None:
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens for text that a grammar forces, always the longest match: any tokenization serves the check."""
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
    serve(work_of)
