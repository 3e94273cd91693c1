"""The offline engine on encoders: a CamemBERT embeds and an ELECTRA scores pairs as transformers does, from text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.model.encoder_cases import ENCODER_CASES, EncoderCase, make
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from forearm import LLM

WORDS = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 331))]


def tokenizer(folder: Path, *, twice: bool) -> PreTrainedTokenizerFast:
    """Write a tokenizer of words; twice: the mark between the texts of a pair is twice there, as RoBERTa's."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>" if twice else "<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        cls_token="<s>", sep_token="</s>",
    )  # fmt: skip
    found.save_pretrained(folder)
    return found


def test_a_camembert_embeds_texts_by_the_mean_of_their_rows(tmp_path: Path) -> None:
    model = make(EncoderCase("camembert", "CamembertModel", "CamembertConfig", {"type_vocab_size": 1}), tmp_path)
    words = tokenizer(tmp_path, twice=True)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    listed = [
        {"path": path, "type": f"x.models.{kind}"} for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"))
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    texts = ["w5 w6 w300", "w9 w17 unknown w44 w100"]

    found = LLM(str(tmp_path), dtype="float32", threads=1).embed(texts)

    for text, output in zip(texts, found, strict=True):
        with torch.no_grad():
            row = model(torch.tensor([words(text)["input_ids"]])).last_hidden_state[0].mean(0).numpy()
        assert np.abs(np.asarray(output.outputs.embedding) - row).max() < 1e-5 * np.abs(row).max()


def test_an_electra_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    settings = {"num_labels": 1, "embedding_size": 40}
    case = EncoderCase("electra", "ElectraForSequenceClassification", "ElectraConfig", settings)
    model = make(case, tmp_path)
    words = tokenizer(tmp_path, twice=False)
    query, documents = "w5 w6 w300", ["w7 w8", "w5 w6 w301 w302"]

    found = LLM(str(tmp_path), dtype="float32", threads=1).score(query, documents)

    for document, output in zip(documents, found, strict=True):
        pair = words(query, document, return_token_type_ids=True, return_tensors="pt")
        with torch.no_grad():
            logit = model(input_ids=pair["input_ids"], token_type_ids=pair["token_type_ids"]).logits.item()
        assert int(pair["token_type_ids"].sum()) == len(document.split()) + 1
        assert abs(output.outputs.score - 1 / (1 + np.exp(-logit))) < 1e-5


@pytest.mark.parametrize("name", ["megatronbertmodel", "robertaprelayernormmodel", "esmmodel", "esm-1b"])
def test_4_bits_are_calibrated_where_norms_stand_before_halves_of_layers(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = next(one for one in ENCODER_CASES if one.name == name)
    make(case, tmp_path)
    tokenizer(tmp_path, twice=True)
    prompts: Any = [{"prompt_token_ids": ids} for ids, _ in case.prompts()]

    with caplog.at_level("INFO"):
        exact, rounded = (
            np.array([o.outputs.embedding for o in LLM(str(tmp_path), threads=2, quantization=how).embed(prompts)])
            for how in ("none", "int4")
        )

    assert "weights: calibrated on" in caplog.text
    assert 0.95 < (exact * rounded).sum(axis=1).min() < 1 - 1e-6
