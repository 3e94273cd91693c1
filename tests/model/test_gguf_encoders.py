"""Embedding models and rerankers in .gguf files compute what their checkpoints do: of float32, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.e2e.pooling_models import minilm as minilm_folder
from tests.model.encoder_cases import ENCODER_CASES, EncoderCase, make
from tests.model.gguf_encoders import unigrams, word_pieces, write_encoder
from tests.model.gguf_models import VOCABULARY
from tests.model.run_pooling import Run, pooler
from tests.unit.model.gguf_files import write_gguf
from tokenizers import Tokenizer
from transformers import T5Tokenizer, XLMRobertaTokenizer

from forearm import LLM
from forearm.cli.stored_models import run_show
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.gguf.gguf import read_gguf
from forearm.model.gguf.gguf_architectures import ARCHITECTURES
from forearm.model.gguf.gguf_pooling import ENCODERS
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan
from forearm.text.tokenizer.gguf import gguf_tokenizer

ARCHITECTURE = {
    "BertModel": "bert", "XLMRobertaModel": "bert", "XLMRobertaForSequenceClassification": "bert",
    "RobertaForSequenceClassification": "bert", "DistilBertModel": "bert",
    "DistilBertForSequenceClassification": "bert", "NomicBertModel": "nomic-bert",
    "JinaEmbeddingsV3Model": "jina-bert-v3", "ModernBertModel": "modern-bert",
    "ModernBertForSequenceClassification": "modern-bert",
    **dict.fromkeys(("T5EncoderModel", "UMT5EncoderModel"), "t5encoder"),
    "Qwen3Model": "qwen3", "Qwen3ForSequenceClassification": "qwen3", "Gemma3TextModel": "gemma-embedding",
}  # fmt: skip
# A file does not name the scale of queries, which is by head_dim, nor the rows that ModernBERT's classifiers read.
_FIXED = {
    "Gemma3TextModel": {"query_pre_attn_scalar": 16},
    "ModernBertForSequenceClassification": {"classifier_pooling": "mean"},
}
# A file does not name the activation of most, which is the erf GELU, nor how far a T5's buckets reach.
CASES = [
    replace(case, settings=case.settings | _FIXED.get(case.model, {}))
    for case in ENCODER_CASES
    if case.model in ARCHITECTURE and "hidden_act" not in case.settings and case.name != "t5-near"
]
TEXTS = (
    "A glacier is a large mass of ice.", "naïve Café ÉCOLE   the-quick (brown) fox's 12,345 中文 é ½ [SEP] <mask>", "",
    "x" * 300, "hello\nworld\t! \u200b ﬁne", "Ελληνικά, Русский; עברית 한국어 🙂",
)  # fmt: skip


def written(case: EncoderCase, folder: Path) -> Path:
    """Return a file of the case's model, which is made in the folder."""
    make(case, folder)
    if case.dense:
        without_bias(folder / "2_Dense")
    classifies = case.model.endswith("ForSequenceClassification")
    config = json.loads((folder / "config.json").read_text())
    keys: dict[str, Any] = {"attention.causal": True} if case.model.startswith("Qwen3") else {}
    ropes = config.get("rope_parameters") or {}
    for kind, key in (("full_attention", "rope.freq_base"), ("sliding_attention", "rope.freq_base_swa")):
        if theta := (ropes.get(kind) or (ropes if kind == "full_attention" else {})).get("rope_theta"):
            keys[key] = theta
    if case.model.startswith("DistilBert"):
        keys["attention.layer_norm_epsilon"] = 1e-12
    return write_encoder(folder, ARCHITECTURE[case.model], "rank" if classifies else case.pool, VOCABULARY, **keys)


