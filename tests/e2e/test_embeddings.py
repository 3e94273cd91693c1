"""Embeddings of all-MiniLM-L6-v2 through a real server: OpenAI's client, vLLM's fields, transformers beside it."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from tests.e2e.pooling_models import minilm
from tests.e2e.served import Served, series, serve, wait_until
from tests.model.gguf_encoders import word_pieces, write_encoder
from tests.model.kept_weights import wait_until_kept
from tests.model.reference import Rounding
from tests.model.reference_pooled import load_pooled, pooled, pooled_tolerance
from transformers import AutoModel, AutoTokenizer

from forearm import LLM

TEXTS = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The stock market fell sharply on Monday.",
    "",
    "Der Zug nach Bern fährt um neun Uhr ab. 列车九点开往伯尔尼。 🚆",
    "word " * 120,
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("minilm")
    with serve(folder, str(minilm()), "--served-model-name", "minilm", "--api-server-count", "2") as running:
        yield running


def embed(served: Served, given: Any, **fields: Any) -> np.ndarray:
    """Vectors by OpenAI's client as it asks by itself: base64."""
    found = served.openai.embeddings.create(model="minilm", input=given, **fields)
    assert [one.index for one in found.data] == list(range(len(found.data)))
    return np.array([one.embedding for one in found.data], np.float32)


@cache
def theirs(text: str) -> np.ndarray:
    """Return transformers' vector: the mean of the last layer's rows, at unit length."""
    folder = minilm()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows = model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    mean = rows.mean(dim=0)
    found: np.ndarray = (mean / mean.norm()).numpy()
    return found


def test_openais_client_gets_transformers_vectors(served: Served) -> None:
    config, weights = load_pooled(minilm(), None)
    tokens = AutoTokenizer.from_pretrained(minilm())(TEXTS[0])["input_ids"]
    length = float(np.linalg.norm(pooled(config, weights, tokens, 0, "mean")))
    allowed = 2 * pooled_tolerance(config, weights, (tokens, 0), "mean", Rounding(sums=2.0**-24)) / length

    worst = float(np.abs(embed(served, TEXTS) - np.stack([theirs(text) for text in TEXTS])).max())

    assert worst <= allowed < 1e-4


def test_the_models_card_says_that_it_embeds(served: Served) -> None:
    (card,) = served.http.get("/v1/models").json()["data"]

    assert "embed" in card["tasks"]
    assert "chat" not in card["tasks"]
    assert (card["details"]["family"], card["details"]["parameters"] // 1_000_000) == ("bert", 22)


def test_base64_float_and_token_ids_give_the_same_bits(served: Served) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]

    forms = [
        embed(served, TEXTS),
        embed(served, TEXTS, encoding_format="float"),
        embed(served, ids),
        np.concatenate([embed(served, one) for one in ids]),
    ]

    assert len({form.tobytes() for form in forms}) == 1


def test_raw_base64_is_little_endian_float32(served: Served) -> None:
    body = {"input": TEXTS[0], "encoding_format": "base64"}
    reply = served.http.post("/v1/embeddings", json=body).json()

    raw = base64.b64decode(reply["data"][0]["embedding"])

    assert reply["object"] == "list"
    assert reply["data"][0]["object"] == "embedding"
    assert reply["model"] == "minilm"
    assert reply["id"].startswith("embd-")
    assert np.array(struct.unpack("<384f", raw), np.float32).tobytes() == embed(served, TEXTS[0])[0].tobytes()


def test_usage_counts_every_texts_tokens(served: Served) -> None:
    counts = [len(AutoTokenizer.from_pretrained(minilm())(text)["input_ids"]) for text in TEXTS]

    usage = served.openai.embeddings.create(model="minilm", input=TEXTS).usage

    assert usage.prompt_tokens == usage.total_tokens == sum(counts)


def test_what_means_the_same_lies_close(served: Served) -> None:
    cat, kitten, market = embed(served, TEXTS[:3])

    assert cat @ kitten > 0.6 > 0.3 > cat @ market


