"""Models that transformers builds and that pool give its own rows and scores: in company, quantized, by LLM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.model.run_pooling import Pooler
from tests.model.stored_codes import FORMATS
from tests.model.test_quantized import quantize
from tests.model.transformers_types import VOCABULARY, tiny_config
from tokenizers import Tokenizer, models
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from forearm import LLM
from forearm.config.engine_config import EngineConfig
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.split_engines import memory_of
from forearm.engine.start import Cores, load, terms_of
from forearm.errors import ConfigError
from forearm.model.families.encoders.encoders import ENCODERS
from forearm.model.families.families import FAMILIES
from forearm.model.pooling.encoder_types import OTHER_ENCODERS
from forearm.model.pooling.pooling import asked_of, pooling_plan

END = 2
NEAR = 2.0**-16  # of the largest value: float32 sums in another order
Prompt = tuple[list[int], int]


def text_of(tokens: int, seed: int = 1) -> list[int]:
    return [*np.random.default_rng(seed).integers(3, VOCABULARY - 4, tokens - 1).tolist(), END]


TEXTS: list[Prompt] = [(text_of(count), 0) for count in (1, 7, 21, 40)]


def save(model_type: str, folder: Path, make: Any = AutoModel, **settings: Any) -> PreTrainedModel:
    """Write a tiny random model and return it."""
    config = tiny_config(model_type)
    config.update({"is_decoder": False, **settings} if hasattr(config, "is_decoder") else settings)
    torch.manual_seed(7)
    model: PreTrainedModel = make.from_config(config).float().eval()
    for values in model.parameters():
        if values.dim() >= 2:
            torch.nn.init.normal_(values, std=0.1)
    model.save_pretrained(folder)
    return model


def make_pooler(folder: Path, **others: Any) -> Pooler:
    """Return the model of a folder in memory, as the engine's start makes it."""
    config = EngineConfig(model=str(folder), dtype="float32", max_num_seqs=4, threads=2, **others)
    plan = pooling_plan(folder, asked_of(config))
    planned = fit(config, folder, memory_of(config), 2)
    executor = load(config, planned.checkpoint, planned.limits, Cores(2, (), (2,)), progress=False)
    executor.allocate(planned.blocks, 4)
    terms = terms_of(config, planned.checkpoint, plan, None, shares=False)
    assert terms.pooling is not None
    return Pooler(executor, terms.pooling, terms.vocab_size)


def rows_of(model: PreTrainedModel, prompt: Prompt) -> np.ndarray:
    """Return transformers' rows of the last layer; of a classifier its scores, as one row, or those of each token."""
    ids, second = prompt
    given = {"input_ids": torch.tensor([ids])}
    if second:
        given["token_type_ids"] = (torch.arange(len(ids)) >= second).long()[None]
    with torch.no_grad():
        out = model(**given)
    found = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return (found[0] if found.dim() == 3 else found).numpy()


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= NEAR * np.abs(wanted).max()


# Rotary angles; convolutions beside attention; positions behind the padding token's, and adapters; layers narrower
# than their residual; Fourier transforms; a decoder; and classifiers, one of an encoder and a decoder.
@pytest.mark.parametrize(
    ("model_type", "make", "row"),
    [
        ("roformer", AutoModel, 0),
        ("convbert", AutoModelForMaskedLM, 0),
        ("xmod", AutoModelForMaskedLM, 0),
        ("mobilebert", AutoModel, 0),
        ("fnet", AutoModelForMaskedLM, 0),
        ("diffllama", AutoModel, -1),
        ("roformer", AutoModelForSequenceClassification, 0),
        ("mobilebert", AutoModelForSequenceClassification, 0),
        ("bart", AutoModelForSequenceClassification, 0),
    ],
)
def test_texts_have_the_rows_and_scores_of_transformers_alone_and_in_company(
    model_type: str, make: Any, row: int, tmp_path: Path
) -> None:
    saved = save(model_type, tmp_path, make)
    model = saved.base_model if make is AutoModelForMaskedLM else saved

    pooler = make_pooler(tmp_path)
    kind = pooler.pooling.plan.kind
    together = pooler.compute(TEXTS, kind, False)

    for prompt, found in zip(TEXTS, together, strict=True):
        assert_near(found, rows_of(model, prompt)[row])
        assert np.array_equal(pooler.compute([prompt], kind, False)[0], found)


@pytest.mark.parametrize(("model_type", "labels"), [("roformer", 5), ("convbert", 1), ("diffllama", 3)])
def test_each_token_has_the_scores_of_transformers(model_type: str, labels: int, tmp_path: Path) -> None:
    model = save(model_type, tmp_path, AutoModelForTokenClassification, num_labels=labels)
    texts = [*TEXTS, (text_of(30), 11 if model_type != "diffllama" else 0)]

    pooler = make_pooler(tmp_path)
    together = pooler.compute(texts, "token_classify", False)

    assert pooler.pooling.columns == labels
    for prompt, found in zip(texts, together, strict=True):
        assert_near(found, rows_of(model, prompt))
        assert np.array_equal(pooler.compute([prompt], "token_classify", False)[0], found)


