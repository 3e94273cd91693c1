"""Published config.json files become the right ModelConfig; what can't be computed is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.model.published import PUBLISHED
from tests.unit.model.stored_shapes import as_stored, gates_stored, kimi_stored, zamba_stored
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import parts
from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.families import FAMILIES, read_config
from forearm.model.families.own_code.families import OWN_CODE
from forearm.model.families.recurrences import ShortConv

_3N = "gemma-3n-E2B-it, its text part alone"
_E4B = "gemma-4-E4B-it, its text part alone"


def folder_of(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def read(folder: Path, model: str, *, max_model_len: int | None = None, **changes: Any) -> ModelConfig:
    return read_config(folder_of(folder, PUBLISHED[model] | changes), max_model_len=max_model_len)


_OTHER_PARTS = ("vision", "visual", "projector")  # text parts of multimodal models


def empty_model(folder: Path) -> PreTrainedModel:
    """transformers' model of the folder's config.json."""
    config = AutoConfig.from_pretrained(folder)
    text = type(config) in AutoModelForCausalLM._model_mapping
    return (AutoModelForCausalLM if text else AutoModelForImageTextToText).from_config(config)


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")  # published files have it
@pytest.mark.parametrize("model", PUBLISHED)
def test_every_tensor_of_a_published_model_is_where_transformers_has_it(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read(tmp_path, model)
    with torch.device("meta"):
        theirs = empty_model(tmp_path)
    old, new = {"biogpt": ("output_projection", "lm_head"), "lfm3": ("g_proj", "gate_proj")}.get(
        config.model_type, "  "
    )
    shapes = {name.replace(old, new): tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    shapes = as_stored(shapes, config.model_type)
    if config.model_type == "kimi_linear":
        shapes = kimi_stored(shapes)
    if config.model_type == "recurrent_gemma":
        shapes = gates_stored(shapes)
    if config.model_type == "zamba2":
        shapes = zamba_stored(shapes, theirs.config.hybrid_layer_ids[: theirs.config.num_mem_blocks])
    text = {name: shape for name, shape in shapes.items() if not any(other in name for other in _OTHER_PARTS)}

    ours: dict[str, tuple[int, ...]] = {}
    taken: dict[tuple[str, int], list[range]] = {}
    for part in parts(config, shapes):
        if part.of_rows is None:
            spans = taken.setdefault((part.stored, part.row % part.step), [])  # rows of two parts may alternate
            spans.append(range(part.row // part.step, part.row // part.step + part.shape[0]))
            ours[part.stored] = (max(rows.stop for rows in spans) * part.step, *part.shape[1:])
        else:  # a tensor that parts may share; a norm of each head may be stored as [heads, head_dim]
            shape, stored = (part.of_rows, *part.shape[1:]), shapes.get(part.stored, ())
            ours[part.stored] = stored if math.prod(stored) == math.prod(shape) else shape

    if config.tied_head:
        del text["lm_head.weight"]
    assert ours == text
    for name, spans in taken.items():
        ends = [0, *(span.stop for span in sorted(spans, key=lambda span: span.start))]
        assert sorted(span.start for span in spans) == ends[:-1], name
    unknown = [r.getMessage() for r in caplog.records if r.name.startswith("forearm")]
    assert not unknown


# opt-125m has no angles; of these two, transformers has them in no module of their own
_ANGLES_ELSEWHERE = ("opt-125m", "gpt-j-6b", "codegen-350M-mono")


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
@pytest.mark.parametrize("model", [name for name in PUBLISHED if name not in _ANGLES_ELSEWHERE])
def test_the_angles_of_a_published_model_are_those_of_transformers(model: str, tmp_path: Path) -> None:
    own = read(tmp_path, model, max_model_len=64)  # lengths at which dynamic and longrope do not apply yet
    with torch.device("meta"):
        theirs = empty_model(tmp_path)
    text = [m for name, m in theirs.named_modules() if not any(other in name for other in _OTHER_PARTS)]
    kinds = {type(m) for m in text if type(m).__name__.endswith("RotaryEmbedding")}
    if not kinds:
        assert own.ropes == ()
        return
    (rotary,) = (kind(theirs.config.get_text_config()) for kind in kinds)

    buffers = dict(rotary.named_buffers())
    names = ["full_attention_inv_freq", "sliding_attention_inv_freq"] if len(own.ropes) == 2 else ["inv_freq"]
    if len(own.ropes) == 4:  # DeepSeek V4's, each with the angles that turn back
        names = ["main_inv_freq", "-main_inv_freq", "compress_inv_freq", "-compress_inv_freq"]
        assert {angles.scale for angles in own.ropes} == {1.0}
        assert rotary.main_attention_scaling == rotary.compress_attention_scaling == 1.0
    for angles, name in zip(own.ropes, names, strict=True):
        theirs_of = buffers[name.removeprefix("-")].numpy() * (-1 if name.startswith("-") else 1)
        np.testing.assert_allclose(angles.inv_freq, theirs_of, rtol=8 * 2.0**-24, atol=0)


def test_lfm2_attends_in_the_layers_that_either_key_names(tmp_path: Path) -> None:
    old = read(tmp_path, "LFM2-1.2B").layers
    attends = [i for i, layer in enumerate(old) if isinstance(layer.mixer, Attention)]
    types = ["full_attention" if i in attends else "conv" for i in range(16)]

    assert attends == [2, 5, 8, 10, 12, 14]
    assert {layer.mixer for i, layer in enumerate(old) if i not in attends} == {ShortConv(3)}
    assert {layer.feed_forward for layer in old} == {FeedForward(8192)}
    assert read(tmp_path, "LFM2-1.2B", full_attn_idxs=None, layer_types=types).layers == old


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_L_cache": 1}, "conv_L_cache = 1; it should be 2 to 64"),
        ({"full_attn_idxs": 3}, "full_attn_idxs = 3; it should be a list"),
        ({"layer_types": ["conv"] * 15}, "it should be a list of 16 times full_attention or conv"),
        ({"layer_types": ["conv"] * 15 + ["mamba"]}, "it should be a list of 16 times full_attention or conv"),
        ({"block_multiple_of": 0}, "block_multiple_of = 0; it should be at least 1"),
        ({"block_use_swiglu": False}, "block_use_swiglu = false; it should be null or true"),
    ],
)
def test_a_wrong_lfm2_is_refused_by_its_key(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "LFM2-1.2B", **changes)


def test_every_family_has_a_published_config() -> None:
    published = {FAMILIES[config["model_type"]] for config in PUBLISHED.values()}
    others = {family.__name__ for family in FAMILIES.values() if family not in published}
    # layers of families that have one; test_mixtures.py reads some
    assert others == {
        "glm4v", "glm_ocr", "cwm", "jais2", "hyperclovax", "youtu", "vaultgemma", "gemma4_unified", "minimax_m2",
        "hunyuan_moe", "hy_v3", "dots1", "solar_open", "exaone_moe", "kolibri1", "flex_olmo", "afmoe",
        "granite_swa", "granite_moe_swa", "mellum", "aria", "mistral4", "flint", "cohere2_moe", "emu3", "mllama",
        "paddleocr_vl", "hunyuan_vl", "deepseek_ocr2", "cohere_compass", "cosmos3_edge", "laguna", "mimo_v2_flash",
        "bailing_hybrid", "bloom", "mpt", "axk1", "nanochat", "minimax", "dbrx", "persimmon", "gpt_neox_japanese",
        "modernbert_decoder", "minimax_m3", "hy_v4", "dots3_note", "axk2", "step3p5", "qwen4_exp", "zaya", "inkling",
    } | {family.__name__ for family in OWN_CODE.values()}  # fmt: skip


def test_qwen3_moe_has_experts_in_all_layers_but_those_that_are_said_to_be_dense(tmp_path: Path) -> None:
    changes = {"mlp_only_layers": [3], "decoder_sparse_step": 2, "num_hidden_layers": 6}
    layers = read_config(folder_of(tmp_path, PUBLISHED["Qwen3-30B-A3B"] | changes)).layers

    experts = [isinstance(layer.feed_forward, Experts) for layer in layers]
    assert experts == [False, True, False, False, False, True]
    assert layers[1].feed_forward == Experts(768, count=128, active=8, renormalized=True)
    assert layers[2].feed_forward == FeedForward(6144)


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("Qwen3-30B-A3B", {"num_experts_per_tok": 129}, "num_experts_per_tok = 129"),
        ("Qwen3-30B-A3B", {"num_experts": 1}, "num_experts = 1; it should be 2 to 4096"),
        ("Qwen3-30B-A3B", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        ("Qwen3-30B-A3B", {"mlp_only_layers": 3}, "mlp_only_layers = 3"),
        ("Mixtral-8x7B-Instruct-v0.1", {"num_local_experts": 5000}, "num_local_experts = 5000"),
        ("GLM-4.5-Air", {"n_group": 3}, "n_group = 3"),
        ("GLM-4.5-Air", {"n_group": 32, "topk_group": 1}, "topk_group = 1"),
        ("GLM-4.5-Air", {"n_shared_experts": 0}, "n_shared_experts = 0"),
        ("ERNIE-4.5-21B-A3B-PT", {"moe_layer_interval": 0}, "moe_layer_interval = 0"),
        ("ERNIE-4.5-21B-A3B-PT", {"moe_k": 65}, "moe_k = 65"),
    ],
)
def test_wrong_numbers_of_experts_are_named(tmp_path: Path, model: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, PUBLISHED[model] | changes))


def test_llama_3_2_is_grouped_tied_and_ends_with_three_tokens(tmp_path: Path) -> None:
    config = read(tmp_path, "Llama-3.2-1B-Instruct")

    assert (config.heads, config.kv_heads, config.head_dim) == (32, 8, 64)
    assert config.tied_head
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.max_positions == 131072
    assert config.dtype == "bfloat16"


def test_end_tokens_are_those_of_both_files(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, PUBLISHED["Qwen2.5-0.5B-Instruct"], {"eos_token_id": [151645, 151643]}))

    assert config.eos_token_ids == (151643, 151645)


def test_end_tokens_of_a_multimodal_wrapper_count(tmp_path: Path) -> None:
    assert read(tmp_path, "gemma-3-4b-it").eos_token_ids == (1, 106)


def test_gemma_3_sees_everything_on_every_sixth_layer_with_stretched_angles(tmp_path: Path) -> None:
    config = read(tmp_path, "gemma-3-4b-it")

    assert [layer.mixer.window for layer in config.layers[:7]] == [1024] * 5 + [0] + [1024]
    full, local = config.ropes[config.layers[5].mixer.rope or 0], config.ropes[config.layers[0].mixer.rope or 0]
    assert full.inv_freq[0] == pytest.approx(1 / 8)
    assert local.inv_freq[0] == 1.0
    assert config.heads == 8  # transformers' default: the file leaves it out
    assert config.vocab_size == 262208


def test_gemma_scales_embeddings_by_a_root_in_the_weights_dtype(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PUBLISHED["gemma-2-2b-it"] | {"hidden_size": 3072})

    assert read_config(folder).embedding_scale == 55.5  # not 55.4256: transformers pull request 29402
    assert read_config(folder, weight_dtype="float32").embedding_scale == float(np.float32(3072**0.5))


def test_a_missing_window_of_mistral_is_4096_and_null_is_none(tmp_path: Path) -> None:
    published = {k: v for k, v in PUBLISHED["Mistral-7B-v0.1"].items() if k != "sliding_window"}

    assert read_config(folder_of(tmp_path, published)).layers[0].mixer.window == 4096
    assert read_config(folder_of(tmp_path, published | {"sliding_window": None})).layers[0].mixer.window == 0


def test_a_window_of_qwen_counts_only_if_it_is_switched_on(tmp_path: Path) -> None:
    off = read(tmp_path, "DeepSeek-R1-Distill-Qwen-1.5B")
    on = read(tmp_path, "DeepSeek-R1-Distill-Qwen-1.5B", use_sliding_window=True)

    assert {layer.mixer.window for layer in off.layers} == {0}
    assert [layer.mixer.window for layer in on.layers] == [0] * 21 + [4096] * 7


def test_smollm3_sees_no_positions_on_every_fourth_layer(tmp_path: Path) -> None:
    assert [layer.mixer.rope for layer in read(tmp_path, "SmolLM3-3B").layers[:8]] == [0, 0, 0, None] * 2


def test_phi_4_mini_takes_long_factors_only_when_it_serves_long_contexts(tmp_path: Path) -> None:
    short = read(tmp_path, "Phi-4-mini-instruct", max_model_len=4096)
    long = read(tmp_path, "Phi-4-mini-instruct", max_model_len=4097)

    assert len(short.ropes[0].inv_freq) == 48  # three quarters of 128, in pairs
    assert short.ropes[0].inv_freq[1] / long.ropes[0].inv_freq[1] == pytest.approx(1.5)
    assert short.ropes[0].scale == long.ropes[0].scale == pytest.approx((1 + np.log(32) / np.log(4096)) ** 0.5)


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

    assert read(tmp_path, "Qwen2.5-0.5B-Instruct", rope_scaling=scaling).max_positions == 131072


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("Llama-2-7b-chat-hf", {"model_type": "rwkv"}, 'model_type = "rwkv"'),
        ("Llama-2-7b-chat-hf", {"model_type": "qwen3_omni"}, "the nearest name is qwen3"),
        ("internlm3-8b-instruct", {"qkv_bias": True}, "qkv_bias = true"),
        ("EXAONE-4.0-32B", {"attention_bias": True}, "attention_bias = true"),
        ("Llama-2-7b-chat-hf", {"architectures": ["LlamaForSequenceClassification"]}, "architectures = "),
        ("Llama-2-7b-chat-hf", {"hidden_act": "xielu"}, 'hidden_act = "xielu"'),
        ("Llama-2-7b-chat-hf", {"rope_scaling": {"rope_type": "spiral"}}, 'rope_type = "spiral"'),
        ("Llama-2-7b-chat-hf", {"rope_scaling": {"type": "spiral"}}, 'type = "spiral"'),
        ("Llama-2-7b-chat-hf", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ("Llama-2-7b-chat-hf", {"rope_scaling": {"rope_type": "linear", "factor": "x"}}, 'factor = "x"'),
        ("Llama-2-7b-chat-hf", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("Llama-2-7b-chat-hf", {"hidden_size": "big"}, 'hidden_size = "big"'),
        ("Llama-2-7b-chat-hf", {"hidden_size": None}, "hidden_size = null"),
        ("Llama-2-7b-chat-hf", {"num_key_value_heads": 5}, "num_key_value_heads = 5"),
        ("Llama-2-7b-chat-hf", {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ("Llama-2-7b-chat-hf", {"head_dim": 65}, "head_dim = 65"),
        ("Llama-2-7b-chat-hf", {"torch_dtype": "float8_e4m3fn"}, "torch_dtype = "),
        ("Llama-2-7b-chat-hf", {"eos_token_id": "</s>"}, "eos_token_id = "),
        ("Llama-2-7b-chat-hf", {"tie_word_embeddings": "no"}, 'tie_word_embeddings = "no"'),
        ("Mistral-7B-v0.1", {"mlp_bias": True}, "mlp_bias = true"),
        ("Mistral-7B-v0.1", {"num_local_experts": 8}, "num_local_experts = 8"),
        ("Qwen2.5-0.5B-Instruct", {"dual_chunk_attention_config": {"chunk_size": 1}}, "dual_chunk_attention_config"),
        ("SmolLM3-3B", {"layer_types": ["linear_attention"] * 36}, "layer_types = "),
        ("SmolLM3-3B", {"no_rope_layers": [1]}, "no_rope_layers = "),
        ("gemma-2-2b-it", {"use_bidirectional_attention": True}, "use_bidirectional_attention = true"),
        ("gemma-3-1b-it", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (_E4B, {"vocab_size_per_layer_input": 1000}, "vocab_size_per_layer_input = 1000"),
        (_E4B, {"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input = -1"),
        (_E4B, {"num_kv_shared_layers": 42}, "num_kv_shared_layers = 42"),
        (
            _E4B,
            {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 9, "moe_intermediate_size": 64},
            "top_k_experts = 9",
        ),
        (_3N, {"altup_active_idx": 1}, "altup_active_idx = 1"),
        (_3N, {"altup_num_inputs": 9}, "altup_num_inputs = 9"),
        (_3N, {"activation_sparsity_pattern": [0.95]}, "activation_sparsity_pattern = [0.95]"),
        (_3N, {"activation_sparsity_pattern": [1.0] * 30}, "activation_sparsity_pattern = "),
        (_3N, {"intermediate_size": [8192]}, "intermediate_size = [8192]"),
        (_3N, {"intermediate_size": [0.5] * 30}, "intermediate_size = [0.5"),
        (_3N, {"vocab_size_per_layer_input": 0}, "vocab_size_per_layer_input = 0"),
        (_3N, {"hidden_activation": "silu"}, 'hidden_activation = "silu"'),
        ("opt-125m", {"do_layer_norm_before": False}, "do_layer_norm_before = false"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim = 512"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        ("gpt2", {"n_embd": 0}, "n_embd = 0"),
        ("gpt-j-6b", {"rotary_dim": 258}, "rotary_dim = 258"),
        ("gpt-j-6b", {"rotary_dim": None}, "rotary_dim = null"),
        ("codegen-350M-mono", {"n_head": 2}, "n_head = 2"),
        ("Apertus-8B-Instruct-2509", {"hidden_act": "silu"}, 'hidden_act = "silu"'),
        ("Olmo-Hybrid-7B", {"hidden_act": "gelu"}, 'hidden_act = "gelu"; it should be silu'),
        ("Apertus-8B-Instruct-2509", {"post_norm": True}, "post_norm = true"),
        ("Llama-4-Maverick, its text part alone", {"moe_layers": 3}, "moe_layers = 3"),
        ("Llama-4-Maverick, its text part alone", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step = 0"),
        ("Llama-4-Maverick, its text part alone", {"moe_layers": None, "floor_scale": 0}, "floor_scale = 0"),
        ("Llama-4-Maverick, its text part alone", {"layer_types": ["sliding_attention"] * 48}, "chunked_attention"),
        ("Phi-4-mini-instruct", {"partial_rotary_factor": 1.0}, "short_factor = "),
    ],
)
def test_what_can_not_be_computed_is_refused_by_name(
    model: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, model, **changes)

    assert named in str(caught.value)
    assert "config.json" in str(caught.value)


def test_an_unknown_key_is_named_in_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(tmp_path, "Llama-2-7b-chat-hf", wobble=3)

    assert [r.getMessage().split(": ", 1)[1] for r in caplog.records if r.name.startswith("forearm")] == [
        "keys this version does not know, and leaves out: wobble"
    ]


def test_more_positions_than_the_model_has_are_refused_unless_allowed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PUBLISHED["Llama-2-7b-chat-hf"])

    with pytest.raises(ConfigError, match=r"max_model_len = 4097 is more than the 4096"):
        read_config(folder, max_model_len=4097)
    assert read_config(folder, max_model_len=4097, allow_longer=True).max_positions == 4096


def test_learned_positions_can_not_be_exceeded_even_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2048"):
        read_config(folder_of(tmp_path, PUBLISHED["opt-125m"]), max_model_len=2049, allow_longer=True)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_a_damaged_config_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("rope", "written"),
    [
        ({"rope_scaling": YARN}, {"rope_scaling": YARN}),
        ({"rope_parameters": YARN | {"rope_theta": 5e5}}, {"rope_scaling": YARN, "rope_theta": 5e5}),
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}),
    ],
)
def test_changed_angles_are_those_of_a_file_that_says_so(
    rope: dict[str, Any], written: dict[str, Any], tmp_path: Path
) -> None:
    plain = read(tmp_path, "Qwen3-0.6B")
    expected = read(tmp_path, "Qwen3-0.6B", **written)

    changed = read_config(folder_of(tmp_path, PUBLISHED["Qwen3-0.6B"]), rope=rope)

    assert np.array_equal(changed.ropes[0].inv_freq, expected.ropes[0].inv_freq)
    assert changed.max_positions == expected.max_positions
    assert not np.array_equal(changed.ropes[0].inv_freq, plain.ropes[0].inv_freq)


def test_a_base_within_rope_parameters_stays_where_only_the_scaling_changes(tmp_path: Path) -> None:
    newer = {k: v for k, v in PUBLISHED["Qwen3-0.6B"].items() if k not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}

    changed = read_config(folder_of(tmp_path, newer), rope={"rope_scaling": YARN})

    newer["rope_parameters"] = YARN | {"rope_theta": 1e6}
    expected = read_config(folder_of(tmp_path, newer))
    assert np.array_equal(changed.ropes[0].inv_freq, expected.ropes[0].inv_freq)


@pytest.mark.parametrize("model", ["opt-125m", "gemma-3-1b-it"])
def test_angles_that_cannot_be_changed_so_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no rotary angles that rope_theta could change|have different angles"):
        read_config(folder_of(tmp_path, PUBLISHED[model]), rope={"rope_theta": 5e5})


def test_a_multimodal_model_is_refused_by_the_family_of_its_text_part(tmp_path: Path) -> None:
    outer = PUBLISHED["gemma-3-4b-it"]
    text = outer["text_config"] | {"model_type": "gemma33_text"}

    with pytest.raises(ConfigError, match=r'text_config.*model_type = "gemma33_text".*the nearest name is gemma3_text'):
        read_config(folder_of(tmp_path, outer | {"text_config": text}))


@pytest.mark.parametrize(("pooled", "said"), [(False, "pip install"), (True, "are not served for pooling")])
def test_the_refusal_of_a_type_offers_transformers_for_generating_text_alone(
    pooled: bool, said: str, tmp_path: Path
) -> None:
    keys = PUBLISHED["Llama-2-7b-chat-hf"] | {"model_type": "rwkv"}

    with pytest.raises(ConfigError, match='model_type = "rwkv"') as refused:
        read_config(folder_of(tmp_path, keys), pooled=pooled)

    assert said in str(refused.value)
    assert pooled == ("pip install" not in str(refused.value))


@pytest.mark.parametrize(
    ("written", "kv_heads", "head_dim"),
    [
        ({}, 2, 256),
        ({"5": {"num_key_value_heads": 1}}, 1, 256),
        ({"5": {"head_dim": 512}}, 2, 512),
        ({"5": {"num_key_value_heads": 1, "head_dim": 512}}, 1, 512),
    ],
)
def test_a_layer_of_gemma4_says_only_what_differs_from_the_others(
    written: dict[str, Any], kv_heads: int, head_dim: int, tmp_path: Path
) -> None:
    found = read(tmp_path, _E4B, per_layer_config=written).layers[5].mixer

    assert isinstance(found, Attention)
    assert (found.kv_heads, found.head_dim) == (kv_heads, head_dim)