def test_the_same_text_has_the_same_vector_bit_for_bit_whatever_is_computed_beside_it(served: Served) -> None:
    alone = [embed(served, text)[0].tobytes() for text in TEXTS]

    def ask(turn: int) -> list[bytes]:
        order = np.random.default_rng(turn).permutation(len(TEXTS))
        vectors = embed(served, [TEXTS[i] for i in order])
        return [vectors[list(order).index(i)].tobytes() for i in range(len(TEXTS))]

    with ThreadPoolExecutor(8) as clients:
        together = list(clients.map(ask, range(24)))

    assert all(found == alone for found in together)


def test_2048_texts_are_taken_and_one_more_is_not(served: Served) -> None:
    vectors = embed(served, ["a b c"] * 2048)

    assert len(vectors) == 2048
    assert len({vector.tobytes() for vector in vectors}) == 1
    with pytest.raises(openai.BadRequestError, match="at most 2048") as caught:
        embed(served, ["a"] * 2049)
    assert caught.value.param == "input"


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_is_cut_as_transformers_cuts_it(served: Served, side: str) -> None:
    text = " ".join(f"{number} apples" for number in range(400))
    cut = AutoTokenizer.from_pretrained(minilm(), truncation_side=side)
    wanted = cut(text, truncation=True, max_length=20)["input_ids"]

    ours = embed(served, text, extra_body={"truncate_prompt_tokens": 20, "truncation_side": side})
    whole = served.http.post("/v1/embeddings", json={"input": text, "truncate_prompt_tokens": -1}).json()

    assert ours.tobytes() == embed(served, [wanted]).tobytes()
    assert whole["usage"]["prompt_tokens"] == 256  # what sentence_bert_config.json gives the model


def test_a_long_text_is_cut_to_the_same_as_its_beginning(served: Served) -> None:
    text = "some words of no weight " * 40_000  # a megabyte: only its beginning is read

    assert embed(served, text, extra_body={"truncate_prompt_tokens": 30}).tobytes() == (
        embed(served, text[:2000], extra_body={"truncate_prompt_tokens": 30}).tobytes()
    )


def test_vectors_come_as_bytes_in_three_dtypes_and_both_orders(served: Served) -> None:
    vectors = embed(served, TEXTS[:2])
    body = {"input": TEXTS[:2], "encoding_format": "bytes"}

    for dtype, order, kind in (("float32", "big", ">f4"), ("float16", "little", "<f2"), ("float32", "native", "<f4")):
        reply = served.http.post("/v1/embeddings", json={**body, "embed_dtype": dtype, "endianness": order})
        metadata = json.loads(reply.headers["metadata"])
        for item, vector in zip(metadata["data"], vectors, strict=True):
            found = np.frombuffer(reply.content[item["start"] : item["end"]], kind).astype(np.float32)
            assert item["shape"] == [384]
            np.testing.assert_allclose(found, vector, atol=2.0**-11 if dtype == "float16" else 0)
    bare = served.http.post("/v1/embeddings", json={**body, "encoding_format": "bytes_only", "embed_dtype": "bfloat16"})
    halves = np.frombuffer(bare.content, "<u2").astype(np.uint32) << 16
    np.testing.assert_allclose(halves.view(np.float32).reshape(2, 384), vectors, rtol=2.0**-8)
    assert "metadata" not in bare.headers


def test_pooling_gives_the_vector_or_one_for_each_token(served: Served) -> None:
    tokens = AutoTokenizer.from_pretrained(minilm())(TEXTS[0])["input_ids"]

    whole = served.http.post("/pooling", json={"input": TEXTS[0]}).json()
    each = served.http.post("/pooling", json={"input": TEXTS[0], "task": "token_embed", "use_activation": False}).json()

    assert whole["data"][0]["object"] == "pooling"
    assert np.float32(whole["data"][0]["data"]).tobytes() == embed(served, TEXTS[0])[0].tobytes()
    rows = np.float32(each["data"][0]["data"])
    assert rows.shape == (len(tokens), 384)
    mean = rows.mean(axis=0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), embed(served, TEXTS[0])[0], atol=1e-6)