def test_the_second_text_of_a_pair_has_the_other_token_type(tmp_path: Path) -> None:
    model = save("roformer", tmp_path, AutoModelForSequenceClassification)
    pairs = [(text_of(30), 11), (text_of(30), 0)]

    found = make_pooler(tmp_path).compute(pairs, "classify", False)

    assert not np.allclose(*found, atol=1e-4)
    for prompt, scores in zip(pairs, found, strict=True):
        assert_near(scores, rows_of(model, prompt)[0])


def test_modules_of_sentence_transformers_follow_the_last_layer(tmp_path: Path) -> None:
    model = save("roformer", tmp_path)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    named = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(named))
    for path in ("1_Pooling", "2_Dense"):
        (tmp_path / path).mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps({"out_features": 24, "bias": True}))
    weight, bias = torch.randn(24, 64) / 8, torch.randn(24)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense" / "model.safetensors")

    pooler = make_pooler(tmp_path)

    assert pooler.pooling.columns == 24
    for prompt, found in zip(TEXTS, pooler.compute(TEXTS, "embed", True), strict=True):
        wanted = np.tanh(weight.numpy() @ rows_of(model, prompt).mean(axis=0) + bias.numpy())
        assert_near(found, wanted / np.linalg.norm(wanted))
    rows = pooler.compute(TEXTS, "token_embed", False)
    assert [one.shape for one in rows] == [(len(ids), 24) for ids, _ in TEXTS]


def test_quantized_encoders_have_the_vectors_of_the_same_numbers_as_floats(tmp_path: Path) -> None:
    save("roformer", tmp_path / "plain")
    (format,) = (one for one in FORMATS if one.name == "ct-w4a16-packed-g32-asym")
    quantize(tmp_path / "plain", replace(format, skip=("embeddings",)), tmp_path)

    coded, floats = (make_pooler(tmp_path / kind).compute(TEXTS, "embed", False) for kind in ("stored", "floats"))

    for found, wanted in zip(coded, floats, strict=True):
        assert np.abs(found - wanted).max() <= 2.0**-12 * np.abs(wanted).max()


def test_encoders_are_quantized_while_loading(tmp_path: Path) -> None:
    save("roformer", tmp_path)

    rounded, whole = (
        np.stack(make_pooler(tmp_path, quantization=how).compute(TEXTS, "embed", False)) for how in ("int8", "none")
    )

    assert 0 < np.abs(rounded - whole).max() < 0.05 * np.abs(whole).max()


def test_a_text_that_the_models_code_refuses_fails_alone(tmp_path: Path) -> None:
    save("bart", tmp_path, AutoModelForSequenceClassification)
    pooler = make_pooler(tmp_path)

    with pytest.raises(AssertionError):
        pooler.compute([([5, 6, 7], 0)], "classify", False)  # without an end

    assert np.isfinite(pooler.compute(TEXTS, "classify", False)).all()


def test_the_log_says_that_transformers_computes_text_by_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save("roformer", tmp_path)

    with caplog.at_level("INFO"):
        make_pooler(tmp_path)

    assert "transformers computes the model (forearm has no family roformer), text by text" in caplog.text


@pytest.mark.parametrize(
    ("model_type", "make", "others", "said"),
    [
        ("xlnet", AutoModel, {}, "model_type xlnet can't be served: its tokenizer marks"),
        ("bart", AutoModel, {}, "model_type bart can't be served: is_encoder_decoder is true"),
        ("roformer", AutoModel, {"model_impl": "forearm"}, "roformer"),
        ("bert", AutoModel, {"model_impl": "transformers"}, "leave the flag out"),
    ],
)
def test_what_cannot_pool_is_refused_with_the_reason(
    model_type: str, make: Any, others: dict[str, Any], said: str, tmp_path: Path
) -> None:
    save(model_type, tmp_path, make)

    with pytest.raises(ConfigError, match=re.escape(said)):
        make_pooler(tmp_path, **others)


def test_the_other_encoders_are_types_of_transformers_without_a_native_family() -> None:
    assert set(CONFIG_MAPPING) >= OTHER_ENCODERS
    assert not OTHER_ENCODERS & (FAMILIES | ENCODERS).keys()


def test_an_llm_embeds_and_classifies_by_a_model_without_a_native_family(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    asked: list[tuple[str, Any, Callable[[LLM, Any], Any]]] = [
        ("embed", AutoModel, lambda llm, prompt: llm.embed([prompt])[0].outputs.embedding),
        ("classify", AutoModelForSequenceClassification, lambda llm, prompt: llm.classify([prompt])[0].outputs.probs),
    ]
    for name, make, ask in asked:
        model = save("roformer", tmp_path / name, make)
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(tmp_path / name)
        llm = LLM(str(tmp_path / name), dtype="float32", threads=1)

        found = np.asarray(ask(llm, {"prompt_token_ids": TEXTS[2][0]}))

        row = rows_of(model, TEXTS[2])[0]
        wanted = row / np.linalg.norm(row) if name == "embed" else np.exp(row) / np.exp(row).sum()
        assert_near(found, wanted)
