"""The pooling plan of published files and of flags; what is not supported is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.unit.model.published_encoders import ENCODERS, GTE, MODULES, NOMIC, NOMIC_OF_TRANSFORMERS
from tests.unit.model.published_encoders_further import FURTHER
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoModelForTextEncoding
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.checkpoint.unread_tensors import unread_names
from forearm.model.families.encoders.bert_like import distance_buckets
from forearm.model.families.encoders.deberta import embedded_distances
from forearm.model.families.encoders.dense import Dense
from forearm.model.families.families import read_config
from forearm.model.pooling.plan import PoolingAsked, PoolingPlan
from forearm.model.pooling.pooled_checkpoint import with_pooling
from forearm.model.pooling.pooling import pooling_plan

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 100}
CLASSIFIER = "LlamaForSequenceClassification"
MEAN = {"pooling_type": "MEAN", "normalize": False}
TASKS = {
    "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False,
    "pooling_mode_lasttoken": False,
}  # fmt: skip


def write(folder: Path, config: dict[str, Any], modules: list[tuple[str, dict[str, Any]]] | None = None) -> Path:
    """config.json, and sentence-transformers' files where `modules` are given."""
    (folder / "config.json").write_text(json.dumps(config))
    if modules is not None:
        listed = []
        for number, (kind, own) in enumerate(modules):
            path = "" if kind == "Transformer" else f"{number}_{kind}"
            listed.append(
                {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            )
            (folder / path).mkdir(exist_ok=True)
            if path:
                (folder / path / "config.json").write_text(json.dumps(own))
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def plan(folder: Path, **asked: Any) -> PoolingPlan:
    found = pooling_plan(folder, PoolingAsked(**asked))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ENCODERS | FURTHER)
def test_every_tensor_of_a_published_encoder_is_where_transformers_has_it(name: str, tmp_path: Path) -> None:
    write(tmp_path, {"torch_dtype": "float32", **(ENCODERS | FURTHER)[name]})
    config = AutoConfig.from_pretrained(tmp_path)
    kind = AutoModelForSequenceClassification if "Sequence" in str(config.architectures) else AutoModel
    kind = AutoModelForTextEncoding if config.model_type == "t5" else kind
    with torch.device("meta"):
        theirs = kind.from_config(config)
    shapes = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()}
    tensors = {key: StoredTensor(key, tmp_path, "F32", shape, 0, 0) for key, shape in shapes.items()}
    own, tensors = with_pooling(tmp_path, read_config(tmp_path, pooled=True), tensors, plan(tmp_path))

    ours: dict[str, tuple[int, ...]] = {}
    for part in parts(own, shapes):
        rows = part.of_rows or part.shape[0] + (ours[part.stored][0] if part.stored in ours else 0)
        table = part.name == "attention_bias"  # the module reads it as one vector
        ours[part.stored] = (part.shape[0] // own.heads, own.heads) if table else (rows, *part.shape[1:])

    assert {key: shapes.get(key) for key in ours} == ours
    assert not unread_names(own, tensors, ours)


@pytest.mark.parametrize("name", ["gte-modernbert-base"])
def test_the_angles_of_modernbert_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    own = read_config(write(tmp_path, ENCODERS[name]), pooled=True)
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.from_pretrained(tmp_path))
    rotary = type(model.rotary_emb)(model.config)  # type: ignore[operator]

    buffers = dict(rotary.named_buffers())
    for angles, kind in zip(own.ropes, ("full_attention", "sliding_attention"), strict=True):
        np.testing.assert_allclose(angles.inv_freq, buffers[f"{kind}_inv_freq"].numpy(), rtol=8 * 2.0**-24, atol=0)


def test_the_published_config_of_nomic_embed_is_transformers_one_of_its_trained_length(tmp_path: Path) -> None:
    published = read_config(write(tmp_path, NOMIC), pooled=True)
    theirs = read_config(write(tmp_path, NOMIC_OF_TRANSFORMERS), pooled=True)

    (ours,), (angles,) = published.ropes, theirs.ropes
    np.testing.assert_array_equal(ours.inv_freq, angles.inv_freq)
    assert replace(published, ropes=()) == replace(theirs, ropes=())
    assert published.max_positions == 2048


