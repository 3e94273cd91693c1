"""A tiny bge-m3 through a real server and through LLM, beside torch: its dense, sparse and multi-vector outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.pooling_models import write_model
from tests.e2e.served import Served, serve
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from forearm import LLM, PoolingParams

QUERY, DOCUMENTS = "what is a cat", ["a cat is an animal", "trains go fast", "cat", "no"]
BOS, EOS, SPECIAL = 2, 3, {0, 1, 2, 3, 4}
FROM_VLLM = '{"architectures": ["BgeM3EmbeddingModel"]}'


@dataclass(frozen=True)
class BgeM3:
    """A folder in the form of BAAI/bge-m3, and torch's reading of its parts."""

    folder: Path
    encoder: PreTrainedModel
    sparse: torch.nn.Linear
    vectors: torch.nn.Linear

    @torch.no_grad()
    def outputs(self, text: str) -> dict[str, Any]:
        """Return a text's vector, the vectors of tokens behind the first, and the weights without first and last."""
        ids = PreTrainedTokenizerFast.from_pretrained(self.folder)(text)["input_ids"]
        rows = self.encoder(torch.tensor([ids])).last_hidden_state[0]
        unit = torch.nn.functional.normalize
        return {
            "ids": ids,
            "embed": unit(rows[0], dim=-1).numpy(),
            "token_embed": unit(self.vectors(rows[1:]), dim=-1).numpy(),
            "token_classify": torch.relu(self.sparse(rows[1:-1]))[:, 0].numpy(),
        }

    def score(self, task: str, query: str, document: str) -> float:
        one, two = self.outputs(query), self.outputs(document)
        if task == "embed":
            return float(one[task] @ two[task])
        if task == "token_embed":
            return float((one[task] @ two[task].T).max(axis=1).sum())
        first, second = (_lexical(found) for found in (one, two))
        return sum(weight * second.get(token, 0.0) for token, weight in first.items())


def _lexical(found: dict[str, Any]) -> dict[int, float]:
    weights: dict[int, float] = {}
    for token, weight in zip(found["ids"][1:-1], found["token_classify"].tolist(), strict=True):
        if token not in SPECIAL:
            weights[token] = max(weight, weights.get(token, 0.0))
    return weights


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> BgeM3:
    folder = tmp_path_factory.mktemp("bge-m3")
    own = {"bos_token_id": BOS, "eos_token_id": EOS, "type_vocab_size": 1}
    encoder = write_model(folder, "XLMRobertaModel", "XLMRobertaConfig", **own)
    sparse, vectors = torch.nn.Linear(48, 1), torch.nn.Linear(48, 20)
    torch.save(sparse.state_dict(), folder / "sparse_linear.pt")
    torch.save(vectors.state_dict(), folder / "colbert_linear.pt")
    return BgeM3(folder, encoder, sparse, vectors)


@pytest.fixture(scope="module")
def served(bge: BgeM3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("log"), str(bge.folder), "--hf-overrides", FROM_VLLM) as served:
        yield served


@pytest.mark.parametrize("task", ["embed", "token_embed", "token_classify"])
def test_pooling_returns_the_outputs_of_each_head(task: str, served: Served, bge: BgeM3) -> None:
    texts = [QUERY, *DOCUMENTS]

    found = served.http.post("/pooling", json={"input": texts, "task": task}).json()["data"]

    for one, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(one["data"], bge.outputs(text)[task], atol=1e-5)


def test_some_weights_are_zero_and_some_are_not(bge: BgeM3) -> None:
    weights = np.concatenate([bge.outputs(text)["token_classify"] for text in DOCUMENTS])

    assert 0 < np.count_nonzero(weights) < len(weights)


def test_embeddings_are_the_dense_vectors(served: Served, bge: BgeM3) -> None:
    [found] = served.http.post("/v1/embeddings", json={"input": QUERY}).json()["data"]

    np.testing.assert_allclose(found["embedding"], bge.outputs(QUERY)["embed"], atol=1e-5)


@pytest.mark.parametrize("task", ["embed", "token_embed", "token_classify"])
def test_texts_are_scored_by_any_of_the_outputs(task: str, served: Served, bge: BgeM3) -> None:
    wanted = [bge.score(task, QUERY, document) for document in DOCUMENTS]

    scored = served.http.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS, "task": task}).json()["data"]
    ranked = served.http.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS, "task": task}).json()["results"]

    assert [one["score"] for one in scored] == pytest.approx(wanted, abs=1e-4)
    assert [one["relevance_score"] for one in ranked] == pytest.approx(sorted(wanted, reverse=True), abs=1e-4)


def test_a_text_without_tokens_of_its_own_has_no_weights(served: Served) -> None:
    [found] = served.http.post("/pooling", json={"input": [[BOS, EOS]], "task": "token_classify"}).json()["data"]

    assert found["data"] == []


def test_a_task_that_the_model_does_not_have_is_refused_by_name(served: Served) -> None:
    refused = served.http.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS, "task": "classify"})

    assert refused.status_code == 400
    assert "embed and token_embed and token_classify" in refused.json()["error"]["message"]


def test_llm_pools_and_scores_as_the_server_does_by_the_files_alone(bge: BgeM3) -> None:
    llm = LLM(str(bge.folder))

    [weights] = llm.encode(QUERY, pooling_task="token_classify")
    [vectors] = llm.encode(QUERY, pooling_task="token_embed")
    scores = llm.score(QUERY, DOCUMENTS, pooling_params=PoolingParams(task="token_classify"))

    np.testing.assert_allclose(weights.outputs.data, bge.outputs(QUERY)["token_classify"], atol=1e-5)
    np.testing.assert_allclose(vectors.outputs.data, bge.outputs(QUERY)["token_embed"], atol=1e-5)
    wanted = [bge.score("token_classify", QUERY, document) for document in DOCUMENTS]
    assert [one.outputs.score for one in scores] == pytest.approx(wanted, abs=1e-4)
