"""The path of a streamed chat, as docs/architecture.md lists it: short, and each file reached from one above."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.test_code import PACKAGE, ROOT, parsed

MOST_PYTHON, MOST_CXX = 16, 7


def request_path() -> list[list[str]]:
    """Return the files of the path, a list for each section: worker, engine, native, worker again."""
    block = (ROOT / "docs/architecture.md").read_text().split("## The path of a request")[1].split("```")[1]
    sections: list[list[str]] = []
    for line in block.strip().splitlines():
        if re.match(r"(app|native)/", line):
            sections[-1].append(line.split()[0])
        else:
            sections.append([])
    return sections


def imported(path: Path) -> set[str]:
    """Return the files of the package that a file imports by name."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forearm"):
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {f"app/{module.replace('.', '/')}.py" for module in modules}
    return found


def included(path: Path, seen: set[str] | None = None) -> set[str]:
    """Return the headers of native/ that a file includes, directly or not."""
    seen = set() if seen is None else seen
    for name in re.findall(r'^#include "([\w/.]+)"', path.read_text(), re.MULTILINE):
        header = ROOT / "native" / name
        if name not in seen and header.exists():
            seen.add(name)
            included(header, seen)
    return seen


def test_the_path_of_a_request_is_short() -> None:
    files = [file for section in request_path() for file in section]

    assert len(set(files)) == len(files) > 15
    assert sum(file.endswith(".py") for file in files) <= MOST_PYTHON
    assert sum(not file.endswith(".py") for file in files) <= MOST_CXX
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_each_python_file_of_the_path_is_imported_by_one_above_it() -> None:
    worker, engine, _, back = request_path()
    reached = {file: imported(ROOT / file) for file in (*worker, *engine, *back)}

    for files in ([*worker, *back], engine):
        for number, file in enumerate(files[1:], 1):
            assert any(file in reached[before] for before in files[:number]), f"{file} is reached from none above it"
    assert worker[-1] == "app/forearm/wire.py"
    assert worker[-1] in reached[engine[0]], "the engine does not read what the worker writes"
    assert "_native" in (PACKAGE / "engine/executor.py").read_text()


def test_each_native_file_of_the_path_is_reached_from_one_above_it() -> None:
    native = [file.removeprefix("native/") for file in request_path()[2]]
    headers = {file: {re.sub(r"\.cpp$", ".h", file), *included(ROOT / "native" / file)} for file in native}

    for number, file in enumerate(native[1:], 1):
        # Its header is included above, or it implements a header that is included there.
        assert any(headers[before] & headers[file] for before in native[:number]), f"{file} is reached from none above"
