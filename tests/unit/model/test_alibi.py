"""Families whose attention falls with the distance (ALiBi): BLOOM, MPT and RefinedWeb's Falcons, as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.model.published import PUBLISHED
from tests.unit.model.test_families import folder_of
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.families import read_config

_BLOOM_560M: dict[str, Any] = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024, "n_inner": None, "n_layer": 24,
    "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "skip_bias_add": True,
    "skip_bias_add_qkv": False, "torch_dtype": "float16", "unk_token_id": 0, "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
_BLOOM_176B = _BLOOM_560M | {
    "hidden_size": 14336, "n_head": 112, "n_layer": 70, "num_attention_heads": 112, "seq_length": 2048,
    "slow_but_exact": False, "torch_dtype": "bfloat16", "n_embed": 14336,
}  # fmt: skip
_MPT_7B: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"], "attn_config": {
        "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
    }, "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {
        "name": "kaiming_normal_", "verbose": 0,
    }, "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048, "model_type": "mpt",
    "n_heads": 32, "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "use_cache": False, "verbose": 0,
    "vocab_size": 50432,
}  # fmt: skip
_STORY_WRITER = _MPT_7B | {
    "attn_config": _MPT_7B["attn_config"] | {"alibi_bias_max": 16, "clip_qkv": 6}, "max_seq_len": 65536,
}  # fmt: skip
_FALCON_RW_1B: dict[str, Any] = {
    "alibi": True, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0, "bias": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
    "hidden_size": 2048, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
    "multi_query": False, "new_decoder_architecture": False, "num_attention_heads": 32, "num_hidden_layers": 24,
    "parallel_attn": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 50304,
}  # fmt: skip


def _read(folder: Path, published: dict[str, Any], caplog: pytest.LogCaptureFixture) -> ModelConfig:
    config = read_config(folder_of(folder, published))
    assert not caplog.messages, "every key is known"
    assert all(layer.mixer == Attention(rope=None) for layer in config.layers)
    assert not config.ropes
    return config


def test_bloom_has_slopes_and_a_norm_behind_its_embedding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = _read(tmp_path, _BLOOM_560M, caplog)

    assert (config.hidden, config.heads, config.kv_heads, config.head_dim) == (1024, 16, 16, 64)
    assert config.embed_norm
    assert config.tied_head
    assert config.max_positions == 2048
    assert config.layers[0].feed_forward == FeedForward(4096, "gelu_tanh", gated=False, bias=True)


def test_mpt_has_no_biases_and_story_writer_smaller_slopes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = _read(tmp_path, _MPT_7B, caplog)
    writer = _read(tmp_path, _STORY_WRITER, caplog)

    assert (config.norm_bias, config.qkv_bias, config.o_bias, config.qkv_clip) == (False, False, False, 0.0)
    assert config.layers[0].feed_forward == FeedForward(16384, "gelu_erf", gated=False)
    assert (config.max_positions, writer.max_positions, writer.qkv_clip) == (2048, 65536, 6.0)
    assert writer.slopes == pytest.approx([slope**2 for slope in config.slopes])


def test_falcon_rw_has_slopes_scaled_as_its_scores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = _read(tmp_path, _FALCON_RW_1B, caplog)

    theirs = falcon_alibi_tensor(torch.ones(1, 2), 32, torch.float32)[:, 0, 1]  # of the distance 1
    assert config.slopes == pytest.approx((theirs / 8).tolist(), rel=1e-7)
    assert (config.kv_heads, config.parallel_residual, config.max_positions) == (32, False, 2048)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 14, 16, 25, 112])
def test_slopes_are_those_of_transformers_for_any_number_of_heads(heads: int, tmp_path: Path) -> None:
    bloom = read_config(
        folder_of(
            tmp_path,
            _BLOOM_176B
            | {"num_attention_heads": heads, "n_head": heads, "hidden_size": 64 * heads, "n_embed": 64 * heads},
        )
    )
    mpt = read_config(folder_of(tmp_path, _MPT_7B | {"n_heads": heads, "d_model": 64 * heads}))

    assert bloom.slopes == pytest.approx(build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].tolist())
    assert mpt.slopes == pytest.approx((-build_mpt_alibi_tensor(heads, 2)[:, 0, 0]).tolist())


@pytest.mark.parametrize(
    ("published", "changes", "said"),
    [
        (_BLOOM_560M, {"apply_residual_connection_post_layernorm": True}, "post_layernorm = true"),
        (_BLOOM_560M, {"num_attention_heads": 0}, "num_attention_heads = 0; it should be 1 to 4096"),
        (_MPT_7B, {"no_bias": False}, "no_bias = false; it should be true"),
        (_MPT_7B, {"attn_config": {"alibi": False}}, "attn_config: alibi = false; it should be true"),
        (_MPT_7B, {"attn_config": {"attn_type": "multiquery_attention"}}, "it should be multihead_attention"),
        (_MPT_7B, {"attn_config": {"qk_ln": True}}, "qk_ln = true; it should be false"),
        (_MPT_7B, {"logit_scale": 0.5}, "logit_scale = 0.5; it should be null"),
    ],
)
def test_what_is_not_computed_is_refused(
    published: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, published | changes))


def test_the_other_falcons_have_no_slopes(tmp_path: Path) -> None:
    assert read_config(folder_of(tmp_path, PUBLISHED["falcon-7b-instruct"])).slopes == ()
