"""Docstrings and comments stand alone, and the files they name are there."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from tests.house.test_code import ROOT, at, parsed

OWN = sorted(path for top in ("app", "bench", "deploy", "tests", "tools") for path in (ROOT / top).rglob("*.py"))

# A docstring opens with a verb or a noun phrase ("Return the blocks a prompt needs.", "The cores of a node."). What
# opens with one of these words is a fragment: it leans on the name above it, or on the sentence before.
FRAGMENT = re.compile(
    r"""\W*(of|those|these|its?|their|they|his|whose|as|what|how|who|whoever|whom|whether|so|where|when|which|because|why
        |from|in|on|at|by|for|with|without|to|under|between|past|before|after|until|while|since|if
        |that|such|nobody|may|is|was|are|let|whatever|wherever|only|left|raises:)(?!\w)""",
    re.IGNORECASE | re.VERBOSE,
)

# Files of other projects that we cite.
ELSEWHERE = {
    "compressed-tensors": "quantization/quant_args.py",
    "DeepSeek": "encoding/encoding_dsv32.py",
    "Linux and its C library": "linux/prctl.h sysexits.h",
    "llama.cpp": "convert_hf_to_gguf.py ggml.h ggml-common.h llama.h common/common.h llama-arch.cpp llama-vocab.cpp "
    "src/llama-model.cpp src/llama-quant.cpp src/llama-vocab.cpp llama.cpp ggml-org/llama.cpp "
    "ik_llama.cpp bitnet.cpp",
    "OpenAI": "openai/gpt-2/encoder.py",
    "prometheus-client": "prometheus_client/mmap_dict.py",
    "transformers": "modeling_rope_utils.py integrations/bitnet.py",
    "vLLM": "lib/endpoint_request_func.py qwen3coder_tool_parser.py vllm/benchmarks/serve.py "
    "vllm/v1/spec_decode/metrics.py",
}


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Line and text of every docstring of a file."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [node for node in ast.walk(parsed(path)) if isinstance(node, nodes) and ast.get_docstring(node)]
    return [(node.body[0].lineno, ast.get_docstring(node) or "") for node in documented]


def test_a_docstring_stands_alone() -> None:
    texts = [(f"{at(path)}:{line}", text) for path in OWN for line, text in docstrings(path)]
    assert len(texts) > 1000

    found = [f"{place}: {text.splitlines()[0]}" for place, text in texts if FRAGMENT.match(text)]

    assert not found, "\n".join(found)


def test_a_docstring_ends_its_sentences() -> None:
    texts = [(f"{at(path)}:{line}", text) for path in OWN for line, text in docstrings(path)]

    found = [place for place, text in texts if not text.split("\n\n")[0].rstrip(")").endswith((".", ":", "?"))]

    assert not found


def test_a_file_that_a_text_names_is_there() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = {"/".join(path.split("/")[start:]) for path in tracked for start in range(path.count("/") + 1)}
    names |= {name for texts in ELSEWHERE.values() for name in texts.split()}
    read = [path for path in tracked if re.match(r"(app|native|bench|tools)/.*\.(py|h|cpp)$|[\w/]*\.md$", path)]
    assert len(read) > 300

    found = [
        f"{path}:{number}: {name}"
        for path in read
        if (ROOT / path).exists()
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        for name in re.findall(r"(?<![\w/.<*-])((?:[\w-]+/)*[a-z][\w-]{2,}[\w.-]*\.(?:py|cpp|h))\b(?![\w(])", line)
        if not line.startswith("#include") and name not in names
    ]

    assert not found, "\n".join(found)
