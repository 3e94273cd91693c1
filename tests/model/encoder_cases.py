"""Tiny random models that pool, made by transformers' own classes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tests.model.made_cases import randomize
from transformers import PreTrainedModel

# Lengths of the texts of one step: one token; a block of 32 and one token more; two blocks; more than a window.
LENGTHS = (1, 45, 33, 64, 7)


@dataclass(frozen=True)
class EncoderCase:
    """One checkpoint, its texts, and how it pools.

    model: name of transformers' class; settings: arguments of its configuration. pool: what is expected where nothing
    else is asked, or what pooler_config asks.
    """

    name: str
    model: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    pool: str = "cls"
    asked: str = ""
    lengths: tuple[int, ...] = LENGTHS
    pairs: bool = False  # texts are pairs
    seed: int = 0
    dtype: str = "float32"
    dense: tuple[int, ...] = ()  # outputs of layers behind pooling, as sentence-transformers keeps them

    def prompts(self) -> list[tuple[list[int], int]]:
        """Token ids of each text, and where its second part begins. The padding token is in none: positions of RoBERTa
        skip it."""
        random = np.random.default_rng(self.seed)
        texts = [[int(t) for t in random.integers(3, _SIZES["vocab_size"], length)] for length in self.lengths]
        return [(ids, len(ids) // 2 if self.pairs else 0) for ids in texts]


_SIZES: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_MODERN = {"cls_token_id": 0, "sep_token_id": 2}


def make(case: EncoderCase, folder: Path) -> PreTrainedModel:
    """Make the case's model, save it in `folder`, and return what transformers reads from there, in float32."""
    torch.manual_seed(case.seed)
    config = getattr(transformers, case.config)(**(_SIZES | case.settings))
    config._attn_implementation = "eager"
    kind = getattr(transformers, case.model)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomize(name, parameter)
            if name.endswith("SelfAttention.q.weight"):  # T5 does not scale its scores, so they are this small
                parameter.mul_(config.d_kv**-0.5)
    model.to(getattr(torch, case.dtype)).save_pretrained(folder)
    if case.dense:
        _write_dense(case, folder)
    read: PreTrainedModel = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return read.eval()


def _write_dense(case: EncoderCase, folder: Path) -> None:
    """modules.json with mean pooling and these layers: the first with tanh and a bias, the others plain."""
    width, modules = (_SIZES | case.settings)["hidden_size"], [("Transformer", ""), ("Pooling", "1_Pooling")]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for number, outputs in enumerate(case.dense):
        at = folder / f"{number + 2}_Dense"
        at.mkdir()
        name = "torch.nn.modules.linear.Identity" if number else "torch.nn.modules.activation.Tanh"
        own = {"in_features": width, "out_features": outputs, "bias": not number, "activation_function": name}
        (at / "config.json").write_text(json.dumps(own))
        tensors = {"linear.weight": torch.randn(outputs, width) / width**0.5}
        save_file(tensors | ({} if number else {"linear.bias": torch.randn(outputs)}), at / "model.safetensors")
        modules.append(("Dense", at.name))
        width = outputs
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps([*listed, {"path": "3_Normalize", "type": "x.Normalize"}]))


def _bert(name: str, **settings: Any) -> EncoderCase:
    return EncoderCase(f"bert-{name}", "BertModel", "BertConfig", settings)


def _distil(model: str, **settings: Any) -> EncoderCase:
    sizes = {"dim": 72, "hidden_dim": 100, "n_layers": 3, "n_heads": 6}
    return EncoderCase(model.lower(), model, "DistilBertConfig", sizes | settings)


def _rotary(model: str, config: str, **settings: Any) -> EncoderCase:
    return EncoderCase(model.lower(), model, config, settings)


def _deberta(model: str, **settings: Any) -> EncoderCase:
    own = {
        "relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 16, "position_biased_input": False, "type_vocab_size": 0,
    }  # fmt: skip
    return EncoderCase(model.lower(), model, "DebertaV2Config", own | settings)


def _plain(model: str, config: str = "", **settings: Any) -> EncoderCase:
    """A model of transformers whose configuration has the name of its class."""
    for end in ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"):
        config = config or (f"{model.removesuffix(end)}Config" if model.endswith(end) else "")
    return EncoderCase(model.lower(), model, config, settings)


