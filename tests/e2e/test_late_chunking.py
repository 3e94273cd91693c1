"""Late chunking of all-MiniLM-L6-v2 through a real server and LLM: means of transformers' rows, and their places."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.pooling_models import minilm
from tests.e2e.served import Served, serve
from transformers import AutoModel, AutoTokenizer

from forearm import LLM, PoolingParams
from forearm.errors import InvalidRequest
from forearm.offline.pooling_outputs import LateChunkingParams

TEXTS = ["Berlin is the capital of Germany. Its 3.8 million inhabitants make it the EU's most populous city.", "Zürich"]


@cache
def chunks_of(text: str, size: int) -> tuple[np.ndarray, list[list[int]], list[list[int] | None]]:
    """Return the vectors of a text's chunks at unit length, and the tokens and characters of each."""
    folder = minilm()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32)
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        rows = model.eval()(**encoded).last_hidden_state[0]
    vectors = torch.stack([torch.nn.functional.normalize(one.mean(dim=0), dim=0) for one in rows.split(size)])
    tokens = [[at, min(at + size, len(rows))] for at in range(0, len(rows), size)]
    characters: list[list[int] | None] = []
    for start, end in tokens:
        inside = [place for place in offsets[start:end] if place[0] < place[1]]
        characters.append([inside[0][0], inside[-1][1]] if inside else None)
    return vectors.numpy(), tokens, characters


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("log"), str(minilm())) as running:
        yield running


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_each_chunk_has_the_mean_of_its_rows(size: int, served: Served) -> None:
    body = {"input": TEXTS, "late_chunking_params": {"chunk_size": size}}

    found = served.http.post("/v1/embeddings", json=body).json()["data"]

    for one, text in zip(found, TEXTS, strict=True):
        vectors, tokens, characters = chunks_of(text, size)
        np.testing.assert_allclose(one["embedding"], vectors, atol=1e-5)
        chunking = one["late_chunking"]
        assert [chunk["token_range"] for chunk in chunking["chunks"]] == tokens
        assert [chunk["char_range"] for chunk in chunking["chunks"]] == characters
        assert (chunking["chunk_size"], chunking["input_tokens"]) == (size, tokens[-1][1])
        assert chunking["strategy"] == "fixed_tokens"


def test_an_embedding_that_is_not_cut_says_nothing_of_chunks(served: Served) -> None:
    [found] = served.http.post("/v1/embeddings", json={"input": TEXTS[0]}).json()["data"]

    assert "late_chunking" not in found


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"late_chunking_params": {"chunk_size": 0}}, "late_chunking_params"),
        ({"late_chunking_params": {"chunk_size": "4"}}, "late_chunking_params"),
        ({"late_chunking_params": {"chunk_size": 1 << 64}}, "late_chunking_params"),
        ({"late_chunking_params": {}}, "late_chunking_params"),
        ({"dimensions": 64}, "dimensions"),
        ({"encoding_format": "base64"}, "encoding_format"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        ({"input": [3, 4]}, "input"),
        ({"input": ""}, "input"),
        ({"input": "a " * 600}, "input"),
    ],
)
def test_what_does_not_go_with_chunks_is_a_400(fields: dict[str, Any], param: str, served: Served) -> None:
    body = {"input": "a", "late_chunking_params": {"chunk_size": 4}} | fields

    reply = served.http.post("/v1/embeddings", json=body)

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(param)


def test_llm_cuts_as_the_server_does() -> None:
    llm = LLM(str(minilm()))
    params = PoolingParams(late_chunking_params=LateChunkingParams(chunk_size=4))

    found = llm.encode(TEXTS, pooling_params=params, pooling_task="token_embed")

    for one, text in zip(found, TEXTS, strict=True):
        vectors, tokens, characters = chunks_of(text, 4)
        np.testing.assert_allclose(one.outputs.data, vectors, atol=1e-5)
        assert one.late_chunking is not None
        assert [list(chunk.token_range) for chunk in one.late_chunking.chunks] == tokens
        assert [chunk.char_range and list(chunk.char_range) for chunk in one.late_chunking.chunks] == characters
    [whole] = llm.encode(TEXTS[0], pooling_task="token_embed")
    assert whole.late_chunking is None
    with pytest.raises(InvalidRequest, match="needs the task token_embed"):
        llm.embed("a", pooling_params=params)
    cut = PoolingParams(truncate_prompt_tokens=8, late_chunking_params=LateChunkingParams(4))
    with pytest.raises(InvalidRequest, match="neither truncated"):
        llm.encode("a", cut, pooling_task="token_embed")
    with pytest.raises(InvalidRequest, match="chunk_size is 0"):
        LateChunkingParams(0)
