"""A tiny classifier of tokens through a real server and through LLM, beside transformers."""

from __future__ import annotations

import base64
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
from forearm.errors import InvalidRequest

TEXTS = ["anna met bob", "a", "in a far city"]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


@dataclass(frozen=True)
class Tagger:
    """A checkpoint, and transformers' reading of it."""

    folder: Path
    model: PreTrainedModel

    def ids(self, text: str) -> list[int]:
        found: list[int] = PreTrainedTokenizerFast.from_pretrained(self.folder)(text)["input_ids"]
        return found

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Return float32 [tokens, labels]."""
        with torch.no_grad():
            found: torch.Tensor = self.model(input_ids=torch.tensor([ids])).logits[0]
        return found

    def probabilities(self, text: str) -> np.ndarray:
        found: np.ndarray = self.logits(self.ids(text)).softmax(dim=-1).numpy()
        return found


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Tagger:
    folder = tmp_path_factory.mktemp("tagger")
    named = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
    return Tagger(folder, write_model(folder, "BertForTokenClassification", "BertConfig", **named))


@pytest.fixture(scope="module")
def served(tagger: Tagger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("log"), str(tagger.folder)) as served:
        yield served


@pytest.mark.parametrize("task", [{}, {"task": "token_classify"}, {"task": "encode"}])
def test_pooling_returns_each_tokens_probabilities(task: dict[str, str], served: Served, tagger: Tagger) -> None:
    found = served.http.post("/pooling", json={"input": TEXTS, **task}).json()["data"]

    for one, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(one["data"], tagger.probabilities(text), atol=1e-5)
    labels = [LABELS[index] for index in np.argmax(found[0]["data"], axis=1).tolist()]
    assert len(set(labels)) > 1, "a seed for which labels say nothing"


def test_a_text_of_one_token_has_one_row(served: Served, tagger: Tagger) -> None:
    [found] = served.http.post("/pooling", json={"input": [[7]], "use_activation": False}).json()["data"]

    np.testing.assert_allclose(found["data"], tagger.logits([7]).numpy(), atol=1e-4)
    assert np.shape(found["data"]) == (1, len(LABELS))


def test_base64_has_the_rows_one_after_another(served: Served, tagger: Tagger) -> None:
    body = {"input": TEXTS[0], "encoding_format": "base64", "endianness": "little"}
    [found] = served.http.post("/pooling", json=body).json()["data"]

    rows = np.frombuffer(base64.b64decode(found["data"]), "<f4").reshape(-1, len(LABELS))
    np.testing.assert_allclose(rows, tagger.probabilities(TEXTS[0]), atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_other_endpoints_name_the_one_that_serves(path: str, body: dict[str, Any], served: Served) -> None:
    reply = served.http.post(path, json=body)

    assert reply.status_code == 400
    assert reply.json()["error"]["message"].endswith("it classifies each token; use /pooling")


@pytest.mark.parametrize("task", ["token_embed", "classify", "embed", "score"])
def test_another_task_is_refused_with_those_there_are(task: str, served: Served) -> None:
    reply = served.http.post("/pooling", json={"input": "a", "task": task})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "task")
    assert "supports token_classify, encode" in reply.json()["error"]["message"]


def test_the_models_card_says_that_it_classifies_tokens(served: Served) -> None:
    (card,) = served.http.get("/v1/models").json()["data"]

    assert card["tasks"] == ["token_classify"]


def test_llm_encodes_as_the_server_does(tagger: Tagger) -> None:
    llm = LLM(str(tagger.folder), runner="pooling", pooler_config={"task": "token_classify"})

    found = llm.encode(TEXTS, pooling_task="token_classify")
    [raw] = llm.encode(TEXTS[0], pooling_params=PoolingParams(use_activation=False))

    for one, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(one.outputs.data, tagger.probabilities(text), atol=1e-5)
        assert one.prompt_token_ids == tagger.ids(text)
    np.testing.assert_allclose(raw.outputs.data, tagger.logits(tagger.ids(TEXTS[0])).numpy(), atol=1e-4)
    for call in (llm.embed, llm.classify):
        with pytest.raises(InvalidRequest, match="this model supports token_classify"):
            call("a")
    with pytest.raises(InvalidRequest, match="classifies each token; use encode"):
        llm.score("a", "b")
