"""Text that the model's tokenizer cannot express is a 400 in the words of its library, at every endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.letters import byte_alphabet, write_letters
from tests.api.server import Server, started

from forearm.errors import InvalidRequest
from forearm.text.tokenizer.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose tokenizer has no token for "~" and no unknown token."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "letters").mkdir()
    file = write_letters(folder / "letters") / "tokenizer.json"
    written = json.loads(file.read_text())
    written["model"] = {
        "type": "Unigram",
        "unk_id": None,
        "byte_fallback": False,
        "vocab": [[char if byte != ord("~") else "no token", -1.0] for byte, char in enumerate(byte_alphabet())],
    }
    file.write_text(json.dumps(written))
    with started(folder) as running:
        yield running


def test_a_panic_of_the_library_on_some_text_is_an_error_of_the_request(tmp_path: Path) -> None:
    file = write_letters(tmp_path) / "tokenizer.json"
    written = json.loads(file.read_text())
    both = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<no such>", "type_id": 0}}]
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    written["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": both, "special_tokens": {}}
    file.write_text(json.dumps(written))
    tokenizer = load_tokenizer(tmp_path)

    with pytest.raises(InvalidRequest, match="tokenizer cannot encode this text"):
        tokenizer.encode_cut("a", "b")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a ~ b"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "~" * 3000}], "stream": True}),
        ("/v1/completions", {"prompt": ["a", "~"]}),
        ("/v1/responses", {"input": "~"}),
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "~"}]}),
        ("/v1/completions", {"prompt": "a", "bad_words": ["~"]}),
        ("/tokenize", {"prompt": "~"}),
    ],
)
def test_text_that_the_tokenizer_has_no_token_for_is_a_400(server: Server, path: str, body: dict[str, object]) -> None:
    reply = server.http.post(path, json=body)

    assert reply.status_code == 400, reply.text
    assert "tokenizer cannot encode this text" in reply.json()["error"]["message"]
    assert server.chat("hello").status_code == 200