def _tokens(case: EncoderCase, **differs: Any) -> EncoderCase:
    """A classifier of tokens, with an odd number of labels where nothing else is said."""
    return replace(case, settings={"num_labels": 5} | case.settings, pool="all", **differs)


def _mean(case: EncoderCase, **differs: Any) -> EncoderCase:
    return replace(case, asked="MEAN", pool="mean", **differs)


# A token of two of the texts.
_MASK = 223
_ALBERT = {"embedding_size": 24, "hidden_act": "gelu_new"}
_DEBERTA_1 = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
_ESM_2 = {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": _MASK}
_ESM_1 = {"emb_layer_norm_before": True, "token_dropout": False, "mask_token_id": _MASK}
_GROUPED = {"num_key_value_heads": 2}


def _t5(projection: str, dense: tuple[int, ...] = (), **settings: Any) -> EncoderCase:
    sizes = {"d_model": 72, "d_kv": 20, "d_ff": 100, "num_layers": 3, "num_heads": 5, "feed_forward_proj": projection}
    own = sizes | {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0} | settings
    return EncoderCase(
        f"t5-{projection}", "T5EncoderModel", "T5Config", own, "mean", "" if dense else "MEAN", dense=dense
    )


def _modern(name: str, **settings: Any) -> EncoderCase:
    window = {"local_attention": 16, "num_hidden_layers": 5}
    return EncoderCase(f"modernbert-{name}", "ModernBertModel", "ModernBertConfig", window | _MODERN | settings)


ENCODER_CASES: list[EncoderCase] = [
    _bert("plain"),
    replace(_bert("pairs-mean"), pairs=True, asked="MEAN", pool="mean"),
    replace(_bert("last-gelu-new", hidden_act="gelu_new", num_attention_heads=3), asked="LAST", pool="last"),
    replace(_bert("wide", hidden_size=96, num_attention_heads=1, intermediate_size=40), asked="MEAN", pool="mean"),
    EncoderCase("bert-classifier", "BertForSequenceClassification", "BertConfig", {"num_labels": 3}, pairs=True),
    EncoderCase("bert-masked", "BertForMaskedLM", "BertConfig", asked="MEAN", pool="mean"),
    EncoderCase("roberta", "RobertaModel", "RobertaConfig", {"type_vocab_size": 1}),
    EncoderCase("roberta-classifier", "RobertaForSequenceClassification", "RobertaConfig", {"num_labels": 2}),
    EncoderCase("xlm-roberta-mean", "XLMRobertaModel", "XLMRobertaConfig", {"type_vocab_size": 1}, "mean", "MEAN"),
    EncoderCase("xlm-roberta-reranker", "XLMRobertaForSequenceClassification", "XLMRobertaConfig", {"num_labels": 1}),
    _distil("DistilBertModel"),
    replace(_distil("DistilBertForMaskedLM", sinusoidal_pos_embds=True), asked="MEAN", pool="mean"),
    _distil("DistilBertForSequenceClassification", num_labels=2),
    _rotary("NomicBertModel", "NomicBertConfig"),
    replace(_rotary("NomicBertForSequenceClassification", "NomicBertConfig", num_labels=3), pairs=True),
    replace(_rotary("GteModel", "GteConfig"), asked="MEAN", pool="mean"),
    replace(_rotary("GteForMaskedLM", "GteConfig", type_vocab_size=0), lengths=(129, 2, 70)),
    _rotary("GteForSequenceClassification", "GteConfig", num_labels=1),
    replace(_rotary("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config"), asked="MEAN", pool="mean"),
    _rotary("JinaEmbeddingsV3ForSequenceClassification", "JinaEmbeddingsV3Config", num_labels=2),
    replace(_rotary("MPNetModel", "MPNetConfig"), asked="MEAN", pool="mean", lengths=(128, 1, 77)),
    replace(_rotary("MPNetForMaskedLM", "MPNetConfig", hidden_size=90, max_position_embeddings=610), name="mpnet-long",
            lengths=(600, 45, 300)),
    replace(_rotary("MPNetForSequenceClassification", "MPNetConfig", num_labels=3), pairs=True),
    _deberta("DebertaV2Model"),
    replace(_deberta("DebertaV2ForSequenceClassification", num_labels=3), pairs=True),
    replace(_deberta("DebertaV2Model", position_buckets=-1, max_relative_positions=20, position_biased_input=True,
                     type_vocab_size=2), name="deberta-clamped", asked="MEAN", pool="mean", lengths=(129, 2, 70)),
    replace(_deberta("DebertaV2ForMaskedLM", position_buckets=32, max_position_embeddings=610, num_hidden_layers=2),
            name="deberta-long", lengths=(600, 45, 300)),
    _t5("relu", dense=(50, 72)),
    _t5("gated-gelu"),
    replace(_t5("gated-gelu", num_heads=3), name="mt5", model="MT5EncoderModel", config="MT5Config"),
    replace(_t5("gated-gelu", num_heads=3), name="umt5", model="UMT5EncoderModel", config="UMT5Config"),
    replace(_t5("gated-silu", relative_attention_num_buckets=10, relative_attention_max_distance=20,
                max_position_embeddings=600),
            name="t5-near", lengths=(600, 3, 21)),
    _modern("windows"),
    replace(_modern("biases", norm_bias=True, attention_bias=True, mlp_bias=True), asked="MEAN", pool="mean"),
    replace(_modern("long", max_position_embeddings=1200, num_hidden_layers=4), lengths=(1040, 530, 3)),
    EncoderCase(
        "modernbert-classifier", "ModernBertForSequenceClassification", "ModernBertConfig",
        {"num_labels": 4, "classifier_pooling": "mean", "classifier_bias": True, "local_attention": 16, **_MODERN},
        "mean",
    ),
    EncoderCase("modernbert-reranker", "ModernBertForSequenceClassification", "ModernBertConfig",
                {"num_labels": 1, "norm_bias": True, **_MODERN}),
    EncoderCase("ettin-classifier", "ModernBertDecoderForSequenceClassification", "ModernBertDecoderConfig",
                {"num_labels": 3, "classifier_bias": True, "local_attention": 16, **_MODERN}, "last"),
    EncoderCase("ettin", "ModernBertDecoderModel", "ModernBertDecoderConfig",
                {"norm_bias": True, "local_attention": 24, **_MODERN}, "last"),
    _mean(_plain("CamembertModel", type_vocab_size=1)),
    _plain("CamembertForSequenceClassification", num_labels=1),
    _plain("Data2VecTextModel"),
    _plain("Data2VecTextForSequenceClassification", num_labels=2),
    _plain("ElectraModel", embedding_size=40),
    _plain("ElectraForPreTraining", embedding_size=136),
    replace(_plain("ElectraForSequenceClassification", embedding_size=72, num_labels=1), pairs=True),
    _mean(_plain("AlbertModel", **_ALBERT, num_hidden_layers=4)),
    replace(_plain("AlbertForMaskedLM", **_ALBERT, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2),
            lengths=(129, 2, 70)),
    replace(_plain("AlbertForSequenceClassification", **_ALBERT, num_labels=3), pairs=True),
    replace(_plain("ErnieModel", use_task_id=True), pairs=True),
    replace(_plain("ErnieForSequenceClassification", num_labels=2), pairs=True),
    _plain("XLMRobertaXLModel", type_vocab_size=1),
    _plain("XLMRobertaXLForSequenceClassification", num_labels=2),
    _mean(_plain("RobertaPreLayerNormModel")),
    _plain("RobertaPreLayerNormForSequenceClassification", num_labels=1),
    replace(_plain("RemBertModel", input_embedding_size=16, output_embedding_size=90), pairs=True),
    _plain("RemBertForSequenceClassification", input_embedding_size=80, num_labels=3),
    _mean(_plain("EsmModel", **_ESM_2), lengths=(45, 33, 64, 7)),
    replace(_plain("EsmForMaskedLM", **_ESM_1), name="esm-1b", lengths=(127, 2, 70)),
    _plain("EsmForSequenceClassification", **_ESM_2, num_labels=2),
    _mean(_plain("EuroBertModel", **_GROUPED)),
    replace(_plain("EuroBertForSequenceClassification", **_GROUPED, num_labels=3), pool="late"),
    replace(_plain("EuroBertForSequenceClassification", **_GROUPED, num_labels=1, classifier_pooling="bos",
                   attention_bias=True, mlp_bias=True), name="eurobert-first"),
    replace(_plain("EuroBertForSequenceClassification", **_GROUPED, num_labels=2, classifier_pooling="mean"),
            name="eurobert-mean", pool="mean"),
    replace(_plain("MegatronBertModel"), pairs=True),
    replace(_plain("MegatronBertForSequenceClassification", num_labels=2), pairs=True),
    _plain("DebertaModel", **_DEBERTA_1, max_relative_positions=-1),
    replace(_plain("DebertaModel", **_DEBERTA_1, hidden_size=192), name="deberta-1-wide"),
    _mean(_plain("DebertaForMaskedLM", **_DEBERTA_1, max_relative_positions=20, position_biased_input=False),
          lengths=(129, 2, 70)),
    replace(_plain("DebertaForSequenceClassification", **_DEBERTA_1, num_labels=3), pairs=True),
    EncoderCase("qwen3-embedding", "Qwen3Model", "Qwen3Config", {"head_dim": 20, "num_key_value_heads": 2}, "last"),
    EncoderCase("qwen3-classifier", "Qwen3ForSequenceClassification", "Qwen3Config",
                {"head_dim": 20, "num_key_value_heads": 2, "num_labels": 1}, "last"),
    EncoderCase("llama-mean", "LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 3}, "mean", "MEAN"),
    EncoderCase("embeddinggemma", "Gemma3TextModel", "Gemma3TextConfig", {
        "head_dim": 16, "num_key_value_heads": 2, "sliding_window": 16, "use_bidirectional_attention": True,
        "num_hidden_layers": 7, "query_pre_attn_scalar": 20,
    }, "mean", dense=(50, 72)),
    _tokens(_plain("BertForTokenClassification"), pairs=True),
    _tokens(_plain("RobertaForTokenClassification", type_vocab_size=1, num_labels=9)),
    _tokens(_plain("XLMRobertaForTokenClassification", type_vocab_size=1, num_labels=1)),
    _tokens(_distil("DistilBertForTokenClassification", num_labels=37)),
    _tokens(_plain("ModernBertForTokenClassification", local_attention=16, **_MODERN)),
    _tokens(_plain("ModernBertForTokenClassification", classifier_bias=True, norm_bias=True, **_MODERN),
            name="modernbert-tokens-biases"),
    _tokens(_plain("DebertaV2ForTokenClassification", **_deberta("").settings)),
    _tokens(_plain("ElectraForTokenClassification", embedding_size=40)),
    _tokens(_plain("AlbertForTokenClassification", **_ALBERT)),
    _tokens(_plain("MPNetForTokenClassification"), lengths=(128, 1, 77)),
    _tokens(_plain("EsmForTokenClassification", **_ESM_2)),
    _tokens(_plain("EuroBertForTokenClassification", **_GROUPED)),
    _tokens(_plain("NomicBertForTokenClassification")),
    _tokens(_plain("GteForTokenClassification")),
    _tokens(replace(_t5("gated-gelu", num_labels=3), name="t5-tokens", model="T5ForTokenClassification", asked="")),
    _tokens(EncoderCase("qwen3-tokens", "Qwen3ForTokenClassification", "Qwen3Config",
                        {"head_dim": 20, "num_key_value_heads": 2})),
    _tokens(_plain("GPT2ForTokenClassification", n_positions=130, n_inner=100)),
    EncoderCase("gemma2-last", "Gemma2ForCausalLM", "Gemma2Config",
                {"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 16}, "last"),
]  # fmt: skip

ENCODER_HALF_CASES: list[EncoderCase] = [
    replace(case, name=f"{case.name}-{dtype}", dtype=dtype)
    for dtype in ("bfloat16", "float16")
    for case in ENCODER_CASES
    if case.name in ("bert-pairs-mean", "roberta-classifier", "debertav2model", "modernbert-windows", "qwen3-embedding")
]
