"""Our OpenAPI document against a running server: schemathesis makes requests of it, and reads the answers by it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.served import Served, serve

KEY = "key-of-the-document"
CASES_AN_OPERATION = 20
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # Answers are as long as the context lets them be.
    flags = ("--api-key", KEY, "--max-model-len", "48", "--enable-tokenizer-info-endpoint")
    with serve(tmp_path_factory.mktemp("openapi"), *flags, key=KEY) as running:
        yield running


def run(served: Served, folder: Path, *flags: str) -> str:
    program = Path(sys.executable).with_name("st")
    if sys.version_info < (3, 11):
        pytest.skip("schemathesis needs Python 3.11")
    argv = [str(program), "run", f"{served.url}/openapi.json", "--checks", CHECKS]
    argv += ["--seed", "1", "--generation-deterministic", "--workers", "4"]
    argv += ["--max-examples", str(CASES_AN_OPERATION), "--no-color", "--request-timeout", "60", *flags]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=folder, timeout=280)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    return ended.stdout


def test_answers_are_as_the_document_says(served: Served, tmp_path: Path) -> None:
    said = run(served, tmp_path, "--header", f"Authorization: Bearer {KEY}", "--phases", "examples,fuzzing")

    cases = re.search(r"(\d+) generated", said)
    assert cases is not None, said[-3000:]
    assert int(cases[1]) > 400, "this shows little"
    assert served.chat(max_tokens=2).status_code == 200
    assert "Traceback" not in served.log.read_text()


def test_without_a_key_the_same_holds(served: Served, tmp_path: Path) -> None:
    run(served, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "2")


def test_every_operation_says_how_it_fails_and_streams(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    posts = {path: operations["post"] for path, operations in document["paths"].items() if "post" in operations}

    assert len(posts) > 10
    for operation in posts.values():
        assert {"400", "401", "404", "413", "429", "500", "503"} < operation["responses"].keys()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        assert "text/event-stream" in posts[path]["responses"]["200"]["content"]
    assert all(
        "$ref" in answer["content"]["application/json"]["schema"]
        for operations in document["paths"].values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
        if status != "200"
    )


def test_every_body_says_which_fields_it_needs(served: Served) -> None:
    """A body without them is a 400, and the document says so before."""
    document = served.http.get("/openapi.json").json()
    bodies = {
        path: operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, operations in document["paths"].items()
        if "requestBody" in operations.get("post", {})
    }
    assert len(bodies) > 10
    for path, schema in bodies.items():
        assert schema.get("required") or all(one["required"] for one in schema.get("anyOf", [{"required": []}])), path
        assert served.http.post(path, json={}).status_code in (400, 404), path
