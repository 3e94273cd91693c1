"""Classifiers and cross-encoders through a real server and through LLM, tiny ones, beside transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.pooling_models import (
    write_byte_level_tokenizer,
    write_deberta_tokenizer,
    write_model,
    write_tokenizer,
)
from tests.e2e.served import Served, serve
from tests.model.gguf_encoders import write_encoder
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from forearm import LLM
from forearm.errors import InvalidRequest
from forearm.text.tokenizer.gguf_vocabulary import gguf_vocabulary
from forearm.text.tokenizer.text_pairs import _AFTER, _BEFORE, DEFAULT_INSTRUCTION

QUERY, DOCUMENTS = "what is a cat", ["a cat is an animal", "trains go fast", "cat", "no"]


def logits(model: PreTrainedModel, folder: Path, *texts: str, **how: Any) -> np.ndarray:
    """transformers' own, of a text or a pair."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    has_types = model.config.model_type == "bert"
    inputs = tokenizer(*texts, return_tensors="pt", return_token_type_ids=has_types, **how)
    with torch.no_grad():
        found: np.ndarray = model(**inputs).logits[0].numpy()
    return found


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


class Reranker:
    """A server with a cross-encoder, and transformers' reading of it."""

    def __init__(self, served: Served, model: PreTrainedModel, folder: Path) -> None:
        self.served, self.model, self.folder = served, model, folder

    def score(self, one: str, two: str, **how: Any) -> float:
        return sigmoid(float(logits(self.model, self.folder, one, two, **how)[0]))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    folder = tmp_path_factory.mktemp("reranker")
    model = write_model(folder, "BertForSequenceClassification", "BertConfig", num_labels=1)
    with serve(tmp_path_factory.mktemp("log"), str(folder)) as served:
        yield Reranker(served, model, folder)


def test_a_cross_encoder_reads_pairs_as_transformers_does(reranker: Reranker) -> None:
    wanted = [reranker.score(QUERY, document) for document in DOCUMENTS]

    body = {"text_1": QUERY, "text_2": DOCUMENTS}
    scored = reranker.served.http.post("/score", json=body).json()
    ranked = reranker.served.http.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()

    assert [item["score"] for item in scored["data"]] == pytest.approx(wanted, abs=1e-5)
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i])
    assert [result["index"] for result in ranked["results"]] == order
    assert len(set(np.round(wanted, 4))) == len(wanted), "a seed for which the order says nothing"


def test_raw_scores_and_cut_pairs(reranker: Reranker) -> None:
    long = "abcdefgh ijkl " * 5
    cut = {"truncation": "longest_first", "max_length": 20}

    raw = reranker.served.http.post("/score", json={"text_1": QUERY, "text_2": "cat", "use_activation": False}).json()
    short = reranker.served.http.post(
        "/score", json={"text_1": QUERY, "text_2": [long], "truncate_prompt_tokens": 20}
    ).json()
    refused = reranker.served.http.post("/score", json={"text_1": QUERY, "text_2": [long]})

    plain = float(logits(reranker.model, reranker.folder, QUERY, "cat")[0])
    assert raw["data"][0]["score"] == pytest.approx(plain, abs=1e-5)
    assert short["data"][0]["score"] == pytest.approx(reranker.score(QUERY, long, **cut), abs=1e-5)
    assert short["usage"]["prompt_tokens"] == 20
    assert refused.status_code == 400
    assert "64 tokens" in refused.json()["error"]["message"]


def test_texts_are_cut_one_by_one_where_that_is_asked(reranker: Reranker) -> None:
    body = {"query": "c a t s", "documents": ["d o g s"], "max_tokens_per_query": 2, "max_tokens_per_doc": 1}

    reply = reranker.served.http.post("/rerank", json=body).json()

    assert reply["results"][0]["relevance_score"] == pytest.approx(reranker.score("c a", "d"), abs=1e-5)