@pytest.mark.parametrize(("span", "reach"), [(256, 512), (16, 130), (32, 610), (256, 100), (-1, 20), (-1, 512)])
def test_distances_have_the_embeddings_that_transformers_gives_them(span: int, reach: int) -> None:
    distance = torch.arange(-reach, reach + 1)  # key - query
    span_of = span if span > 0 else reach
    found = make_log_bucket_position(-distance, span, reach).long() if span > 0 else -distance

    theirs = torch.clamp(found + span_of, 0, 2 * span_of - 1).tolist()

    assert list(embedded_distances(span, reach)) == theirs


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("conv_kernel_size", 3), ("share_att_key", False), ("relative_attention", False), ("norm_rel_ebd", "none"),
        ("pos_att_type", ["c2p"]), ("embedding_size", 128), ("position_buckets", 2), ("max_relative_positions", 1),
    ],
)  # fmt: skip
def test_a_deberta_of_another_shape_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key} = "):
        read_config(write(tmp_path, {"torch_dtype": "float32", **ENCODERS["deberta-v3-base"], key: value}), pooled=True)


@pytest.mark.parametrize(("key", "value"), [("qkv_proj_bias", True), ("prenorm", True), ("num_experts", 8)])
def test_a_nomic_bert_of_another_shape_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        read_config(write(tmp_path, NOMIC | {key: value}), pooled=True)


def test_the_published_config_of_gte_multilingual_has_angles_of_fixed_ntk_scaling(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, GTE), pooled=True)

    exact = (20_000.0 * 8) ** -(np.arange(32) / 32) / 8 ** (2 / 64)  # vLLM's NTKScalingRotaryEmbedding
    np.testing.assert_allclose(config.ropes[0].inv_freq, exact, rtol=1e-6)
    assert (config.max_positions, config.token_types) == (8192, 1)


@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (4, 2), (10, 20), (64, 1000)])
def test_buckets_of_distances_are_those_of_transformers(buckets: int, reach: int) -> None:
    distances = torch.arange(-2 * reach, 2 * reach + 1)

    ours = np.array(distance_buckets(buckets, reach))[np.clip(distances.numpy(), -reach, reach) + reach]

    theirs = T5Attention._relative_position_bucket(distances, True, buckets, reach)
    np.testing.assert_array_equal(ours, theirs.numpy())
    if (buckets, reach) == (32, 128):
        np.testing.assert_array_equal(ours, MPNetEncoder.relative_position_bucket(distances).numpy())


def test_a_whole_t5_generates_text_unless_its_encoder_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, ENCODERS["sentence-t5-base"] | {"architectures": ["T5ForConditionalGeneration"]})

    assert pooling_plan(tmp_path, PoolingAsked()) is None
    assert plan(tmp_path, runner="pooling").tasks == ("embed", "token_embed")


@pytest.mark.parametrize("own", [True, False], ids=["HF_ColBERT", "PyLate"])
def test_a_colbert_makes_a_projected_vector_of_each_token(own: bool, tmp_path: Path) -> None:
    bert = ENCODERS["bge-small-en-v1.5"]
    if own:
        write(tmp_path, bert | {"architectures": ["HF_ColBERT"]})
        save_file({"linear.weight": np.zeros((96, 384), np.float32)}, tmp_path / "model.safetensors")
    else:
        identity = "torch.nn.modules.linear.Identity"
        dense = {"in_features": 384, "out_features": 96, "bias": False, "activation_function": identity}
        write(tmp_path, bert, [("Transformer", {}), ("Dense", dense | {"use_residual": False})])

    found = plan(tmp_path)

    assert (found.tasks, found.finish, found.late_interaction) == (("token_embed",), "normalize", True)
    assert [(one.outputs, one.bias, one.activation) for one in found.dense] == [(96, False, "none")]


def test_a_colbert_without_its_projection_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ENCODERS["bge-small-en-v1.5"] | {"architectures": ["HF_ColBERT"]})
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")

    with pytest.raises(ConfigError, match=r"linear\.weight"):
        plan(tmp_path)


def test_a_bge_m3_without_its_heads_is_refused_only_if_it_is_said_to_be_one(tmp_path: Path) -> None:
    write(tmp_path, ENCODERS["bge-m3"])

    assert plan(tmp_path).tasks == ("embed", "token_embed")
    with pytest.raises(ConfigError, match=r"sparse_linear\.pt and colbert_linear\.pt"):
        plan(tmp_path, hf_overrides={"architectures": ["BgeM3EmbeddingModel"]})


def test_heads_of_another_width_are_no_bge_m3_s(tmp_path: Path) -> None:
    write(tmp_path, ENCODERS["bge-m3"])
    torch.save(torch.nn.Linear(1024, 1).state_dict(), tmp_path / "sparse_linear.pt")
    torch.save(torch.nn.Linear(1000, 8).state_dict(), tmp_path / "colbert_linear.pt")

    with pytest.raises(ConfigError, match=r"colbert_linear\.pt has .* weight \[rows, 1024\]"):
        plan(tmp_path)


def test_positions_of_xlm_roberta_begin_behind_the_padding_token(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, ENCODERS["bge-m3"]), pooled=True)

    assert (config.position_offset, config.max_positions) == (2, 8192)


