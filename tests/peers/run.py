"""Run the HTTP tests of vLLM or of llama.cpp against `forearm serve` and print how many hold.

    python -m tests.peers.run vllm --work build/peers
    python -m tests.peers.run llama.cpp --work build/peers

Their source packages come from the package index, the servers run on this machine's loopback addresses. What differs
and is meant to stands in judged.txt with its reason; the exit status is 1 when something else differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.peers.fetch import fetch, model, unpack
from tests.peers.judge import Result, read_judged, score, whole_files

HERE = Path(__file__).resolve().parent
LLAMA_CPP = "vendor/llama.cpp/"
# Text over HTTP, with any chat model: pictures, sound, gpt-oss, pooling models and GPUs have tests of their own.
VLLM_TESTS = [
    f"tests/entrypoints/{name}.py"
    for name in (
        "anthropic/test_messages",
        "openai/chat_completion/test_batched_chat_completions",
        "openai/chat_completion/test_chat",
        "openai/chat_completion/test_chat_completion",
        "openai/chat_completion/test_chat_echo",
        "openai/chat_completion/test_chat_logit_bias_validation",
        "openai/chat_completion/test_completion_with_function_calling",
        "openai/chat_completion/test_enable_force_include_usage",
        "openai/chat_completion/test_include_reasoning",
        "openai/chat_completion/test_logprob_token_ids",
        "openai/chat_completion/test_root_path",
        "openai/completion/test_completion",
        "openai/completion/test_prompt_validation",
        "openai/models/test_models",
        "openai/responses/test_simple",
        "openai/test_chunked_prompt",
        "openai/test_return_token_ids",
        "openai/test_return_tokens_as_ids",
        "scale_out/token_in_token_out/test_serving_tokens",
        "serve/instrumentator/test_basic",
        "serve/instrumentator/test_metrics",
        "serve/instrumentator/test_orca_metrics",
        "serve/middleware/test_optional_middleware",
        "serve/tokenize/test_tokenization",
    )
]


def vllm(version: str | None, work: Path) -> tuple[str, Path, list[str]]:
    """Return the package's name with its version, the folder to run in, and the files to run."""
    sdist = fetch("vllm", version, work)
    folder = unpack(sdist, lambda path: path.startswith("tests/") and path != "tests/conftest.py")
    return folder.name, folder, VLLM_TESTS


def llama_cpp(version: str | None, work: Path) -> tuple[str, Path, list[str]]:
    """Return the package's name with its version, the folder to run in, and the files to run."""
    sdist = fetch("llama-cpp-python", version, work)
    tests, templates = f"{LLAMA_CPP}tools/server/tests/", f"{LLAMA_CPP}models/templates/"
    folder = unpack(sdist, lambda path: path.startswith((tests, templates)))
    return folder.name, folder / tests, sorted(f"unit/{p.name}" for p in (folder / tests / "unit").glob("test_*.py"))


PEERS = {"vllm": (vllm, "vllm_plugin"), "llama.cpp": (llama_cpp, "llama_cpp_plugin")}


def run(folder: Path, plugin: str, tests: list[str], work: Path, keyword: str) -> list[Result]:
    """Run a peer's tests in a process of their own and return what came of each."""
    results = work / f"{plugin}.jsonl"
    results.unlink(missing_ok=True)
    path = [str(HERE), str(HERE.parent / "e2e"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PEERS_RESULTS": str(results)}
    env |= {"PEERS_MODEL": str(model(work)), "HF_HUB_OFFLINE": "1"}
    # Their own settings of pytest stay out: they name plugins and options that are not here.
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
    ]
    argv += ["-p", "results_plugin", "-p", plugin, "-k", keyword, *tests]
    with (work / f"{plugin}.log").open("wb") as log:
        subprocess.run(argv, cwd=folder, env=env, stdout=log, stderr=log, check=False)
    return [Result(**json.loads(line)) for line in results.read_text().splitlines()] if results.exists() else []


def main() -> int:
    """Run one peer's tests. Returns: 1 when a test differs that is not judged, or none ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument(
        "--work", type=Path, default=Path("build/peers"), help="folder for what is fetched (%(default)s)"
    )
    parser.add_argument("--version", help="version of the source package (the newest)")
    parser.add_argument("-k", dest="keyword", default="", help="only tests that pytest's -k selects")
    asked = parser.parse_args()
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    prepare, plugin = PEERS[asked.peer]
    judged = read_judged((HERE / "judged.txt").read_text())
    name, folder, tests = prepare(asked.version, work)
    left_out = [t for t in tests if t in whole_files(judged)]
    found = run(folder, plugin, [t for t in tests if t not in left_out], work, asked.keyword)
    came = score(found, {prefix: why for prefix, why in judged.items() if prefix.split("::")[0] in tests})
    for why, count in Counter(why for _, why in came.judged).most_common():
        print(f"{count:4d} judged: {why}")
    for result in came.unexpected:
        print(f"unexpected: {result.test}: {result.why}")
    if not asked.keyword:
        for prefix in came.agreeing:
            print(f"judged, but no test differs: {prefix}")
    print(f"{name}: {came}; {len(left_out)} files not run (see judged.txt)")
    return 1 if came.unexpected or not came.passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
