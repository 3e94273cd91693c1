"""Schemas and grammars that are as deep as their limits allow are refused or compiled: they end no process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

CHECK = """
import json, sys, threading
from pathlib import Path
from forearm.engine.constraints.grammar import Grammars
from forearm.errors import InvalidRequest
from forearm.text.grammars.constraints import ConstraintRequest
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.tokenizer.tokenizer import load_tokenizer
import forearm
kind, value = json.load(sys.stdin)
folder = Path(forearm.__file__).parent / "demo_model"
tokenizer = load_tokenizer(folder)
check = GrammarCheck(tokenizer)  # the process ends with this thread
try:
    grammar = check.start(ConstraintRequest(kind, value, "response_format")).result()
    Grammars(folder, tokenizer.vocab_size, [0]).start(grammar).result().mask()
    print("compiled")
except InvalidRequest as error:
    assert error.param == "response_format", error
    print("refused")
assert threading.stack_size() == 0  # other threads keep their stack size
"""


def schema(links: int, link: Callable[[dict[str, str]], Any]) -> Any:
    """A row of definitions, each of which needs the next one."""
    row = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(links)}
    return {"$ref": "#/$defs/a0", "$defs": {**row, f"a{links}": {"type": "string"}}}


BOMBS: dict[str, tuple[str, Any]] = {
    "references": ("json", schema(6000, lambda next_one: next_one)),
    "allOf": ("json", schema(5000, lambda next_one: {"allOf": [next_one]})),
    "allOf of two": ("json", schema(3000, lambda next_one: {"allOf": [next_one, {"type": "string"}]})),
    "anyOf": ("json", schema(3700, lambda next_one: {"anyOf": [next_one, {"type": "integer"}]})),
    "properties": ("json", schema(2700, lambda next_one: {"properties": {"x": next_one}, "required": ["x"]})),
    "items": ("json", schema(4500, lambda next_one: {"items": next_one})),
    "rules": ("grammar", "start: r0\n" + "".join(f"r{i}:r{i + 1}\n" for i in range(5000)) + 'r5000:"a"\n'),
    "rules, EBNF": ("grammar", "root ::= r0\n" + "".join(f"r{i}::=r{i + 1}\n" for i in range(4400)) + 'r4400::="a"\n'),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_deep_ends_no_process(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHECK], input=json.dumps(BOMBS[name]), capture_output=True, text=True, timeout=120
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() in ("compiled", "refused")