def test_embeddinggemma_sees_both_ways_half_a_window_far_and_only_where_it_pools(tmp_path: Path) -> None:
    write(tmp_path, ENCODERS["embeddinggemma-300m"])

    config = read_config(tmp_path, pooled=True)

    assert config.bidirectional
    assert [layer.mixer.window for layer in config.layers[:6]] == [257] * 5 + [0]
    with pytest.raises(ConfigError, match="use_bidirectional_attention"):
        read_config(write(tmp_path, ENCODERS["embeddinggemma-300m"] | {"architectures": ["Gemma3ForCausalLM"]}))


@pytest.mark.parametrize("name", MODULES)
def test_published_modules_are_read(name: str, tmp_path: Path) -> None:
    encoder, modules, wanted = MODULES[name]

    found = plan(write(tmp_path, ENCODERS[encoder], modules))

    assert (found.pool, found.finish) == wanted


def test_modules_may_have_dense_layers_and_a_length(tmp_path: Path) -> None:
    dense = {
        "in_features": 64,
        "out_features": 32,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    plain = {**dense, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    mean = {**TASKS, "pooling_mode_mean_tokens": True}
    modules = [("Transformer", {}), ("Pooling", mean), ("Dense", dense), ("Dense", plain), ("Normalize", {})]
    write(tmp_path, LLAMA, modules)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 77, "do_lower_case": true}')

    found = plan(tmp_path)

    assert found.dense == (Dense(32, "behind.0", True, "tanh"), Dense(32, "behind.1", False, "none"))
    assert found.dense_folders == {0: tmp_path / "2_Dense", 1: tmp_path / "3_Dense"}
    assert (found.max_tokens, found.lower_case) == (77, True)


@pytest.mark.parametrize(
    ("config", "asked", "wanted"),
    [
        (LLAMA, {}, None),
        (LLAMA, {"runner": "generate"}, None),
        (LLAMA, {"runner": "pooling"}, ("embed", "last", "normalize")),
        (LLAMA, {"convert": "embed"}, ("embed", "last", "normalize")),
        (LLAMA | {"architectures": ["LlamaModel"]}, {}, ("embed", "last", "normalize")),
        (LLAMA | {"architectures": ["LlamaLMHeadModel"]}, {}, None),
        (LLAMA | {"architectures": [CLASSIFIER]}, {}, ("classify", "last", "softmax")),
        (LLAMA | {"architectures": [CLASSIFIER], "num_labels": 1}, {}, ("classify", "last", "sigmoid")),
        (
            LLAMA | {"architectures": [CLASSIFIER], "problem_type": "regression"},
            {},
            ("classify", "last", "none"),
        ),
        (
            LLAMA
            | {
                "architectures": [CLASSIFIER],
                "num_labels": 1,
                "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
            },
            {},
            ("classify", "last", "none"),
        ),
        (LLAMA | {"model_type": "qwen3"}, {"convert": "classify"}, ("classify", "last", "sigmoid")),
        (LLAMA, {"runner": "pooling", "pooler_config": MEAN}, ("embed", "mean", "none")),
        (
            LLAMA,
            {"hf_overrides": {"architectures": [CLASSIFIER], "num_labels": 3}},
            ("classify", "last", "softmax"),
        ),
    ],
)  # fmt: skip
def test_what_is_pooled_and_how_follows_vllm(
    config: dict[str, Any], asked: dict[str, Any], wanted: tuple[str, str, str] | None, tmp_path: Path
) -> None:
    found = pooling_plan(write(tmp_path, config), PoolingAsked(**asked))

    assert (None if found is None else (found.kind, found.pool, found.finish)) == wanted


def test_matryoshka_is_as_the_files_or_the_flags_say(tmp_path: Path) -> None:
    write(tmp_path, ENCODERS["bge-small-en-v1.5"])

    assert plan(tmp_path).dimensions == ()
    assert plan(tmp_path, hf_overrides={"is_matryoshka": True}).dimensions is None
    assert plan(tmp_path, hf_overrides={"matryoshka_dimensions": [64, 128]}).dimensions == (64, 128)
    assert plan(tmp_path, pooler_config={"dimensions": 64}).default_dimensions == 64
    assert plan(tmp_path, pooler_config={"task": "token_embed"}) == plan(tmp_path)  # as in vLLM's PoolerConfig


@pytest.mark.parametrize(
    ("model_type", "asked", "dense"),
    [
        ("bert", {}, (Dense(3, "classifier"),)),
        ("bert", {"convert": "classify"}, (Dense(3, "classifier"),)),
        ("gpt2", {}, (Dense(3, "classifier"),)),
        ("llama", {}, (Dense(3, "score"),)),
        (
            "modernbert", {},
            (Dense(64, "head.dense", bias=False, activation="gelu_erf", norm="head.norm"), Dense(3, "classifier")),
        ),
    ],
)  # fmt: skip
def test_a_classifier_of_tokens_has_its_familys_head(
    model_type: str, asked: dict[str, Any], dense: tuple[Dense, ...], tmp_path: Path
) -> None:
    config = {"model_type": model_type, "architectures": ["XForTokenClassification"], "hidden_size": 64}
    write(tmp_path, config | {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}})

    found = plan(tmp_path, **asked)

    assert (found.tasks, found.finish, found.labels) == (("token_classify",), "softmax", ("O", "B-PER", "I-PER"))
    assert found.dense == dense
    assert plan(tmp_path, convert="embed").tasks == ("embed", "token_embed")