def test_scores_of_vectors_are_cosines(served: Served) -> None:
    cat, kitten, market = embed(served, TEXTS[:3]).astype(np.float64)

    one = served.http.post("/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:3]}).json()
    each = served.http.post("/v1/score", json={"queries": TEXTS[:2], "documents": TEXTS[1:3]}).json()

    assert [item["score"] for item in one["data"]] == pytest.approx([cat @ kitten, cat @ market], abs=1e-6)
    assert [item["score"] for item in each["data"]] == pytest.approx([cat @ kitten, kitten @ market], abs=1e-6)
    assert [item["object"] for item in one["data"]] == ["score", "score"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_best_first(served: Served, path: str) -> None:
    documents = [TEXTS[2], {"text": TEXTS[1]}, "Felines like to lie on soft things."]
    body = {"model": "minilm", "query": TEXTS[0], "documents": documents, "top_n": 2}

    reply = served.http.post(path, json=body).json()
    bare = served.http.post(path, json={**body, "top_n": 0, "return_documents": False}).json()

    assert [result["index"] for result in reply["results"]] == [1, 2]
    assert reply["results"][0]["document"]["text"] == TEXTS[1]
    scores = [result["relevance_score"] for result in bare["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    assert "document" not in bare["results"][0]
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 0


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {}, "input"),
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": [[]]}, "input"),
    ("/v1/embeddings", {"input": [[99_999_999]]}, "input"),
    ("/v1/embeddings", {"input": [[-1]]}, "input"),
    ("/v1/embeddings", {"input": "a " * 600}, "input"),
    ("/v1/embeddings", {"input": "x" * 3_000_000}, "input"),
    ("/v1/embeddings", {"input": 5}, "input"),
    ("/v1/embeddings", {"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
    ("/v1/embeddings", {"input": "a", "dimensions": 64}, "dimensions"),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"input": "a", "embed_dtype": "fp8_e4m3"}, "embed_dtype"),
    ("/v1/embeddings", {"input": "a", "endianness": "middle"}, "endianness"),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ("/v1/embeddings", {"input": "a", "padding": "max_length"}, "padding"),
    ("/v1/embeddings", {"input": "a", "priority": 3}, "priority"),
    ("/v1/embeddings", {"input": "a", "mm_processor_kwargs": {"size": 1}}, "mm_processor_kwargs"),
    ("/pooling", {"input": "a", "task": "classify"}, "task"),
    ("/pooling", {"input": "a", "task": "token_classify"}, "task"),
    ("/classify", {"input": "a"}, "model"),
    ("/score", {"text_1": "a"}, "queries"),
    ("/score", {"text_1": "a", "text_2": "b", "queries": "a", "documents": "b"}, "queries"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    ("/score", {"text_1": "a", "text_2": []}, "text_2"),
    ("/score", {"text_1": "a", "text_2": "b", "instruction": "compare"}, "instruction"),
    ("/rerank", {"query": "a", "documents": []}, "documents"),
    ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
    ("/rerank", {"query": "a", "documents": [{"image": "b"}]}, "documents"),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_what_is_wrong_is_named_with_400(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    reply = served.http.post(path, json=body)

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "model": ""}),
    ],
)
def test_a_model_that_pools_generates_nothing(served: Served, path: str, body: dict[str, Any]) -> None:
    """A chat was told to send `input` instead of messages, a response that it has no chat template."""
    reply = served.http.post(path, json=body)

    told = "The model does not generate text: it makes vectors of texts; use /v1/embeddings"
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, told)


def test_an_unknown_model_is_not_found(served: Served) -> None:
    with pytest.raises(openai.NotFoundError):
        served.openai.embeddings.create(model="other", input="a")


def test_a_client_that_leaves_ends_its_texts(served: Served) -> None:
    body = {"input": ["word " * 250] * 2000}

    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{served.url}/v1/embeddings", json=body, timeout=httpx.Timeout(60, read=1.5))

    wait_until(lambda: served.running() == 0)
    assert embed(served, "a").shape == (1, 384)


