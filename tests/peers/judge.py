"""Classification of the results of another project's tests: passed, judged to differ, or unexpected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """One test of a peer and what came of it."""

    test: str
    outcome: str  # passed, failed or skipped
    why: str = ""


@dataclass
class Score:
    """Results sorted by what they mean."""

    passed: list[Result] = field(default_factory=list)
    skipped: list[Result] = field(default_factory=list)
    judged: list[tuple[Result, str]] = field(default_factory=list)
    unexpected: list[Result] = field(default_factory=list)
    agreeing: list[str] = field(default_factory=list)  # judged prefixes of which no test differs

    def __str__(self) -> str:
        asked = len(self.passed) + len(self.judged) + len(self.unexpected)
        return (
            f"{len(self.passed)} of {asked} pass, {len(self.judged)} judged differences, "
            f"{len(self.unexpected)} unexpected, {len(self.skipped)} skipped by themselves"
        )


def read_judged(text: str) -> dict[str, str]:
    """Return the reason for each prefix of test names.

    A line that begins at the margin is a reason, each indented line below it a prefix that it holds for.
    Raises: ValueError for a prefix without a reason, and for one that stands twice.
    """
    judged: dict[str, str] = {}
    reason = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            reason = line.strip()
            continue
        prefix = line.strip()
        if not reason or prefix in judged:
            raise ValueError(f"{prefix} {'stands twice' if reason else 'has no reason'}: mend the list of judged tests")
        judged[prefix] = reason
    return judged


def whole_files(judged: Iterable[str]) -> list[str]:
    """Return the files all of whose tests are judged: they are not run."""
    return [prefix for prefix in judged if prefix.endswith(".py")]


def _names(prefix: str, test: str) -> bool:
    """Return whether a prefix names this test: it ends where a name, a word of it or a parameter may end."""
    rest = test.removeprefix(prefix)
    return rest != test and ("[" in prefix or prefix.endswith("_") or rest[:1] in ("", "[", ":"))


def score(results: Iterable[Result], judged: dict[str, str]) -> Score:
    """Sort results; a test has the reason of the longest prefix that it begins with."""
    sorted_, differing = Score(), set()
    for result in results:
        prefix = max((p for p in judged if _names(p, result.test)), key=len, default=None)
        if result.outcome == "passed":
            sorted_.passed.append(result)
        elif result.outcome == "skipped":
            sorted_.skipped.append(result)
        elif prefix is None:
            sorted_.unexpected.append(result)
        else:
            sorted_.judged.append((result, judged[prefix]))
            differing.add(prefix)
    whole = set(whole_files(judged))
    sorted_.agreeing = [p for p in judged if p not in differing and p not in whole]
    return sorted_
