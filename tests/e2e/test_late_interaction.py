"""A tiny ColBERT through a real server and through LLM, beside transformers: vectors of tokens, and scores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.e2e.pooling_models import write_model
from tests.e2e.served import Served, serve
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from forearm import LLM

QUERY, DOCUMENTS = "what is a cat", ["a cat is an animal", "trains go fast", "cat", "no"]


@dataclass(frozen=True)
class ColBert:
    """A folder of ColBERT's own form, and transformers' reading of its parts."""

    folder: Path
    bert: PreTrainedModel
    projection: torch.Tensor

    def vectors(self, text: str) -> np.ndarray:
        """Return the vectors of a text's tokens, of unit length."""
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
        with torch.no_grad():
            rows = self.bert(**tokenizer(text, return_tensors="pt", return_token_type_ids=True)).last_hidden_state[0]
            found: np.ndarray = torch.nn.functional.normalize(rows @ self.projection.T, dim=-1).numpy()
        return found

    def score(self, query: str, document: str) -> float:
        return float((self.vectors(query) @ self.vectors(document).T).max(axis=1).sum())


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> ColBert:
    folder = tmp_path_factory.mktemp("colbert")
    bert = write_model(folder, "BertModel", "BertConfig")
    projection = torch.randn(20, 48) / 48**0.5
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, "linear.weight": projection}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    return ColBert(folder, bert, projection)


@pytest.fixture(scope="module")
def served(colbert: ColBert, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("log"), str(colbert.folder)) as served:
        yield served


def test_pooling_returns_a_projected_vector_of_each_token(served: Served, colbert: ColBert) -> None:
    for task in ({}, {"task": "token_embed"}, {"task": "encode"}):
        found = served.http.post("/pooling", json={"input": [QUERY, *DOCUMENTS], **task}).json()["data"]

        for one, text in zip(found, [QUERY, *DOCUMENTS], strict=True):
            np.testing.assert_allclose(one["data"], colbert.vectors(text), atol=1e-5)


def test_score_and_rerank_sum_the_best_products(served: Served, colbert: ColBert) -> None:
    wanted = [colbert.score(QUERY, document) for document in DOCUMENTS]

    scored = served.http.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
    ranked = served.http.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()["results"]

    assert [one["score"] for one in scored] == pytest.approx(wanted, abs=1e-4)
    assert [one["index"] for one in ranked] == sorted(range(len(wanted)), key=lambda i: -wanted[i])
    assert wanted[0] != pytest.approx(colbert.score(DOCUMENTS[0], QUERY), abs=1e-4), "a score has a direction"


def test_one_vector_of_a_text_is_refused_by_name(served: Served) -> None:
    embedded = served.http.post("/v1/embeddings", json={"input": QUERY})
    pooled = served.http.post("/pooling", json={"input": QUERY, "task": "embed"})

    assert (embedded.status_code, pooled.status_code) == (400, 400)
    assert "a vector for each token" in embedded.json()["error"]["message"]
    assert "token_embed" in pooled.json()["error"]["message"]


def test_llm_scores_as_the_server_does(colbert: ColBert) -> None:
    llm = LLM(str(colbert.folder))

    scores = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS)]
    [vectors] = llm.encode(QUERY)

    assert scores == pytest.approx([colbert.score(QUERY, document) for document in DOCUMENTS], abs=1e-4)
    np.testing.assert_allclose(vectors.outputs.data, colbert.vectors(QUERY), atol=1e-5)
