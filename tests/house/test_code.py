"""The rules that keep the code as it is: where things may be read or imported, how long they may be, how named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "app" / "forearm"
PYTHON = sorted(p for top in ("app", "bench", "tools", "tests") for p in (ROOT / top).rglob("*.py"))
CXX = sorted(
    p for pattern in ("*.h", "*.cpp") for top in ("native", "tests/native") for p in (ROOT / top).rglob(pattern)
)

LONGEST_FUNCTION = {".py": 45, ".cpp": 60, ".h": 60}
LONGEST_FILE = {".py": 320, ".cpp": 420, ".h": 420}
LONGEST_TEST = 500  # many short cases of one thing
# What is longer, and why it is better so.
LONG_FUNCTIONS: dict[str, str] = {
    "app/forearm/engine/start.py:start": "the order of a start, which is what one comes to read there",
}
LONG_FILES: dict[str, str] = {
    "native/kernels/kernels.h": "the contract of every operation, which one comes to read in one place",
}

NO_NAMES = re.compile(r"(Manager|Helper|Util|Utils|Base|Impl|Handler|Wrapper|Info|Data)$")
CPU_WORDS = re.compile(
    r"\b(__aarch64__|__x86_64__|__ARM_\w+|__AVX\w*|HWCAP\w*|getauxval|__builtin_cpu_\w+|__get_cpuid\w*)\b"
)


def at(path: Path) -> str:
    """The path as people name it."""
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of every function, its docstring and decorators not counted."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            yield node.name, lines


def cxx_functions(path: Path) -> Iterator[tuple[str, int]]:
    """First line and lines of every block that begins at the margin: with our layout these are functions.

    Namespaces, types and tables begin at the margin too and are left out.
    """
    lines = path.read_text().splitlines()
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines):
        if opened is None and line.endswith("{") and line[:1].isalpha():
            if not re.match(r"(namespace|struct|class|enum|extern|union)\b", line) and " = {" not in line:
                opened = (line, number)
        elif opened is not None and line.startswith("}"):
            yield opened[0], number - opened[1] + 1
            opened = None


def test_there_is_code_to_look_at() -> None:
    assert len(PYTHON) > 50
    assert len(CXX) > 20


@pytest.mark.parametrize("path", PYTHON + CXX, ids=at)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())

    most = LONGEST_TEST if at(path).startswith("tests/") else LONGEST_FILE[path.suffix]
    assert lines <= most or at(path) in LONG_FILES, f"{at(path)} has {lines} lines, the limit is {most}"


def test_a_function_fits_on_a_screen() -> None:
    found = [
        f"{at(path)}: {name} has {lines} lines"
        for path in PYTHON + CXX
        for name, lines in (python_functions(path) if path.suffix == ".py" else cxx_functions(path))
        if lines > LONGEST_FUNCTION[path.suffix] and f"{at(path)}:{name.split('(')[0]}" not in LONG_FUNCTIONS
    ]

    assert not found, "\n".join(found)


def reads_environment(node: ast.AST) -> bool:
    """os.environ and its like, or their import by name."""
    names = ("environ", "environb", "getenv", "putenv")
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(a.name in names for a in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os" and node.attr in names


def test_the_environment_is_read_in_config_alone() -> None:
    found = {
        at(path)
        for path in PACKAGE.rglob("*.py")
        if at(path) != "app/forearm/config/environment.py" and any(map(reads_environment, ast.walk(parsed(path))))
    }

    assert not found, f"read the environment in config/environment.py: {found}"


def test_the_environment_is_read_in_tiers_alone() -> None:
    found = [at(p) for p in CXX if re.search(r"\b(secure_)?getenv\b", p.read_text()) and "tests/" not in at(p)]

    assert found == ["native/kernels/tiers.cpp"]


def test_native_is_imported_where_its_doors_are() -> None:
    doors = {
        "app/forearm/engine/executor.py",
        "app/forearm/engine/host/memory_plan.py",
        "app/forearm/engine/host/placement.py",
        "app/forearm/model/checkpoint/calibration.py",
        "app/forearm/model/checkpoint/quantized_writer.py",
        "app/forearm/model/checkpoint/rounding_errors.py",
        "app/forearm/model/gguf/short_names.py",
        "app/forearm/model/checkpoint/weights.py",
        "app/forearm/model/modules/forward.py",
        "app/forearm/model/modules/linear.py",
        "app/forearm/model/modules/llama_layer.py",
        "app/forearm/model/modules/loading.py",
        "app/forearm/model/modules/rotary.py",
    }

    found = {
        at(path)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.ImportFrom) and any(a.name == "_native" for a in node.names))
        or (isinstance(node, ast.Import) and any(a.name.endswith("._native") for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").endswith("_native"))
    }

    assert found - doors - {"app/forearm/cli/main.py"} == set()
    assert doors <= found


def test_what_the_cpu_has_is_asked_in_one_place() -> None:
    allowed = {"native/kernels/tiers.cpp", "native/threads/topology.cpp", "native/threads/store_wait.cpp"}

    found = [at(p) for p in CXX if at(p).startswith("native/") and CPU_WORDS.search(code_of(p))]

    assert set(found) <= allowed, f"ask for CPU features in tiers.cpp: {sorted(set(found) - allowed)}"


def code_of(path: Path) -> str:
    """C++ without line comments."""
    return re.sub(r"//.*", "", path.read_text())


def named_in_python(name: str) -> Iterator[str]:
    """Files of the package whose texts, other than docstrings, have this word."""
    for path in PACKAGE.rglob("*.py"):
        tree = parsed(path)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
        if any(isinstance(one.value, str) and re.search(rf"\b{name}\b", one.value) for one in texts):
            yield at(path)


# The tables of number formats, and files that pack them, multiply them or read them from checkpoints.
@pytest.mark.parametrize("name", ["int4", "int6", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"])
def test_a_number_format_is_named_in_a_handful_of_files(name: str) -> None:
    python = sorted(named_in_python(name))
    cxx = [at(p) for p in CXX if p.is_relative_to(ROOT / "native") and re.search(rf"\b{name}\b", code_of(p))]
    assert "app/forearm/config/number_formats.py" in python
    assert "native/kernels/kernels.h" in cxx
    assert len(python) <= 3, python
    assert len(cxx) <= 5, cxx


def test_linux_headers_are_included_in_threads_and_tiers_alone() -> None:
    linux = re.compile(r"#include <(linux/|asm/|sys/(auxv|epoll|eventfd|memfd|prctl|syscall|sysinfo)|sched\.h|numa)")
    allowed = ("native/threads/", "native/kernels/tiers.cpp")

    found = [at(p) for p in CXX if at(p).startswith("native/") and linux.search(code_of(p))]

    assert {"native/kernels/tiers.cpp"} < set(found), "the rule finds what it is about"
    assert [p for p in found if not p.startswith(allowed)] == [], "the rest of the library also compiles on macOS"


def test_a_tier_includes_kernels_and_mathematics_and_nothing_else() -> None:
    tiers = sorted((ROOT / "native/kernels").glob("tiers/*.cpp"))
    parts = [p for folder in ("simd", "ops") for p in (ROOT / "native/kernels" / folder).rglob("*.h")]
    right = re.compile(
        r'#include (<(math|stdint|string|stddef)\.h>|<(arm_neon|arm_sve|arm_bf16|arm_fp16|immintrin)\.h>|"kernels/.*")'
    )
    assert len(tiers) >= 6
    assert len(parts) >= 50

    found = [
        f"{at(p)}: {line}"
        for p in tiers + parts
        for line in p.read_text().splitlines()
        if line.startswith("#include") and not right.fullmatch(line.split("  //")[0].strip())
    ]

    assert not found, "\n".join(found)


def test_classes_are_named_for_what_they_are() -> None:
    found = [
        f"{at(path)}: {node.name}"
        for path in PYTHON
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and NO_NAMES.search(node.name)
    ]
    found += [
        f"{at(path)}: {name}"
        for path in CXX
        for name in re.findall(r"^(?:struct|class) (\w+)", path.read_text(), re.MULTILINE)
        if NO_NAMES.search(name)
    ]

    assert not found, "\n".join(found)


def test_no_work_is_left_lying_about() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

    found = [at(p) for p in PYTHON + CXX if p != Path(__file__).resolve() and words.search(p.read_text())]

    assert not found


def test_only_the_transformers_executor_imports_torch() -> None:
    found = [
        f"{at(path)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE / "model" / "modules"
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "torch" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch")
    ]

    assert not found
