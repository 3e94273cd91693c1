"""Frameworks and SDKs as users have them, against a running server. `.ci/run clients` makes what they need."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.pooling_models import minilm
from tests.e2e.served import Served, serve

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients/bin/python"
NODE_FOLDER = ROOT / "build/openai-node"
KEY = "the-key-of-the-clients"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # The model's own generation config ends answers at 128 tokens.
    flags = ("--api-key", KEY, "--generation-config", "vllm", "--served-model-name", "demo_model")
    with serve(tmp_path_factory.mktemp("clients"), *flags, key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = (str(minilm()), "--served-model-name", "minilm", "--api-key", KEY)
    with serve(tmp_path_factory.mktemp("embedding"), *flags, key=KEY) as running:
        yield running


def failures(argv: list[str | Path]) -> tuple[int, dict[str, str]]:
    """Return the number of checks, and the failed ones with their reasons."""
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=240, cwd=ROOT / "build")
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, str] = json.loads(ended.stdout.strip().splitlines()[-1])
    return len(found), {name: how for name, how in found.items() if how}


def framework(name: str, served: Served) -> tuple[int, dict[str, str]]:
    if not PYTHON.exists():
        pytest.skip("there is no .venv-clients: make .venv-clients/.made")
    return failures([PYTHON, ROOT / "tests/clients/frameworks.py", name, served.url, KEY])


@pytest.mark.parametrize(("name", "checks"), [("langchain", 9), ("llamaindex", 4), ("litellm", 6)])
def test_a_framework_that_chats(served: Served, name: str, checks: int) -> None:
    assert framework(name, served) == (checks, {})


@pytest.mark.parametrize("name", ["langchain_embeddings", "litellm_embeddings"])
def test_a_framework_that_embeds(embedding: Served, name: str) -> None:
    assert framework(name, embedding) == (1, {})


def test_openai_node(served: Served) -> None:
    node = shutil.which("node")
    if node is None or not NODE_FOLDER.exists():
        pytest.skip("node or build/openai-node is not there: make build/openai-node/.made")

    assert failures([node, ROOT / "tests/clients/openai_node.mjs", served.url, KEY, NODE_FOLDER]) == (6, {})