def without_bias(dense: Path) -> None:
    """Make a layer behind pooling a plain product, as EmbeddingGemma's are."""
    config = json.loads((dense / "config.json").read_text())
    config |= {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    (dense / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": load_file(dense / "model.safetensors")["linear.weight"]}, dense / "model.safetensors")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_computes_what_its_checkpoint_does(case: EncoderCase, tmp_path: Path) -> None:
    file = written(case, tmp_path)
    asked = {"pooling_type": case.asked} if case.asked else None
    prompts = case.prompts()
    kind = "classify" if case.model.endswith("ForSequenceClassification") else "embed"

    ours = pooler(Run(str(tmp_path), prompts, asked), 2).compute(prompts, kind, True)
    found = pooler(Run(str(file), prompts), 2).compute(prompts, kind, True)

    assert len(found) == len(prompts)
    for one, other in zip(found, ours, strict=True):
        assert np.array_equal(one, other)


def test_every_architecture_of_embedding_models_is_in_a_case() -> None:
    assert {ARCHITECTURE[case.model] for case in CASES} | set(_BOTH_WAYS) | {
        "nomic-bert-moe",
        "jina-bert-v2",
        "neo-bert",  # test_neobert.py
    } >= ENCODERS.keys()
    assert ENCODERS.keys() <= ARCHITECTURES.keys()


# --- models that transformers computes in another way, or not at all ---

_BOTH_WAYS = ("eurobert", "llama-embed", "qwen2")


@pytest.mark.parametrize("architecture", _BOTH_WAYS)
def test_a_llama_whose_tokens_see_both_sides_computes_what_transformers_does(architecture: str, tmp_path: Path) -> None:
    """qwen2 stands for generating architectures whose file says that attention is not causal."""
    biased = {"attention_bias": architecture == "qwen2"}
    case = EncoderCase("eurobert", "EuroBertModel", "EuroBertConfig", {"num_key_value_heads": 2, **biased}, seed=1)
    model = make(case, tmp_path)
    if architecture == "qwen2":  # which has biases of q, k and v alone
        with torch.no_grad():
            for layer in model.layers:
                layer.self_attn.o_proj.bias.zero_()
    model.save_pretrained(tmp_path)
    theta = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]["rope_theta"]
    heads = {"attn_q": 6, "attn_k": 2} if architecture == "llama-embed" else {}
    file = write_encoder(tmp_path, architecture, "mean", VOCABULARY, permuted=heads, **{"rope.freq_base": theta})

    _same_as_torch(model, file, case)


def _same_as_torch(model: torch.nn.Module, file: Path, case: EncoderCase) -> None:
    """Check that each text's mean row, of unit length, is the model's."""
    prompts = case.prompts()
    found = pooler(Run(str(file), prompts, {"pooling_type": "MEAN"}), 2).compute(prompts, "embed", True)
    for one, (ids, _) in zip(found, prompts, strict=True):
        with torch.no_grad():
            row = model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
        assert np.abs(one - row / np.linalg.norm(row)).max() < 2e-6, "sums of float32 in another order"


class _Gated(torch.nn.Module):
    """The first half of jina-embeddings-v2's feed-forward: GELU of the first rows, times the others."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(2 * width, hidden) / hidden**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows that the last matrix reads."""
        gate, up = (x @ self.rows.T).chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate) * up


class _Sloped(torch.nn.Module):
    """A BERT without positions whose scores fall by a head's slope for each token of distance, to both sides."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        with torch.no_grad():
            model.embeddings.position_embeddings.weight.zero_()

    def forward(self, ids: torch.Tensor) -> Any:
        """Return the model's outputs."""
        slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])  # of 6 heads
        place = torch.arange(ids.shape[1])
        return self.model(ids, attention_mask=-slopes[None, :, None, None] * (place[:, None] - place).abs())