def test_metrics_count_requests_and_tokens(served: Served) -> None:
    def counted() -> tuple[float, float]:
        values = series(served.http.get("/metrics").text)
        tokens = sum(v for name, v in values.items() if name.startswith("vllm:prompt_tokens_total"))
        ends = sum(v for n, v in values.items() if n.startswith("vllm:request_success_total") and '"stop"' in n)
        return tokens, ends

    tokens, ends = counted()
    embed(served, [[101, 7, 102], [101, 102]])

    assert counted() == (tokens + 5, ends + 1)


def test_the_demo_model_can_pool_too(tmp_path: Path) -> None:
    flags = ("--runner", "pooling", "--pooler-config", '{"pooling_type": "MEAN"}', "--max-model-len", "128")
    overrides = ("--hf-overrides", '{"matryoshka_dimensions": [16, 64]}')
    with serve(tmp_path, *flags, *overrides, "--served-model-name", "minilm") as running:
        whole, short = embed(running, "A glacier is"), embed(running, "A glacier is", dimensions=16)
        wrong = running.http.post("/v1/embeddings", json={"input": "a", "dimensions": 17})

    np.testing.assert_allclose(short[0], whole[0, :16] / np.linalg.norm(whole[0, :16]), atol=1e-6)
    assert wrong.status_code == 400
    assert "16, 64" in wrong.json()["error"]["message"]


def test_a_model_that_generates_embeds_nothing(tmp_path: Path) -> None:
    with serve(tmp_path) as running:
        replies = [
            running.http.post("/v1/embeddings", json={"input": "a"}),
            running.http.post("/pooling", json={"input": "a"}),
            running.http.post("/score", json={"text_1": "a", "text_2": "b"}),
            running.http.post("/rerank", json={"query": "a", "documents": ["b"]}),
            running.http.post("/classify", json={"input": "a"}),
        ]

    assert {reply.status_code for reply in replies} == {400}
    assert all("does not support" in reply.json()["error"]["message"] for reply in replies)


@pytest.mark.parametrize(
    ("settings", "least"),
    [({"dtype": "bfloat16"}, 0.9999), ({"quantization": "int8"}, 0.995), ({"quantization": "int4"}, 0.94)],
)
def test_rounded_weights_give_nearly_the_same_vectors(settings: dict[str, str], least: float) -> None:
    llm = LLM(minilm(), **settings)  # type: ignore[arg-type]

    vectors = [np.array(one.outputs.embedding) for one in llm.embed(TEXTS[:3], use_tqdm=False)]

    cosines = [float(vector @ theirs(text)) for vector, text in zip(vectors, TEXTS, strict=False)]
    assert min(cosines) > least
    assert vectors[0] @ vectors[1] > 0.6 > 0.3 > vectors[0] @ vectors[2]


def test_packed_weights_are_kept_for_the_next_start(tmp_path: Path) -> None:
    first = LLM(minilm(), weight_cache=str(tmp_path)).embed(TEXTS, use_tqdm=False)
    wait_until_kept()
    again = LLM(minilm(), weight_cache=str(tmp_path)).embed(TEXTS, use_tqdm=False)

    assert [one.outputs.embedding for one in first] == [one.outputs.embedding for one in again]
    assert list(tmp_path.iterdir())


def test_a_gguf_file_of_the_model_is_served(served: Served, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(minilm() / name)
    file = write_encoder(tmp_path, "bert", "mean", word_pieces(minilm() / "tokenizer.json"))

    with serve(tmp_path, str(file), "--served-model-name", "minilm") as other:
        chat = other.chat()
        scores = other.http.post("/score", json={"text_1": "a cat", "text_2": ["a kitten", "a car"]}).json()["data"]

        assert np.array_equal(embed(other, TEXTS), embed(served, TEXTS))
        assert scores[0]["score"] > scores[1]["score"]
        assert chat.status_code == 400
        assert "use /v1/embeddings" in chat.json()["error"]["message"]
