"""A config.json of a model with experts, states or latents, or of an encoder, is refused by name for wrong values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.small_families import write_small

from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.modules.open import open_modules
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan
from forearm.model.quantization.quantization import Asked


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma4", {"global_head_dim": 1 << 40}),
        ("gemma4", {"layer_types": [["sliding_attention"]] * 4}),
        ("gpt_oss", {"layer_types": [{}] * 3}),
        ("gpt_oss", {"head_dim": 15}),
        ("gpt_oss", {"max_position_embeddings": 1 << 30}),
        ("llama4", {"layer_types": [[]] * 3}),
        ("llama4", {"no_rope_layers": [[], 1, 1]}),
        ("llama4", {"attention_chunk_size": -8}),
        ("llama4", {"attention_chunk_size": 1 << 70}),
        ("llama4", {"floor_scale": 1 << 40}),
        ("glm4_moe_lite", {"mlp_layer_types": [["dense"]] * 3}),
        ("kimi_linear", {"mla_use_nope": False}),
        ("kimi_linear", {"moe_router_activation_func": "softmax"}),
        ("kimi_linear", {"use_grouped_topk": False, "num_expert_group": 2}),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [[3]]}}),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [0, 1], "full_attn_layers": [2]}}),
        ("kimi_linear", {"linear_attn_config": {"head_dim": 1 << 40}}),
        ("kimi_linear", {"layer_types": ["linear_attention"] * 2}),
        ("qwen3_moe", {"num_experts": 4097}),
        ("qwen3_moe", {"num_experts_per_tok": 7}),
        ("qwen3_moe", {"n_routed_experts": 7}),
        ("qwen3_next", {"partial_rotary_factor": 1e-9}),
        ("qwen3_next", {"linear_conv_kernel_dim": 0}),
        ("qwen3_next", {"linear_key_head_dim": 1 << 62}),
        ("granite_h", {"layer_types": [["mamba"]] * 3}),
        ("granite_h", {"time_step_limit": 0.5}),
        ("granite_h", {"time_step_limit": [float("nan"), 1.0]}),
        ("granite_h", {"embedding_multiplier": 1e300}),
        ("granite_h", {"mamba_d_state": 0}),
        ("falcon_h1", {"key_multiplier": 1e39}),
        ("falcon_h1", {"ssm_multipliers": [1.0, 1.0, float("inf"), 1.0, 1.0]}),
        ("nemotron_h", {"n_group": -1}),
        ("nemotron_h", {"n_group": 2}),
        ("nemotron_h", {"topk_group": 1 << 70}),
        ("mamba2", {"conv_kernel": 0}),
        ("mamba2", {"state_size": 1 << 62}),
        ("falcon_mamba", {"conv_kernel": 1 << 62}),
        ("falcon_mamba", {"time_step_rank": 1 << 62}),
        ("zamba2", {"num_mem_blocks": 0}),
        ("zamba2", {"num_mem_blocks": 3}),
        ("zamba2", {"layers_block_type": ["mamba", "hybrid"]}),
        ("zamba2", {"num_attention_heads": 0}),
        ("zamba2", {"mamba_d_state": 0}),
        ("zamba2", {"add_bias_linear": True}),
        ("kolibri1", {"num_experts": 1}),
        ("kolibri1", {"num_experts_per_tok": 7}),
        ("kolibri1", {"sliding_window": -1}),
        ("hy_v4", {"hc_mult": 0}),
        ("hy_v4", {"hc_magnitude": float("nan")}),
        ("hy_v4", {"index_head_dim": 1 << 40}),
        ("hy_v4", {"index_topk": 0}),
        ("dots3_note", {"swa_kv_lora_rank": 20}),
        ("dots3_note", {"swa_num_attention_heads": 1 << 40}),
        ("dots3_note", {"swa_head_dim": 12}),
        ("dots3_note", {"swa_q_lora_rank": -1}),
        ("dots3_note", {"sliding_window_size": 0}),
        ("dots3_note", {"q_lora_rank": None}),
        ("dots3_note", {"layer_types": ["sliding_attention"]}),
        ("dots3_note", {"per_layer_config": {"1": {"v_head_dim": 12}}}),
        ("dots3_note", {"moe_layer_freq": 2}),
        ("dots3_note", {"n_shared_experts": 0}),
        ("dots3_note", {"moe_shared_expert_intermediate_size": 1 << 40}),
        ("dots3_note", {"swa_rope_theta": float("nan")}),
        ("dots3_note", {"attention_bias": True}),
        ("axk2", {"gated_norm_rank": 0}),
        ("axk2", {"gated_norm_rank": 1 << 40}),
        ("axk2", {"q_lora_rank": None}),
        ("axk2", {"v_head_dim": 18}),
        ("axk2", {"index_topk": 0}),
        *(("qwen4_exp", changes) for changes in (
            {"hc_count": 1}, {"hc_count": 9}, {"hc_lowrank": 0}, {"output_gate_type": "gelu"},
            {"layer_types": ["linear_attention", "sliding_attention", "linear_attention"]},
            {"indexer_n_heads": None}, {"indexer_kv_heads": 2}, {"indexer_head_dim": 2}, {"indexer_budget": 10},
            {"indexer_compress_ratio": 0}, {"indexer_compress_ratio": 1 << 40}, {"ple_layer_ids": [2]},
            {"ple_layer_ids": [0]}, {"ple_layer_ids": [[1]]}, {"ple_embed_dim": 30}, {"ngram_size": 1},
            {"ngram_vocab_size_base": 1 << 29}, {"heads_per_ngram": 0}, {"ple_conv_kernel_size": 0},
            {"make_ngram_vocab_size_divisible_by": 0}, {"eos_token_id": None}, {"seed": []},
        )),
        ("minimax_m3", {"index_block_size": 1 << 40}),
        ("minimax_m3", {"index_topk_blocks": 1 << 62}),
        ("minimax_m3", {"index_head_dim": 0}),
        ("minimax_m3", {"index_n_heads": 4}),
        ("step3p5", {"num_attention_groups": 0}),
        ("step3p5", {"num_attention_groups": 1 << 40}),
        ("step3p5", {"per_layer_config": {"9" * 5000: {}}}),
        ("step3p5", {"share_expert_dim": 1 << 62}),
        ("step3p5", {"share_expert_dim": 0}),
        ("step3p5", {"swiglu_limits": [float("nan")] * 3}),
        ("step3p5", {"swiglu_limits": [0.0, [], 0.0]}),
        ("step3p5", {"rope_theta": [[], [], [], []]}),
        ("step3p5", {"rope_theta": 1e400}),
        ("step3p5", {"partial_rotary_factors": [float("inf"), 1.0, 1.0]}),
        ("step3p5", {"num_sliding_attention_heads": 1 << 40}),
        ("step3p5", {"moe_layers_enum": "1;2"}),
        ("step3p5", {"query_pre_attn_scalar": -16}),
        ("step3p5", {"sliding_window": None}),
        ("longcat_flash", {"num_layers": 0}),
        ("longcat_flash", {"zero_expert_num": -1}),
        ("longcat_flash", {"zero_expert_type": "constant"}),
        ("longcat_flash", {"q_lora_rank": None}),
        ("rwkv7", {"hidden_size": 0}),
        ("rwkv7", {"hidden_size": 1 << 62}),
        ("rwkv7", {"head_dim": 7}),
        ("rwkv7", {"head_dim": None}),
        ("rwkv7", {"head_dim": None, "num_heads": 0}),
        ("rwkv7", {"head_dim": None, "num_heads": 5}),
        ("rwkv7", {"decay_low_rank_dim": 0}),
        ("rwkv7", {"a_low_rank_dim": 1 << 62}),
        ("rwkv7", {"v_low_rank_dim": -1}),
        ("rwkv7", {"gate_low_rank_dim": [16]}),
        ("rwkv7", {"hidden_act": "relu"}),
        ("rwkv7", {"norm_eps": 0.0}),
        ("rwkv7", {"value_dim": 64}),
        ("rwkv7", {"value_dim": [32, 32, 64]}),
        ("rwkv7", {"attn": {"layers": [1], "num_heads": 4}}),
        ("rwkv7", {"intermediate_size": 0}),
        ("rwkv7", {"hidden_ratio": 1e300, "intermediate_size": None}),
        ("rwkv7", {"num_hidden_layers": 1 << 40}),
        ("zaya", {"cca_time0": 1}),
        ("zaya", {"cca_time1": 1 << 40}),
        ("zaya", {"head_dim": 9, "num_key_value_heads": 1}),
        ("zaya", {"num_experts_per_tok": 2}),
        ("zaya", {"num_experts": 1}),
        ("zaya", {"router_hidden_size": 0}),
        ("zaya", {"router_hidden_size": 1 << 62}),
        ("zaya", {"sliding_window": None}),
        ("zaya", {"layer_types": ["hybrid", "full_attention", "hybrid"]}),
        ("zaya", {"layer_types": [["hybrid"]] * 3}),
        ("zaya", {"moe_intermediate_size": 0}),
        ("zaya", {"rope_parameters": {"hybrid": {"rope_theta": 1e4, "partial_rotary_factor": 2.0}}}),
        ("zaya", {"rope_parameters": {"hybrid": 3}}),
        ("inkling", {"d_rel": 1 << 40}),
        ("inkling", {"rel_extent": 1 << 40}),
        ("inkling", {"swa_num_attention_heads": 1 << 40}),
        ("inkling", {"swa_num_key_value_heads": 0}),
        ("inkling", {"swa_head_dim": -8}),
        ("inkling", {"conv_kernel_size": 1 << 40}),
        ("inkling", {"sliding_window_size": -1}),
        ("inkling", {"log_scaling_n_floor": 1 << 62}),
        ("inkling", {"log_scaling_alpha": float("nan")}),
        ("inkling", {"n_shared_experts": 1 << 40}),
        ("inkling", {"layer_types": [["hybrid"]] * 3}),
        ("inkling", {"mlp_layer_types": [["dense"]] * 3}),
        ("inkling", {"local_layer_ids": [[]], "layer_types": None}),
        ("inkling", {"dense_intermediate_size": 1 << 62}),
        ("inkling", {"unpadded_vocab_size": -1}),
        ("inkling", {"route_scale": float("inf")}),
        ("recurrent_gemma", {"lru_width": 46}),
        ("recurrent_gemma", {"lru_width": 1 << 40}),
        ("recurrent_gemma", {"conv1d_width": 0}),
        ("recurrent_gemma", {"block_types": []}),
        ("recurrent_gemma", {"block_types": [["recurrent"]]}),
        ("recurrent_gemma", {"attention_window_size": 0}),
        ("recurrent_gemma", {"logits_soft_cap": 0.0}),
        ("jamba", {"attn_layer_period": -1}),
        ("jamba", {"mamba_expand": 1 << 40}),
        ("jamba", {"num_experts": -3}),
        ("roberta", {"pad_token_id": -5}),
        ("albert", {"embedding_size": 0}),
        ("albert", {"embedding_size": 1 << 62}),
        ("albert", {"num_hidden_groups": 1 << 62}),
        ("albert", {"inner_group_num": -1}),
        ("esm", {"mask_token_id": 1 << 40}),
        ("esm", {"rope_theta": float("nan")}),
        ("deberta-1", {"max_relative_positions": 1 << 40}),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_no_model_can_have_is_refused_with_its_key(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json.*{next(iter(changes)).split('_')[-1]}"):
        opened(tmp_path, family, changes)


def test_two_names_of_the_number_of_experts_agree(tmp_path: Path) -> None:
    opened(tmp_path, "qwen3_moe", {"num_local_experts": 6, "num_experts": 6, "n_routed_experts": 6})
    with pytest.raises(ConfigError, match=r"num_experts = 6; it should be 7, as num_local_experts"):
        opened(tmp_path, "qwen3_moe", {"num_local_experts": 7})


@pytest.mark.parametrize("original", [-1, 0, 1 << 62])
def test_a_context_that_angles_are_stretched_from_is_bounded(original: int, tmp_path: Path) -> None:
    angles = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}

    with pytest.raises(ConfigError, match=r"config\.json.*original_max_position_embeddings = "):
        opened(tmp_path, "deepseek_v3", {"rope_scaling": angles})


def test_a_context_is_not_stretched_beyond_what_a_position_can_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stretch the context to 73786976294838206464 tokens; see factor"):
        opened(tmp_path, "gpt_oss", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0**60}})


def test_layers_and_experts_are_counted_before_their_tensors_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tensors for 1024 layers"):
        opened(tmp_path, "mamba2", {"num_hidden_layers": 1024})
    with pytest.raises(ConfigError, match=r"num_hidden_layers = 1024; it should be less: all layers have 4190208 exp"):
        opened(tmp_path, "qwen3_moe", {"num_hidden_layers": 1024, "num_experts": 4096})


@pytest.mark.parametrize("path", ["x" * 5000, "\0", "\ud800", "../.."])
def test_a_module_lies_in_the_models_folder(path: str, tmp_path: Path) -> None:
    write_small(tmp_path, "bert")
    listed = json.loads((tmp_path / "modules.json").read_text())
    listed[1]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(listed))

    with pytest.raises(ConfigError, match=r"modules\.json|x can't be read: File name too long"):
        pooling_plan(tmp_path, PoolingAsked())


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 1 << 62}, {"hidden_size": -1}, {"vocab_size": 1 << 40}], ids=str
)
def test_sizes_that_transformers_can_not_build_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "persimmon", "architectures": ["PersimmonForCausalLM"], "vocab_size": 48, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config | changes))

    with pytest.raises(ConfigError, match=rf"{next(iter(changes))} = |can't build its model"):
        open_modules(tmp_path, quantization=Asked())


def opened(folder: Path, family: str, changes: dict[str, Any]) -> None:
    """The family's model with other keys, opened as serve opens it, and loaded."""
    write_small(folder, family)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    checkpoint = open_checkpoint(folder, pooling=pooling_plan(folder, PoolingAsked()))
    load_native(
        checkpoint, step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(), threads=1, progress=False
    )  # fmt: skip