@pytest.mark.parametrize("apart", [False, True])
def test_jinas_second_version_computes_what_a_bert_with_slopes_does(apart: bool, tmp_path: Path) -> None:
    """A folder as published, and a file with both halves of the gated matrix in one tensor, or (older) in two."""
    model = make(EncoderCase("jina-v2", "BertModel", "BertConfig", {"max_position_embeddings": 512}), tmp_path)
    for layer in model.encoder.layer:
        layer.intermediate = _Gated(72, 100)
    weights = {name: value for name, value in model.state_dict().items() if "position" not in name}
    renamed = {
        "intermediate.rows": "mlp.gated_layers.weight",
        "output.LayerNorm": "mlp.layernorm",
        "output.dense": "mlp.wo",
    }
    stored: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        own = name
        for old, new in renamed.items() if "attention" not in name else ():
            own = own.replace(old, new)
        stored[own] = value.numpy()
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean"}
    config["auto_map"] = {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(stored, tmp_path / "model.safetensors")
    case = EncoderCase("jina-v2", "BertModel", "BertConfig", lengths=(1, 45, 300))

    _same_as_torch(_Sloped(model), tmp_path, case)

    if apart:
        for name in [name for name in stored if "gated_layers" in name]:
            for half, rows in zip("wv", np.split(stored.pop(name), 2), strict=True):
                stored[name.replace("gated_layers", f"gated_layers_{half}")] = rows.copy()
        save_file(stored, tmp_path / "model.safetensors")
    _same_as_torch(_Sloped(model), write_encoder(tmp_path, "jina-bert-v2", "mean", VOCABULARY), case)


class _NomicExperts(torch.nn.Module):
    """The experts of nomic-embed-text-v2-moe: the two best of a softmax of all scores weigh their results."""

    def __init__(self, hidden: int, width: int, count: int) -> None:
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(count, hidden) / hidden**0.5)
        self.up = torch.nn.Parameter(torch.randn(count, width, hidden) / hidden**0.5)
        self.down = torch.nn.Parameter(torch.randn(count, hidden, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the results of all tokens, [1, tokens, hidden]."""
        weights, chosen = torch.topk(torch.softmax(x @ self.router.T, -1), 2)
        each = torch.einsum(
            "btew,ehw->bteh", torch.nn.functional.gelu(torch.einsum("bth,ewh->btew", x, self.up)), self.down
        )
        return (torch.take_along_dim(each, chosen[..., None], 2) * weights[..., None]).sum(2)


def test_nomics_experts_weigh_the_results_of_two(tmp_path: Path) -> None:
    case = EncoderCase("moe", "JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config", {"num_hidden_layers": 4})
    model = make(case, tmp_path)
    experts = {i: _NomicExperts(72, 100, 6) for i in (1, 3)}
    tensors: dict[str, np.ndarray] = {}
    for i, own in experts.items():
        model.layers[i].mlp = own
        names = {"ffn_gate_inp": own.router, "ffn_up_exps": own.up, "ffn_down_exps": own.down}
        tensors |= {f"blk.{i}.{name}.weight": value.detach().numpy() for name, value in names.items()}
    theta = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]["rope_theta"]
    keys = {"rope.freq_base": theta, "expert_count": 6, "expert_used_count": 2, "moe_every_n_layers": 2}
    file = write_encoder(tmp_path, "nomic-bert-moe", "mean", VOCABULARY, instead=tensors, **keys)

    _same_as_torch(model, file, case)


# --- the real MiniLM ---


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """MiniLM's folder, and files of its numbers in float32 and in blocks of 8 bits."""
    source = minilm_folder()
    folder = tmp_path_factory.mktemp("minilm")
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(source / name)
    keys = word_pieces(source / "tokenizer.json")
    files = {name: write_encoder(folder, "bert", "mean", keys, name) for name in ("", "Q8_0")}
    return {"folder": source, **files}


def test_minilms_file_has_its_tokenizer(minilm: dict[str, Path]) -> None:
    ours = Tokenizer.from_file(str(minilm["folder"] / "tokenizer.json"))
    ours.no_padding()
    ours.no_truncation()
    found = gguf_tokenizer(minilm[""]).backend_tokenizer

    for text in TEXTS:
        assert found.encode(text).ids == ours.encode(text).ids
        both, pair = found.encode(text, "of what?"), ours.encode(text, "of what?")
        assert (both.ids, both.type_ids) == (pair.ids, pair.type_ids)


def test_minilms_files_give_its_vectors(minilm: dict[str, Path]) -> None:
    vectors = {name: embed(path) for name, path in minilm.items()}

    assert np.array_equal(vectors[""], vectors["folder"])
    cosines = (vectors["Q8_0"] * vectors["folder"]).sum(axis=1)
    assert (cosines > 0.998).all()  # 8 bits for weights in blocks of 32, as --quantization int8's 0.995
    assert (cosines < 1 - 1e-7).all()


def embed(model: Path) -> np.ndarray:
    llm = LLM(str(model))
    return np.array([one.outputs.embedding for one in llm.embed([text[:200] for text in TEXTS], use_tqdm=False)])


# --- XLM-RoBERTa's tokenizer ---


def test_unigrams_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    words = ("▁a", "▁glacier", "▁is", "▁", "g", "l", "a", "ci", "er", "▁x", "x", "xx", "1", "▁ÉCOLE", "é", "!", "s")
    special = ("<s>", "<pad>", "</s>", "<unk>")
    pieces = [(token, 0.0) for token in special] + [(word, -1.5 - i / 7) for i, word in enumerate(words)]
    pieces.append(("<mask>", 0.0))
    theirs = XLMRobertaTokenizer(vocab=pieces)
    path = write_gguf(tmp_path / "model.gguf", "bert", unigrams(pieces), {"a": np.zeros(1, np.float32)})

    found = gguf_tokenizer(path).backend_tokenizer

    for text in TEXTS:
        assert found.encode(text).ids == theirs(text)["input_ids"]
        assert found.encode(text, "a glacier").ids == theirs(text, "a glacier")["input_ids"]


def test_t5s_unigrams_have_no_token_before_a_text(tmp_path: Path) -> None:
    words = ("▁a", "▁glacier", "▁is", "▁", "g", "l", "a", "ci", "er", "▁x", "x", "xx", "1", "▁ÉCOLE", "é", "!", "s")
    pieces = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>")] + [
        (one, -1.5 - i / 7) for i, one in enumerate(words)
    ]
    theirs = T5Tokenizer(vocab=pieces, extra_ids=0)
    keys = unigrams(pieces) | {"tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    keys["tokenizer.ggml.unknown_token_id"] = 2
    del keys["tokenizer.ggml.bos_token_id"]
    path = write_gguf(tmp_path / "model.gguf", "t5encoder", keys, {"a": np.zeros(1, np.float32)})

    found = gguf_tokenizer(path).backend_tokenizer

    for text in (text for text in TEXTS if "<mask>" not in text):
        assert found.encode(text).ids == theirs(text)["input_ids"]
        assert found.encode(text, "a glacier").ids == theirs(text, "a glacier")["input_ids"]


def test_a_broken_table_of_letters_is_an_error(tmp_path: Path) -> None:
    keys = unigrams([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)])
    keys["tokenizer.ggml.precompiled_charsmap"] = [1, 2, 3]
    path = write_gguf(tmp_path / "model.gguf", "bert", keys, {"a": np.zeros(1, np.float32)})

    with pytest.raises(ConfigError, match="precompiled_charsmap"):
        gguf_tokenizer(path)


# --- what can be asked ---


def test_an_encoder_generates_no_text(tmp_path: Path) -> None:
    file = written(CASES[0], tmp_path)

    with pytest.raises(ConfigError, match=r"--runner generate: .*model.gguf is an encoder \(bert\)"):
        pooling_plan(file, PoolingAsked(runner="generate"))


def test_scores_need_a_head_for_them(tmp_path: Path) -> None:
    file = written(CASES[0], tmp_path)

    with pytest.raises(ConfigError, match=r"no tensor cls\.output\.weight"):
        pooling_plan(file, PoolingAsked(convert="classify"))


def test_a_classifier_without_its_pooler_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """llama.cpp's converter leaves BERT's pooler out."""
    case = next(case for case in ENCODER_CASES if case.model == "BertForSequenceClassification")
    make(case, tmp_path)
    file = write_encoder(tmp_path, "bert", "rank", VOCABULARY)

    plan = pooling_plan(file, PoolingAsked())

    assert plan is not None
    assert (plan.kind, plan.finish, [one.stored for one in plan.dense]) == ("classify", "softmax", ["cls.output"])
    assert "no BERT pooler before its classifier" in caplog.text


def test_a_bert_with_a_projection_is_a_colbert(tmp_path: Path) -> None:
    """llama.cpp's converter writes the layer of PyLate's folders that stands behind the encoder itself."""
    case = CASES[0]
    prompts = case.prompts()
    make(case, tmp_path)
    plain = write_encoder(tmp_path, "bert", "none", VOCABULARY)
    rows = pooler(Run(str(plain), prompts), 2).compute(prompts, "token_embed", False)
    projection = np.random.default_rng(0).standard_normal((20, rows[0].shape[1])).astype(np.float32)
    (tmp_path / "2_Dense").mkdir()
    save_file({"linear.weight": projection}, tmp_path / "2_Dense" / "model.safetensors")
    file = write_encoder(tmp_path, "bert", None, VOCABULARY, embedding_length_out=20)

    plan = pooling_plan(file, PoolingAsked())
    found = pooler(Run(str(file), prompts), 2).compute(prompts, "token_embed", True)

    assert plan is not None
    assert (plan.late_interaction, plan.tasks) == (True, ("token_embed",))
    for one, text in zip(found, rows, strict=True):
        expected = text @ projection.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        # 72 products, each row's sum as large as its terms: 2^-24 * 72 of values up to 1
        assert np.abs(one - expected).max() < 72 * 2.0**-24


def test_a_kind_of_pooling_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    make(CASES[0], tmp_path)
    file = write_encoder(tmp_path, "bert", None, VOCABULARY, pooling_type=7)

    with pytest.raises(ConfigError, match=r"bert\.pooling_type.*7.*4 \(scores of pairs\)"):
        pooling_plan(file, PoolingAsked())


def test_a_model_that_generates_gives_vectors_if_asked(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.model == "Qwen3Model")
    make(case, tmp_path)
    file = write_encoder(tmp_path, "qwen3", None, VOCABULARY, **{"attention.causal": True})

    assert pooling_plan(file, PoolingAsked()) is None
    plan = pooling_plan(file, PoolingAsked(runner="pooling"))
    assert plan is not None
    assert (plan.kind, plan.pool, plan.finish) == ("embed", "last", "normalize")
    assert pooling_plan(file, PoolingAsked(convert="embed", pooler_config={"pooling_type": "MEAN"})) == replace(
        plan, pool="mean"
    )


def test_a_causal_bert_is_refused(tmp_path: Path) -> None:
    make(CASES[0], tmp_path)
    file = write_encoder(tmp_path, "bert", "cls", VOCABULARY, **{"attention.causal": True})
    plan = pooling_plan(file, PoolingAsked())

    with pytest.raises(ConfigError, match=r"bert\.attention\.causal.*encoders"):
        open_checkpoint(file, pooling=plan)


def test_files_of_encoders_have_no_unread_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(CASES[0], tmp_path)

    open_checkpoint(file, pooling=pooling_plan(file, PoolingAsked()))

    assert "does not know" not in caplog.text
    assert "bert.pooling_type" in read_gguf(file).metadata


def test_show_says_what_an_encoder_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(CASES[0], tmp_path)

    for place in (tmp_path, file):
        assert run_show([str(place)]) == 0

        shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
        assert (shown["family"], shown["layers"], shown["format"]) == ("bert", "3", "float32")
