"""The shape of the tree: how wide a folder is, and that a name means one thing and a function has more than one use."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_code import PACKAGE, ROOT, at, parsed

WIDEST = 20  # most source files of a folder, besides __init__.py, so that a reader sees them at a glance

# Type names that still stand in several files of the package. The table only shrinks.
SHARED_TYPE_NAMES = "SamplingParams"

# A function with a single caller is worth its name where it is a step that a reader looks for; mini-sglang, nano-vllm
# and llama.cpp have 3 to 9 % of them. A function that a table or a framework names has its callers elsewhere; with
# those, which are no call, we began at 26 %. The bound only shrinks. `super().name()` calls what an override replaces,
# not the override.
ONE_CALLER_SHARE = 0.12


def test_a_folder_is_taken_in_at_a_glance() -> None:
    tops = [PACKAGE, ROOT / "native", ROOT / "bench"]
    folders = [folder for top in tops for folder in [top, *top.rglob("*")] if folder.is_dir()]
    files = Counter(
        {
            at(folder): sum(f.suffix in (".py", ".cpp", ".h") and f.name != "__init__.py" for f in folder.iterdir())
            for folder in folders
        }
    )
    assert len(files) > 30

    wide = {folder: count for folder, count in files.items() if count > WIDEST}

    assert not wide


def python_types(path: Path) -> Iterator[str]:
    """Yield the names of the classes and type aliases at a module's top level."""
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            alias = isinstance(node.value, (ast.Subscript, ast.BinOp)) or (
                isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
            )
            yield from (t.id for t in targets if alias and isinstance(t, ast.Name) and re.match("[A-Z][a-z]", t.id))


def cxx_types(path: Path) -> Iterator[str]:
    """Yield the names of the types that a file defines in its namespace, without specializations and declarations."""
    text = path.read_text()
    yield from re.findall(r"^(?:struct|class|enum class|union) (\w+)(?: final)? *(?:: [^;]*)?{", text, re.MULTILINE)
    if path.suffix == ".h":  # an alias of a .cpp file is its own short name of a type
        yield from re.findall(r"^using (\w+) =", text, re.MULTILINE)


def shared(types: list[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the files of each name that stands in several."""
    files: dict[str, set[str]] = defaultdict(set)
    for name, path in types:
        files[name].add(at(path))
    return {name: sorted(paths) for name, paths in files.items() if len(paths) > 1}


def test_a_type_name_means_one_thing_in_the_package() -> None:
    types = [(name, path) for path in PACKAGE.rglob("*.py") for name in python_types(path)]
    assert len(types) > 500

    found = {name: paths for name, paths in shared(types).items() if name not in SHARED_TYPE_NAMES.split()}

    assert not found, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in sorted(found.items()))


def test_a_type_name_means_one_thing_in_the_native_module() -> None:
    # simd/ defines the same types once for each instruction set: a tier includes one of each.
    files = [path for suffix in ("*.h", "*.cpp") for path in (ROOT / "native").rglob(suffix)]
    types = [(name, path) for path in files if "simd" not in path.parts for name in cxx_types(path)]
    assert len(types) > 100

    assert not shared(types)


def test_what_a_request_needs_is_an_argument() -> None:
    assert not [at(path) for path in PACKAGE.rglob("*.py") if "ContextVar" in path.read_text()]


def test_few_functions_have_a_single_caller() -> None:
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    called: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                # What a decorator registers (a route, a validator, a property) has its caller elsewhere.
                defined[node.name] += not node.name.startswith("__") and not node.decorator_list
            elif isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += not (isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()")
            elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                called[node.func.id if isinstance(node.func, ast.Name) else node.func.attr] += 1
    assert defined.total() > 1000

    single = [name for name, count in defined.items() if count == 1 and used[name] == called[name] == 1]

    assert len(single) <= ONE_CALLER_SHARE * defined.total(), f"{len(single)} of {defined.total()}"
