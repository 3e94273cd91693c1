"""config.json of DBRX, Persimmon, GPT-NeoX-Japanese and Ettin's decoders; what is refused in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.model.test_families import folder_of

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.encoders.dense import Dense
from forearm.model.families.families import read_config
from forearm.model.families.matrices import matrices

_DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"], "attn_config": {
        "clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000,
    }, "d_model": 6144, "emb_pdrop": 0.0, "ffn_config": {
        "ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0, "moe_loss_weight": 0.05,
        "moe_num_experts": 16, "moe_top_k": 4,
    }, "initializer_range": 0.02, "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48, "n_layers": 40,
    "output_router_logits": False, "resid_pdrop": 0.0, "router_aux_loss_coef": 0.05, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 100352,
}  # fmt: skip
_PERSIMMON_8B: dict[str, Any] = {
    "architectures": ["PersimmonForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "relu2", "hidden_dropout": 0.0, "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 16384, "layer_norm_eps": 1e-05, "max_position_embeddings": 16384, "model_type": "persimmon",
    "num_attention_heads": 64, "num_hidden_layers": 36, "partial_rotary_factor": 0.5, "qk_layernorm": True,
    "rope_theta": 25000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 262144,
}  # fmt: skip
_JAPANESE_2_7B: dict[str, Any] = {
    "architectures": ["GPTNeoXJapaneseForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 31999,
    "eos_token_id": 31999, "hidden_act": "gelu", "hidden_dropout": 0.0, "hidden_size": 2560, "initializer_range": 0.02,
    "intermediate_multiple_size": 4, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "model_type": "gpt_neox_japanese", "num_attention_heads": 32, "num_hidden_layers": 32, "rotary_emb_base": 10000,
    "rotary_pct": 1.0, "torch_dtype": "float32", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
_ETTIN_400M: dict[str, Any] = {
    "architectures": ["ModernBertDecoderForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
    "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0,
    "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "hidden_activation": "gelu", "hidden_size": 1024, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
    "intermediate_size": 2624, "local_attention": 128, "local_rope_theta": 160000.0, "max_position_embeddings": 7999,
    "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert-decoder", "norm_bias": False, "norm_eps": 1e-05,
    "num_attention_heads": 16, "num_hidden_layers": 28, "pad_token_id": 50283, "sep_token_id": 50282,
    "tie_word_embeddings": True, "torch_dtype": "float32", "use_cache": True, "vocab_size": 50368,
}  # fmt: skip


def _read(folder: Path, published: dict[str, Any], caplog: pytest.LogCaptureFixture) -> ModelConfig:
    config = read_config(folder_of(folder, published))
    assert not caplog.messages, "every key is known"
    return config


def test_dbrx_clamps_its_keys_and_adds_up_four_of_sixteen_experts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = _read(tmp_path, _DBRX, caplog)

    assert (config.hidden, config.heads, config.kv_heads, config.head_dim) == (6144, 48, 8, 128)
    assert (config.qkv_clip, config.norm_bias, config.qkv_bias, config.max_positions) == (8.0, False, False, 32768)
    assert {layer.feed_forward for layer in config.layers} == {Experts(10752, count=16, active=4, renormalized=True)}


def _theta(config: ModelConfig) -> float:
    """Return the base of the angles: the second frequency is 1 / base ** (2 / rotated numbers)."""
    frequencies = config.ropes[0].inv_freq
    return float(frequencies[1].astype(np.float64) ** -len(frequencies))


def test_dbrx_turns_by_the_trained_base_even_beside_one_that_transformers_writes(tmp_path: Path) -> None:
    written = _DBRX | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

    assert _theta(read_config(folder_of(tmp_path, _DBRX))) == pytest.approx(5e5, rel=1e-4)
    assert _theta(read_config(folder_of(tmp_path, written))) == pytest.approx(5e5, rel=1e-4)
    asked = read_config(folder_of(tmp_path, _DBRX), rope={"rope_theta": 7e5})
    assert _theta(asked) == pytest.approx(7e5, rel=1e-4)


def test_weights_of_dbrxs_experts_are_scores_where_they_are_not_normalized(tmp_path: Path) -> None:
    plain = _DBRX | {"ffn_config": _DBRX["ffn_config"] | {"moe_normalize_expert_weights": None}}

    (experts,) = {layer.feed_forward for layer in read_config(folder_of(tmp_path, plain)).layers}

    assert experts == Experts(10752, count=16, active=4)


def test_persimmon_has_norms_of_each_head_with_biases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = _read(tmp_path, _PERSIMMON_8B, caplog)

    assert (config.heads, config.kv_heads, config.head_dim) == (64, 64, 64)
    assert (config.qk_norm, config.qk_norm_bias, len(config.ropes[0].inv_freq)) == ("each_head", True, 16)
    assert config.layers[0].feed_forward == FeedForward(16384, "relu_squared", gated=False, bias=True)
    assert read_config(folder_of(tmp_path, _PERSIMMON_8B | {"qk_layernorm": False})).qk_norm == "none"


def test_gpt_neox_japanese_has_a_bias_of_the_last_attention_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = _read(tmp_path, _JAPANESE_2_7B, caplog)

    biases = {spec.name for spec in matrices(config) if spec.bias}
    assert biases == {"layers.31.o"}
    assert (config.parallel_residual, config.tied_head, len(config.ropes[0].inv_freq)) == (False, True, 40)
    assert config.layers[0].feed_forward == FeedForward(10240, "gelu_erf", gated=False)


def test_ettins_decoders_see_windows_on_two_layers_of_three(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = _read(tmp_path, _ETTIN_400M, caplog)

    mixers = [layer.mixer for layer in config.layers]
    assert mixers[:4] == [Attention(0), Attention(1, window=64), Attention(1, window=64), Attention(0)]
    assert (config.bidirectional, config.pooled, config.norm_residual, config.norm_bias) == (
        False,
        False,
        "first",
        False,
    )
    written = read_config(folder_of(tmp_path, _ETTIN_400M | {"sliding_window": 8}))
    assert written.layers[1].mixer == Attention(1, window=8)
    assert config.head_dense == Dense(1024, "lm_head.dense", False, "gelu_erf", "lm_head.norm")
    assert {spec.name for spec in matrices(config) if spec.bias} == {"embed"}, "the head is the embedding"


@pytest.mark.parametrize(
    ("published", "changes", "said"),
    [
        (
            _DBRX,
            {"ffn_config": _DBRX["ffn_config"] | {"moe_normalize_expert_weights": 2}},
            "weights = 2; it should be 1",
        ),
        (_DBRX, {"ffn_config": {"ffn_hidden_size": 0}}, "ffn_hidden_size = 0; it should be 1 to"),
        (_DBRX, {"ffn_config": {"moe_num_experts": 1}}, "moe_num_experts = 1; it should be 2 to 4096"),
        (_DBRX, {"attn_config": {"kv_n_heads": 5}}, r"kv_n_heads = 5; it should be a divisor of n_heads \(48\)"),
        (_DBRX, {"attn_config": []}, r"attn_config = \[\]; it should be an object"),
        (_JAPANESE_2_7B, {"intermediate_multiple_size": 0}, "intermediate_multiple_size = 0; it should be more than 0"),
        (_JAPANESE_2_7B, {"intermediate_multiple_size": 1e6}, "intermediate_multiple_size = 1000000.0; it should be"),
        (_ETTIN_400M, {"local_attention": 1}, "local_attention = 1; it should be 2 or more"),
        (_ETTIN_400M, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "it should be null: angles are those of"),
        (_ETTIN_400M, {"classifier_activation": "tanh"}, 'classifier_activation = "tanh"; it should be one of'),
    ],
)
def test_what_is_not_computed_is_refused(
    published: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, published | changes))