@pytest.mark.parametrize(
    ("config", "modules", "asked", "said"),
    [
        (ENCODERS["bge-m3"], None, {"runner": "generate"}, "--runner generate: xlm-roberta is an encoder"),
        (LLAMA, None, {"convert": "classify"}, "for --convert classify"),
        (
            ENCODERS["sentence-t5-base"] | {"architectures": ["T5ForSequenceClassification"]},
            None, {}, "T5EncoderModel: classifiers",
        ),
        (LLAMA, None, {"runner": "pooling", "pooler_config": {"pooling_type": "STEP"}}, "pooling_type is 'STEP'"),
        (LLAMA, None, {"runner": "pooling", "pooler_config": {"normalize": "yes"}}, "normalize is 'yes'"),
        (LLAMA, None, {"runner": "pooling", "pooler_config": {"dimensions": 0}}, "dimensions is 0"),
        (LLAMA, None, {"runner": "pooling", "pooler_config": {"task": "classify"}}, "supports embed and token_embed"),
        (LLAMA, None, {"runner": "pooling", "pooler_config": {"logit_bias": 1}}, "logit_bias is not supported"),
        (LLAMA, None, {"hf_overrides": {"hidden_size": 3}}, "hidden_size can't be changed"),
        (LLAMA | {"matryoshka_dimensions": 5}, None, {"runner": "pooling"}, "matryoshka_dimensions"),
        (LLAMA, [("Pooling", TASKS | {"pooling_mode_max_tokens": True})], {}, "pooling_mode_max_tokens"),
        (LLAMA, [("Transformer", {}), ("Pooling", TASKS)], {}, "pooling_mode"),
        (LLAMA, [("Transformer", {}), ("CNN", {})], {}, "the module CNN is not supported"),
        (
            LLAMA,
            [("Pooling", TASKS | {"pooling_mode_cls_token": True}), ("Dense", {"activation_function": "x.Swish"})],
            {},
            "activation_function",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    config: dict[str, Any],
    modules: list[tuple[str, dict[str, Any]]] | None,
    asked: dict[str, Any],
    said: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as caught:
        pooling_plan(write(tmp_path, config, modules), PoolingAsked(**asked))

    assert said in str(caught.value)


def test_a_module_outside_the_folder_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    listed = [{"path": "../elsewhere", "type": "sentence_transformers.models.Pooling"}]
    (model / "modules.json").write_text(json.dumps(listed))

    with pytest.raises(ConfigError, match="outside"):
        pooling_plan(model, PoolingAsked())


@pytest.mark.parametrize("text", ["", "{}", '[{"type": 1}]', "[3]"])
def test_damaged_modules_are_named(text: str, tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    (tmp_path / "modules.json").write_text(text)

    if text == "{}":
        assert pooling_plan(tmp_path, PoolingAsked()) is None
        return
    with pytest.raises(ConfigError, match=r"modules\.json"):
        pooling_plan(tmp_path, PoolingAsked())


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("bge-small-en-v1.5", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "relative_key"'),
        ("bge-small-en-v1.5", {"is_decoder": True}, "is_decoder = true"),
        ("bge-small-en-v1.5", {"hidden_act": "mish"}, 'hidden_act = "mish"'),
        ("bge-small-en-v1.5", {"architectures": ["BertForQuestionAnswering"]}, "architectures = "),
        ("gte-modernbert-base", {"layer_types": ["linear"] * 22}, "layer_types = "),
        ("all-mpnet-base-v2", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets = 64"),
        ("sentence-t5-base", {"relative_attention_num_buckets": 7}, "relative_attention_num_buckets = 7"),
        ("sentence-t5-base", {"relative_attention_max_distance": 8}, "relative_attention_max_distance = 8"),
        ("sentence-t5-base", {"feed_forward_proj": "gated-mish"}, 'feed_forward_proj = "gated-mish"'),
    ],
)
def test_an_encoder_that_can_not_be_computed_is_refused(
    name: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(write(tmp_path, ENCODERS[name] | changes), pooled=True)

    assert named in str(caught.value)
