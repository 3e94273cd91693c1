"""Expressions without look-ahead fit the texts that Python's own engine finds with it."""

from __future__ import annotations

import random
import re

import pytest

from forearm.text.grammars.look_ahead import without_look_ahead
from forearm.text.grammars.regex_syntax import NotRead

EXACT = [
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d{0,2}\.\d{0,1}0*)$",
    r"^(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z\d]{3,64}$",
    r"^(?!ab$)[a-z]+$",
    r"^(?!.*\.\.)[a-z.]+$",
    "(?!x)[xyab]",
    "^a(?=b)b+$",
    "b(?!ab)",
    r"^(?!\s*$).+",
    "^(?=.{1,4}$)[a-z]+(-[a-z]+)*$",
    "^(?:a|(?=b)[ab]|0(?!1)){1,3}?[^-]",
    "^(?=a)b$",
    r"^(?:(?!0)\d){2}[\x2d\-A-]$",
]
RELAXED = [
    "^((?!ab).)*$",
    r"^a\b.*$",
    "^(?!-)[ab-]{1,9}(?<!-)$",
    r"^(?!^[-+.]*$)0*(?=[\d.]{1,31}0*$)\d{0,30}\.\d{0,30}0*$",
]


def in_python(pattern: str) -> re.Pattern[str]:
    """Compile an expression of Rust's syntax, which is made here, for Python's engine."""
    text = re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: f"\\U{int(code[1], 16):08x}", pattern)
    return re.compile(text.replace("(?s:.)", r"[\s\S]").replace("$", r"\Z"))


@pytest.mark.parametrize("pattern", EXACT + RELAXED)
def test_it_fits_the_same_texts_or_more(pattern: str) -> None:
    made, exact = without_look_ahead(pattern)
    seen, chance = re.compile(pattern.replace("$", r"\Z")), random.Random(1)
    ours = [in_python(one) for one in made]

    for _ in range(4000):
        text = "".join(chance.choice("aabbAx01.-+ \n") for _ in range(chance.randint(0, 7)))
        wanted, got = seen.search(text) is not None, all(one.search(text) for one in ours)
        assert got == wanted or (got and pattern in RELAXED), text
    assert exact == (pattern in EXACT)


@pytest.mark.parametrize(
    "pattern", [r"(?=a)\1", r"(?=a)\p{L}", "(?=a", "a(?=b))", "(?i)(?=a)", "(?=a)[[a]]", "(?=" * 99]
)
def test_what_is_not_read_is_left_to_others(pattern: str) -> None:
    with pytest.raises(NotRead):
        without_look_ahead(pattern)