def test_a_long_query_beside_many_texts_is_refused_before_it_is_multiplied(tmp_path: Path) -> None:
    """20 kB of a body would become two million tokens: the query comes before each document."""
    model = tmp_path / "model"
    write_model(model, "BertForSequenceClassification", "BertConfig", num_labels=1, max_position_embeddings=1024)
    with serve(tmp_path, str(model)) as served:
        (worker,) = served.workers()
        before = worker.memory_info().rss
        body = {"query": "a " * 1000, "documents": ["b"] * 2000}
        reply = served.http.post("/rerank", json=body)

        assert reply.status_code == 400
        assert "more than 1048576 tokens" in reply.json()["error"]["message"]
        assert worker.memory_info().rss - before < 100 << 20
        assert served.http.post("/rerank", json=body | {"documents": ["b"] * 3}).status_code == 200


def test_a_cross_encoder_makes_no_vectors(reranker: Reranker) -> None:
    reply = reranker.served.http.post("/v1/embeddings", json={"input": "a"})

    assert reply.status_code == 400
    assert "does not support Embeddings API" in reply.json()["error"]["message"]


def test_a_classifier_names_the_likeliest_label(tmp_path: Path) -> None:
    labels = {0: "calm", 1: "angry", 2: "glad"}
    named = {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
    folder = tmp_path / "model"
    model = write_model(folder, "BertForSequenceClassification", "BertConfig", **named)
    wanted = [torch.tensor(logits(model, folder, text)).softmax(-1).tolist() for text in ("go away", "hm")]

    with serve(tmp_path, str(folder)) as served:
        reply = served.http.post("/classify", json={"input": ["go away", "hm"]}).json()
        scored = served.http.post("/score", json={"text_1": "a", "text_2": "b"})

    for item, probs in zip(reply["data"], wanted, strict=True):
        assert item["probs"] == pytest.approx(probs, abs=1e-5)
        assert item["label"] == labels[int(np.argmax(probs))]
        assert item["num_classes"] == 3
    assert scored.status_code == 400
    assert "3 labels" in scored.json()["error"]["message"]


def test_a_deberta_reads_pairs_by_a_sentencepiece_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shape = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 16}
    sides = {"pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0}
    model = write_model(folder, "DebertaV2ForSequenceClassification", "DebertaV2Config", num_labels=1, **shape, **sides)
    write_deberta_tokenizer(folder)
    wanted = [sigmoid(float(logits(model, folder, QUERY, document)[0])) for document in DOCUMENTS]
    pieces = PreTrainedTokenizerFast.from_pretrained(folder)(QUERY, "cats")["input_ids"]

    with serve(tmp_path, str(folder)) as served:
        scored = served.http.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
        one = served.http.post("/score", json={"text_1": QUERY, "text_2": "cats"}).json()

    assert [item["score"] for item in scored["data"]] == pytest.approx(wanted, abs=1e-5)
    assert one["usage"]["prompt_tokens"] == len(pieces) == 9, "▁what ▁is ▁a ▁cat, and ▁cat s behind it"


def test_llm_classifies_and_scores_as_transformers_does(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    sizes = {"num_labels": 1, "type_vocab_size": 1}
    model = write_model(folder, "XLMRobertaForSequenceClassification", "XLMRobertaConfig", **sizes)
    llm = LLM(folder)

    scores = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
    probs = [one.outputs.probs for one in llm.classify(DOCUMENTS, use_tqdm=False)]

    pairs = [sigmoid(float(logits(model, folder, QUERY, document)[0])) for document in DOCUMENTS]
    single = [sigmoid(float(logits(model, folder, document)[0])) for document in DOCUMENTS]
    assert scores == pytest.approx(pairs, abs=1e-5)
    assert [p[0] for p in probs] == pytest.approx(single, abs=1e-5)
    with pytest.raises(InvalidRequest, match="1:1, 1:N or N:N"):
        llm.score(["a", "b"], ["a", "b", "c"], use_tqdm=False)


_QWEN = {"head_dim": 16, "num_key_value_heads": 2, "max_position_embeddings": 1024}


def test_qwen3_reranker_weighs_yes_against_no_after_its_own_prompt(tmp_path: Path) -> None:
    """The head of the generating model, two of its rows: the score is the share of yes."""
    folder = tmp_path / "model"
    model = write_model(folder, "Qwen3ForCausalLM", "Qwen3Config", **_QWEN, tie_word_embeddings=False)
    write_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    no, yes = tokenizer.convert_tokens_to_ids(["no", "yes"])
    llm = LLM(folder, convert="classify")

    scores = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]

    wanted = []
    for document in DOCUMENTS:
        text = f"{_BEFORE}<Instruct>: {DEFAULT_INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        ids = [i for part in (text, _AFTER) for i in tokenizer(part, add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            last = model(torch.tensor([ids])).logits[0, -1]
        wanted.append(float(torch.stack([last[no], last[yes]]).softmax(-1)[1]))
    assert scores == pytest.approx(wanted, abs=1e-5)


@pytest.fixture(scope="module", params=["tied", "head"])
def qwen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Qwen3-Reranker, and the files that people have of it: with two labels, generating, and of blocks."""
    folder, beside = tmp_path_factory.mktemp("qwen3-reranker"), tmp_path_factory.mktemp("labels")
    sizes = {**_QWEN, "hidden_size": 64, "vocab_size": 320, "tie_word_embeddings": request.param == "tied"}
    write_model(folder, "Qwen3ForCausalLM", "Qwen3Config", **sizes)
    write_byte_level_tokenizer(folder)
    for name in ("config.json", "model.safetensors"):
        (beside / name).symlink_to(folder / name)
    vocabulary, causal = gguf_vocabulary(folder, 320, []), {"attention.causal": True}
    return {
        "folder": folder,
        "plain": write_encoder(folder, "qwen3", None, vocabulary, **causal),
        "blocks": write_encoder(folder, "qwen3", None, vocabulary, "Q8_0", **causal),
        "labels": write_encoder(beside, "qwen3", "rank", vocabulary, **causal),
    }


def test_files_of_qwen3_reranker_score_as_its_folder(qwen: dict[str, Path]) -> None:
    folder, plain, blocks = (_scores(qwen[name], convert="classify") for name in ("folder", "plain", "blocks"))
    labels = _scores(qwen["labels"])  # whose kind of pooling says what it is

    assert plain == folder
    assert labels == folder
    assert blocks == pytest.approx(folder, abs=0.06)  # weights and activations of 8 bits
    assert blocks != folder
    assert max(folder) - min(folder) > 0.1


def _scores(model: Path, **settings: Any) -> list[float]:
    return [one.outputs.score for one in LLM(model, **settings).score(QUERY, DOCUMENTS, use_tqdm=False)]


def test_a_file_of_qwen3_reranker_answers_score_and_rerank(qwen: dict[str, Path], tmp_path: Path) -> None:
    wanted = _scores(qwen["folder"], convert="classify")
    body = {"query": QUERY, "documents": DOCUMENTS}

    with serve(tmp_path, str(qwen["labels"])) as served:
        scored = served.http.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
        ranked = served.http.post("/rerank", json=body).json()
        told = served.http.post("/rerank", json={**body, "instruction": "judge by the length"}).json()
        single = served.http.post("/classify", json={"input": DOCUMENTS}).json()

    assert [one["score"] for one in scored["data"]] == pytest.approx(wanted, abs=1e-6)
    by_index = {one["index"]: one["relevance_score"] for one in ranked["results"]}
    assert [by_index[i] for i in range(len(DOCUMENTS))] == pytest.approx(wanted, abs=1e-6)
    assert [one["relevance_score"] for one in ranked["results"]] == sorted(by_index.values(), reverse=True)
    assert {one["index"]: one["relevance_score"] for one in told["results"]} != by_index
    assert [one["num_classes"] for one in single["data"]] == [1] * len(DOCUMENTS)
