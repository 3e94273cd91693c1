"""docs/clients.md and the notebooks, run unchanged except for the address or the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from tests.clients.test_clients import PYTHON
from tests.e2e.served import Served, serve

DOCS = Path(__file__).parents[2] / "docs"
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
# For each section of the page: the language of its code block, and the block.
BLOCKS = {
    title: (language, block)
    for title, language, block in re.findall(
        r"^## (.+?)\n(?:(?!^##).)*?^```(\w+)\n(.*?)^```", (DOCS / "clients.md").read_text(), re.MULTILINE | re.DOTALL
    )
}
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}  # otherwise litellm asks the internet


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--served-model-name", MODEL, "--override-generation-config", '{"temperature": 0}')
    with serve(tmp_path_factory.mktemp("pages"), *flags) as running:
        yield running


def block(title: str, served: Served) -> str:
    """Return the code block under a title, with this server's address."""
    _, text = BLOCKS[title]
    assert MODEL in text or "OPENAI_API_BASE_URL" in text
    return re.sub(r"http://(localhost|host\.docker\.internal):8000", served.url, text)


def printed(*argv: str | Path, text: str = "") -> str:
    ended = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=240, env={**os.environ, **QUIET})
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def said(base_url: str, key: str, **fields: Any) -> str:
    """Return the answer that a client gets with this address and key."""
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        assert MODEL in [one.id for one in client.models.list()]
        question: Any = [{"role": "user", "content": "What is a glacier?"}]
        answer = client.chat.completions.create(messages=question, **{"model": MODEL, **fields})
        return answer.choices[0].message.content or ""


def test_every_client_of_the_page_is_tried() -> None:
    assert list(BLOCKS) == [
        *("openai", "LangChain", "LlamaIndex", "LiteLLM"),
        *("Open WebUI", "Continue", "Claude Code", "Codex"),
    ]


def test_openai(served: Served) -> None:
    assert "ice" in printed(sys.executable, "-", text=block("openai", served))


@pytest.mark.parametrize("title", ["LangChain", "LlamaIndex", "LiteLLM"])
def test_a_framework(served: Served, title: str) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no .venv-clients: make .venv-clients/.made")

    assert "ice" in printed(PYTHON, "-", text=block(title, served))


def test_the_address_that_open_webui_is_told(served: Served) -> None:
    variables = dict(re.findall(r"-e (\w+)=(\S+)", block("Open WebUI", served)))

    assert "ice" in said(variables["OPENAI_API_BASE_URL"], variables["OPENAI_API_KEY"])


def test_the_model_that_continue_is_told(served: Served) -> None:
    (model,) = yaml.safe_load(block("Continue", served))["models"]

    assert "ice" in said(model["apiBase"], model["apiKey"], model=model["model"])


def test_the_variables_that_claude_code_reads(served: Served) -> None:
    """Anthropic's SDK reads address and token from the same variables."""
    ask = (
        "import anthropic, os; question = [{'role': 'user', 'content': 'What is a glacier?'}]; "
        "client = anthropic.Anthropic(max_retries=0); model = os.environ['ANTHROPIC_MODEL']; "
        "print(client.messages.create(model=model, max_tokens=40, messages=question).content[0].text)"
    )
    script = block("Claude Code", served)
    assert script.endswith("\nclaude\n")

    assert "ice" in printed("bash", "-ec", script.removesuffix("claude\n") + f'"{sys.executable}" -c "{ask}"')


def test_the_provider_that_codex_is_told(served: Served) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    told = tomllib.loads(block("Codex", served))
    provider = told["model_providers"][told["model_provider"]]

    assert provider["wire_api"] == "responses"
    with openai.OpenAI(base_url=provider["base_url"], api_key="none", max_retries=0) as client:
        assert "ice" in client.responses.create(model=told["model"], input="What is a glacier?").output_text


def cells(notebook: str, count: int) -> str:
    """Return the code of a notebook, which has no outputs, and a check of its last answer."""
    found = [cell for cell in json.loads((DOCS / notebook).read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in found] == [[]] * count
    return "\n".join([*("".join(cell["source"]) for cell in found), "assert set(city) == {'name', 'large'}"])


def test_the_cells_of_the_notebook(served: Served) -> None:
    program = cells("chat.ipynb", 4).replace("http://localhost:8000", served.url)

    assert "ice" in printed(sys.executable, "-", text=program)


def test_the_cells_of_the_notebook_without_a_server() -> None:
    program = cells("offline.ipynb", 5).replace(f'"{MODEL}"', '""')  # the demonstration model

    assert "ice" in printed(sys.executable, "-", text=program)
