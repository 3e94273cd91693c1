"""NeoBERT, which transformers has no class of: a EuroBERT of the same numbers, in the files of NeoBERT's authors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.model.encoder_cases import EncoderCase, make
from tests.model.gguf_encoders import write_encoder
from tests.model.gguf_models import VOCABULARY, permuted_rows
from tests.model.run_pooling import Run, pooler
from transformers import PreTrainedModel

HEADS, WIDTH = 6, 104
CASE = EncoderCase("neobert", "EuroBertModel", "EuroBertConfig", {"intermediate_size": WIDTH, "rms_norm_eps": 1e-6})
CONFIG = {
    "architectures": ["NeoBERTLMHead"], "decoder_init_range": 0.02, "embedding_init_range": 0.02, "hidden_size": 72,
    "intermediate_size": 148, "kwargs": {"pretrained_model_name_or_path": "x"}, "max_length": 130,
    "model_type": "neobert", "norm_eps": 1e-06, "num_attention_heads": HEADS, "num_hidden_layers": 3,
    "pad_token_id": 0, "torch_dtype": "float32", "vocab_size": 331,
}  # fmt: skip


def written(folder: Path, **config: object) -> PreTrainedModel:
    """Write a NeoBERT, and return the EuroBERT that computes the same."""
    model = make(CASE, folder)
    found = load_file(folder / "model.safetensors")
    stored = {"model.encoder.weight": found["embed_tokens.weight"], "model.layer_norm.weight": found["norm.weight"]}
    for i in range(3):
        own = {name.removeprefix(f"layers.{i}."): one for name, one in found.items() if name.startswith(f"layers.{i}.")}
        q, k, v = (own[f"self_attn.{part}_proj.weight"] for part in "qkv")
        parts = [part.reshape(HEADS, 12, 72) for part in (permuted_rows(q, HEADS), permuted_rows(k, HEADS), v)]
        at = f"model.transformer_encoder.{i}."
        stored |= {
            f"{at}qkv.weight": np.concatenate(parts, axis=1).reshape(-1, 72),  # q, k and v of a head, and so on
            f"{at}wo.weight": own["self_attn.o_proj.weight"],
            f"{at}ffn.w12.weight": np.concatenate([own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"]]),
            f"{at}ffn.w3.weight": own["mlp.down_proj.weight"],
            f"{at}attention_norm.weight": own["input_layernorm.weight"],
            f"{at}ffn_norm.weight": own["post_attention_layernorm.weight"],
        }
    head = {"dense.weight": (72, 72), "dense.bias": (72,), "classifier.weight": (3, 72), "classifier.bias": (3,)}
    if "id2label" in config:
        stored |= {name: np.random.default_rng(1).normal(0, 0.2, shape) for name, shape in head.items()}
    tensors = {name: np.ascontiguousarray(one, np.float32) for name, one in stored.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return model


def rows_of(model: PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        rows: np.ndarray = model(torch.tensor([ids])).last_hidden_state[0].numpy()
    return rows


@pytest.mark.parametrize("converted", [False, True])
def test_neobert_computes_what_a_eurobert_of_the_same_numbers_does(converted: bool, tmp_path: Path) -> None:
    model = written(tmp_path)
    keys = {"rope.freq_base": 10_000.0, "feed_forward_length": int(2 * 148 / 3), "context_length": 130}
    keys |= {"attention.layer_norm_rms_epsilon": 1e-6}
    source = write_encoder(tmp_path, "neo-bert", "cls", VOCABULARY, **keys) if converted else tmp_path
    prompts = CASE.prompts()

    found = pooler(Run(str(source), prompts), 2).compute(prompts, "embed", False)

    for one, (ids, _) in zip(found, prompts, strict=True):
        assert np.abs(one - rows_of(model, ids)[0]).max() < 1e-5, "sums of float32 in another order"


@pytest.mark.parametrize("converted", [False, True])
def test_neoberts_classifier_has_a_layer_with_tanh(converted: bool, tmp_path: Path) -> None:
    labels = {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}}
    model = written(tmp_path, architectures=["NeoBERTForSequenceClassification"], **labels)
    head = load_file(tmp_path / "model.safetensors")
    keys = {"rope.freq_base": 10_000.0, "context_length": 130, "attention.layer_norm_rms_epsilon": 1e-6}
    source = write_encoder(tmp_path, "neo-bert", "rank", VOCABULARY, **keys) if converted else tmp_path
    prompts = CASE.prompts()

    found = pooler(Run(str(source), prompts), 2).compute(prompts, "classify", False)

    for one, (ids, _) in zip(found, prompts, strict=True):
        pooled = np.tanh(head["dense.weight"] @ rows_of(model, ids)[0] + head["dense.bias"])
        assert np.abs(one - head["classifier.weight"] @ pooled - head["classifier.bias"]).max() < 1e-5
