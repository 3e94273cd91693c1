"""config.json of models whose families are made of others' parts, most with experts; what is refused in them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.model.test_families import folder_of, read

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, Layer, ModelConfig
from forearm.model.families.families import read_config
from forearm.model.families.indexed.indexers import Indexer
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import CompressedAttention, GatedDelta, HyperConnections, Lightning

_MINIMAX_M2: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608, "mlp_intermediate_size": 8192,
    "model_type": "minimax_m2", "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
    "num_key_value_heads": 8, "num_local_experts": 256, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
    "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_qk_norm": True,
    "use_routing_bias": True, "vocab_size": 200064,
}  # fmt: skip
_A13B: dict[str, Any] = {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_bias": False, "attention_head_dim": 128, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 3072, "max_position_embeddings": 32768,
    "model_type": "hunyuan_v1_moe", "moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 64, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_shared_expert": [1] * 32, "rms_norm_eps": 1e-05,
    "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cla": False, "use_mixed_mlp_moe": True,
    "use_qk_norm": True, "vocab_size": 128167,
}  # fmt: skip


def test_minimax_m2_rotates_half_of_a_head_and_corrects_its_scores(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _MINIMAX_M2))

    assert len(config.ropes[0].inv_freq) == 32
    assert config.qk_norm == "full"
    (experts,) = {layer.feed_forward for layer in config.layers}
    assert experts == Experts(1536, count=256, active=8, score="sigmoid", correction=True, renormalized=True)


def test_hunyuan_a13b_has_a_shared_expert_and_lists_for_its_layers(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _A13B))

    (experts,) = {layer.feed_forward for layer in config.layers}
    assert experts == Experts(3072, count=64, active=8, renormalized=True, shared=FeedForward(3072))
    assert config.qk_norm_after_rope
    assert all(isinstance(layer.mixer, Attention) for layer in config.layers)


_COMMAND: dict[str, Any] = {
    "architectures": ["Cohere2MoeForCausalLM"], "expert_selection_fn": "sigmoid", "first_k_dense_replace": 1,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024, "layer_norm_eps": 1e-05,
    "logit_scale": 0.25, "max_position_embeddings": 131072, "model_type": "cohere2_moe", "norm_topk_prob": True,
    "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 9,
    "num_key_value_heads": 8, "num_shared_experts": 2, "prefix_dense_intermediate_size": 8192, "sliding_window": 4096,
    "shared_expert_combination_strategy": "average", "torch_dtype": "bfloat16", "vocab_size": 256000,
}  # fmt: skip


def test_cohere_averages_its_experts_with_the_shared_one(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _COMMAND))

    first, *others = (layer.feed_forward for layer in config.layers)
    assert first == FeedForward(8192)
    assert set(others) == {
        Experts(
            1024, count=64, active=8, score="sigmoid", renormalized=True, scale=0.5,
            shared=FeedForward(2048, out_scale=0.5),
        )
    }  # fmt: skip
    mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention)]
    assert [mixer.window for mixer in mixers] == [0, 4096, 4096, 4096, 0, 4096, 4096, 4096, 0]
    assert [mixer.rope for mixer in mixers] == [0, 0, 0, 0, None, 0, 0, 0, None]


_LAGUNA: dict[str, Any] = {  # sizes of transformers' class; what differs by layer, and angles, are made up
    "architectures": ["LagunaForCausalLM"], "attention_bias": False, "gating": True, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "layer_types": [
        "full_attention" if i % 4 == 0 else "sliding_attention" for i in range(40)
    ], "max_position_embeddings": 131072, "mlp_layer_types": ["dense", *["sparse"] * 39], "model_type": "laguna",
    "moe_apply_router_weight_on_input": False, "moe_intermediate_size": 512, "moe_routed_scaling_factor": 2.5,
    "num_attention_heads": 48, "num_attention_heads_per_layer": [48 if i % 4 == 0 else 64 for i in range(40)],
    "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_parameters": {
        "full_attention": {
            "beta_fast": 64.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.5, "rope_theta": 500000.0, "rope_type": "yarn",
        },
        "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"},
    }, "shared_expert_intermediate_size": 512, "sliding_window": 512, "torch_dtype": "bfloat16", "vocab_size": 100352,
}  # fmt: skip


def test_laguna_has_heads_gates_and_angles_by_layer(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _LAGUNA))

    assert (config.attention_gate, config.head_gates) == ("softplus", True)
    assert config.layers[0].mixer == Attention(0, heads=48)
    assert config.layers[1].mixer == Attention(1, window=512, heads=64)
    assert [len(one.inv_freq) for one in config.ropes] == [32, 64]
    assert config.layers[0].feed_forward == FeedForward(8192)
    assert config.layers[1].feed_forward == Experts(
        512, count=256, active=8, score="sigmoid", correction=True, renormalized=True, scale=2.5,
        shared=FeedForward(512),
    )  # fmt: skip
    by_name = {spec.name: spec for spec in matrices(config)}
    assert [part.rows for part in by_name["layers.1.qkv"].parts] == [64 * 128, 1024, 1024, 64]
    assert by_name["layers.0.o"].k == 48 * 128


_LING_3: dict[str, Any] = {  # the values of transformers' class, whose source is Ling 3.0 Flash
    "architectures": ["BailingHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "eos_token_id": 156895, "first_k_dense_replace": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
    "initializer_range": 0.02, "intermediate_size": 6144, "kda_lower_bound": -5.0, "kda_safe_gate": True,
    "kv_lora_rank": 512, "layer_group_size": 6, "model_max_length": 262144, "model_type": "bailing_hybrid",
    "moe_intermediate_size": 768, "moe_renormalize": True, "mtp_loss_scaling_factor": 0.0, "num_attention_heads": 32,
    "num_expert_group": 8, "num_experts": 512, "num_experts_per_token": 8, "num_hidden_layers": 42,
    "num_key_value_heads": 32, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "pad_token_id": 156892,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 6000000.0,
    "routed_scaling_factor": 2.5, "short_conv_kernel_size": 4, "tie_word_embeddings": False, "topk_group": 4,
    "torch_dtype": "bfloat16", "use_cache": True, "v_head_dim": 128, "vocab_size": 157184,
}  # fmt: skip


def test_ling_3_has_delta_attention_and_every_sixth_layer_gated_latent_attention(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _LING_3))

    delta = GatedDelta(32, 32, 128, 128, 4, by_channel=True, least_decay=-5.0)
    latent = LatentAttention(0, 512, 128, 64, 128)
    assert [layer.mixer for layer in config.layers[:7]] == [*[delta] * 5, latent, delta]
    assert (config.attention_gate, config.head_gates, config.max_positions) == ("sigmoid", True, 262144)
    assert [isinstance(layer.feed_forward, Experts) for layer in config.layers[:3]] == [False, False, True]
    assert config.layers[2].feed_forward == Experts(
        768, count=512, active=8, score="sigmoid", correction=True, groups=8, groups_kept=4, renormalized=True,
        sum_epsilon=1e-20, scale=2.5, shared=FeedForward(768),
    )  # fmt: skip
    by_name = {spec.name: [part.rows for part in spec.parts] for spec in matrices(config)}
    assert by_name["layers.0.delta_gates"] == [32, 4096]
    assert by_name["layers.5.latent_in"] == [32 * 192, 512 + 64, 32]


_MIMO: dict[str, Any] = {
    "add_full_attention_sink_bias": False, "add_swa_attention_sink_bias": True,
    "architectures": ["MiMoV2FlashForCausalLM"], "attention_bias": False, "attention_chunk_size": 128,
    "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 192, "hidden_act": "silu",
    "hidden_size": 4096, "hybrid_block_size": None, "hybrid_layer_pattern": [
        0, 1, 1, 1, 1, 0, *[1, 1, 1, 1, 1, 0] * 7
    ], "initializer_range": 0.02, "intermediate_size": 16384, "layernorm_epsilon": 1e-05,
    "max_position_embeddings": 262144, "model_type": "mimo_v2_flash", "moe_intermediate_size": 2048,
    "moe_layer_freq": [0, *[1] * 47], "n_group": 1, "n_routed_experts": 256, "n_shared_experts": None,
    "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "partial_rotary_factor": 0.334, "rope_theta": 5000000, "routed_scaling_factor": None,
    "scoring_func": "sigmoid", "sliding_window": 128, "sliding_window_size": 128, "swa_head_dim": 192,
    "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_rope_theta": 10000, "swa_v_head_dim": 128,
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "use_cache": True, "v_head_dim": 128, "vocab_size": 152576,
}  # fmt: skip


def test_mimo_has_values_narrower_than_keys_and_windows_with_sinks(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _MIMO))

    full = Attention(0, value_dim=128, out_scale=0.707)
    slides = Attention(1, window=129, kv_heads=8, value_dim=128, out_scale=0.707, sinks=True)
    assert [layer.mixer for layer in config.layers[:7]] == [full, slides, slides, slides, slides, full, slides]
    assert sum(layer.mixer == full for layer in config.layers) == 9
    assert [len(one.inv_freq) for one in config.ropes] == [32, 32]
    assert config.norm_eps == 1e-5
    assert config.layers[0].feed_forward == FeedForward(16384)
    assert config.layers[47].feed_forward == Experts(
        2048, count=256, active=8, score="sigmoid", correction=True, renormalized=True, sum_epsilon=1e-20
    )
    by_name = {spec.name: spec for spec in matrices(config)}
    assert [part.rows for part in by_name["layers.0.qkv"].parts] == [64 * 192, 4 * 192, 4 * 128]
    assert [part.rows for part in by_name["layers.1.qkv"].parts] == [64 * 192, 8 * 192, 8 * 128]
    assert by_name["layers.1.o"].k == 64 * 128


_MINIMAX_TEXT_01: dict[str, Any] = {
    "architectures": ["MiniMaxForCausalLM"], "attention_dropout": 0.0, "block_size": 256,
    **{f"{part}_alpha_factor": 3.5565588200778455 for part in ("full_attn", "linear_attn", "mlp")},
    **{f"{part}_beta_factor": 1.0 for part in ("full_attn", "linear_attn", "mlp")}, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 6144, "initializer_range": 0.02, "intermediate_size": 9216, "layer_types": [
        "full_attention" if i % 8 == 7 else "linear_attention" for i in range(80)
    ], "max_position_embeddings": 10240000, "model_type": "minimax", "num_attention_heads": 64,
    "num_experts_per_tok": 2, "num_hidden_layers": 80, "num_key_value_heads": 8, "num_local_experts": 32,
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 10000000, "rotary_dim": 64,
    "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 200064,
}  # fmt: skip


def test_minimax_multiplies_the_residual_by_dividing_what_is_added(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _MINIMAX_TEXT_01))

    first, last = config.layers[0].mixer, config.layers[78].mixer
    assert isinstance(first, Lightning)
    assert isinstance(last, Lightning)
    assert (first.heads, first.head_dim, first.norm_eps) == (64, 128, 1e-6)
    assert first.slopes[0] == pytest.approx(2.0**-0.125 * (1 + 1e-5))
    assert last.slopes[63] == pytest.approx(2.0**-8 * (1 - 78 / (79 + 1e-5) + 1e-5))
    assert config.layers[7].mixer == Attention(0)
    assert config.layers[0].feed_forward == Experts(9216, count=32, active=2, renormalized=True)
    assert (config.norm_residual, len(config.ropes[0].inv_freq), config.has_states) == ("all", 32, True)
    alpha = 3.5565588200778455
    assert (config.residual_scale, config.embedding_scale) == (1 / alpha, 1 / alpha)
    assert config.norm_eps == 1e-5 / alpha**2


_AXK1: dict[str, Any] = {  # the values of transformers' class, whose source is A.X K1
    "architectures": ["AXK1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 163691,
    "eos_token_id": 163691, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 32768, "model_type": "axk1",
    "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 192, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 64, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip


def test_a_x_k1_is_deepseek_v3_with_norms_behind_its_experts(tmp_path: Path) -> None:
    config = read_config(folder_of(tmp_path, _AXK1))
    without = read_config(folder_of(tmp_path, _AXK1 | {"model_type": "deepseek_v3"}))

    assert [layer.norm_placement or config.norm_placement for layer in config.layers[:3]] == [
        "pre",
        "around_mlp",
        "around_mlp",
    ]
    plain = tuple(replace(layer, norm_placement=None) for layer in config.layers)
    assert replace(config, ropes=(), layers=plain, norm_placement="pre", model_type="deepseek_v3") == replace(
        without, ropes=()
    )


@pytest.mark.parametrize("name", ["DeepSeek-V3", "DeepSeek-V3.2-Exp"])
def test_groups_of_experts_that_are_all_kept_are_none(name: str, tmp_path: Path) -> None:
    all_kept, ungrouped = (read(tmp_path, name, n_group=n, topk_group=n).layers[-1] for n in (8, 1))

    # llama.cpp aborts when it opens a GGUF file that has as many groups as are kept.
    assert all_kept == ungrouped


def test_a_layer_of_longcat_is_three_of_ours(tmp_path: Path) -> None:
    config = read(tmp_path, "LongCat-Flash-Chat")

    first, second, third = config.layers[:3]
    assert (len(config.layers), {len(set(config.layers[i::3])) for i in range(3)}) == (84, {1})
    assert first.feed_forward == Experts(
        2048, count=512, active=12, correction=True, scale=6.0, zeros=256, behind=2, score="softmax"
    )
    assert second == Layer(None, FeedForward(12288))
    assert third == Layer(first.mixer, FeedForward(12288))
    assert isinstance(third.mixer, LatentAttention)
    assert third.mixer.scales == (2.0, math.sqrt(12))
    (router,) = (spec for spec in matrices(config) if spec.name == "layers.0.router")
    assert (router.rows, router.k) == (768, 6144)
    unscaled = read(tmp_path, "LongCat-Flash-Chat", mla_scale_q_lora=False, mla_scale_kv_lora=False)
    assert cast("LatentAttention", unscaled.layers[0].mixer).scales == (1.0, 1.0)


def test_kolibri_has_no_positions_in_every_fifth_layer_and_chooses_experts_by_logits(tmp_path: Path) -> None:
    published = {  # the values of transformers' class, which are those of Kolibri-1
        "architectures": ["Kolibri1ForCausalLM"], "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
        "max_position_embeddings": 262144, "model_type": "kolibri1", "moe_intermediate_size": 512,
        "norm_topk_prob": False, "num_attention_heads": 48, "num_experts": 384, "num_experts_per_tok": 6,
        "num_hidden_layers": 50, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "shared_expert_intermediate_size": 512, "sliding_window": 513, "torch_dtype": "bfloat16", "vocab_size": 128000,
    }  # fmt: skip
    config = read_config(folder_of(tmp_path, published))

    assert {i for i, layer in enumerate(config.layers) if layer.mixer == Attention(None)} == set(range(4, 50, 5))
    assert {layer.mixer for layer in config.layers} == {Attention(None), Attention(0, window=513)}
    (experts,) = {layer.feed_forward for layer in config.layers}
    assert experts == Experts(
        512, count=384, active=6, score="sigmoid_chosen", correction=True, shared=FeedForward(512)
    )
    assert (config.norm_placement, config.qk_norm) == ("sandwich", "head")
    with pytest.raises(ConfigError, match=r"layer_types = .*; it should be a list of 50 times"):
        read_config(folder_of(tmp_path, published | {"layer_types": ["full_attention"] * 49}))


def test_nanochat_turns_queries_and_keys_the_other_way(tmp_path: Path) -> None:
    published = {  # the values of transformers' class, with the sizes of nanochat-d32
        "architectures": ["NanoChatForCausalLM"], "attention_bias": False, "bos_token_id": 65527,
        "eos_token_id": 65531, "final_logit_softcapping": 15.0, "hidden_act": "relu2", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 2048, "model_type": "nanochat",
        "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 16, "pad_token_id": 65531,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "vocab_size": 65536,
    }  # fmt: skip
    config = read_config(folder_of(tmp_path, published))

    assert (config.norm_weight, config.embed_norm, config.logits_softcap) == (False, True, 15.0)
    assert config.layers[0].mixer == Attention(0, unit_qk=True)
    assert config.layers[0].feed_forward == FeedForward(8192, "relu_squared", gated=False)
    assert config.ropes[0].inv_freq[0] == -1.0


@pytest.mark.parametrize(
    ("published", "changes", "said"),
    [
        (_MINIMAX_TEXT_01, {"mlp_alpha_factor": 2.0}, "mlp_alpha_factor = 2.0; it should be that of both kinds"),
        (
            _MINIMAX_TEXT_01,
            {"layer_types": ["full_attention"]},
            "a list of 80 times full_attention or linear_attention",
        ),
        (_LING_3, {"kda_lower_bound": 0.0}, "kda_lower_bound = 0.0; it should be more than -80, and less than 0"),
        (_LING_3, {"layer_group_size": 0}, "layer_group_size = 0; it should be at least 1"),
        (_LING_3, {"short_conv_kernel_size": 1}, "short_conv_kernel_size = 1; it should be 2 to 64"),
        (_LING_3, {"linear_num_heads": 16}, "linear_num_heads = 16; it should be 32"),
        (_MIMO, {"hybrid_layer_pattern": [0] * 47}, "a list of 48 times 0 or 1"),
        (_MIMO, {"moe_layer_freq": 1}, "moe_layer_freq = 1; it should be a list of 48 times 0 or 1"),
        (_MIMO, {"swa_head_dim": 128}, "swa_head_dim = 128; it should be 192"),
        (_MIMO, {"v_head_dim": 200, "swa_v_head_dim": 200}, "v_head_dim = 200; it should be 1 to head_dim .192."),
        (_MIMO, {"swa_num_key_value_heads": 12}, "a divisor of num_attention_heads .64."),
        (_MIMO, {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias = true; it should be false"),
        (_LAGUNA, {"gating": False}, "gating = false; it should be true, per-head or per-element"),
        (_LAGUNA, {"num_attention_heads_per_layer": [48] * 39}, "a list of 40 numbers of heads"),
        (_LAGUNA, {"num_attention_heads_per_layer": [48] * 39 + [12]}, "multiples of num_key_value_heads"),
        (
            _LAGUNA,
            {"moe_router_logit_softcapping": 30.0},
            "moe_router_logit_softcapping = 30.0; it should be 0: no cap",
        ),
        (_LAGUNA, {"attention_bias": True}, "attention_bias = true; .*--model-impl transformers"),
        (_LAGUNA, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types = .*40 times dense or sparse"),
        (_MINIMAX_M2, {"scoring_func": "softmax"}, 'scoring_func = "softmax"; it should be sigmoid'),
        (_MINIMAX_M2, {"shared_intermediate_size": 1536}, "shared_intermediate_size = 1536"),
        (_MINIMAX_M2, {"use_routing_bias": False}, "use_routing_bias = false; it should be true"),
        (_A13B, {"moe_topk": [8] * 31 + [4]}, "moe_topk = "),
        (_A13B, {"num_shared_expert": [2] * 32}, "num_shared_expert = "),
        (_A13B, {"use_cla": True}, "use_cla = true"),
        (_COMMAND, {"expert_selection_fn": "top"}, 'expert_selection_fn = "top"; it should be softmax or sigmoid'),
        (_COMMAND, {"shared_expert_combination_strategy": "max"}, "it should be average or sum"),
        (_COMMAND, {"sliding_window_pattern": 0}, "sliding_window_pattern = 0; it should be at least 1"),
        (_COMMAND, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types = .*9 times dense or sparse"),
    ],
)
def test_what_transformers_does_not_compute_is_refused(
    published: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(folder_of(tmp_path, published | changes))


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("gpt-neo-125m", {"attention_types": [[["global"], 11]]}, "should be one for each of the 12 layers"),
        ("gpt-neo-125m", {"attention_types": [["global", 12]]}, "should be a list of pairs"),
        ("gpt-neo-125m", {"attention_types": [[["near"], 12]]}, "should be a list of pairs"),
        ("falcon-40b-instruct", {"num_kv_heads": 7}, "num_kv_heads = 7; it should be a divisor"),
        ("falcon-40b-instruct", {"parallel_attn": False}, "parallel_attn = false; it should be true where"),
        ("LFM3-1.7B", {"attention_bias": True}, "attention_bias = true; it should be false where"),
        ("LFM3-1.7B", {"layer_types": ["conv"] * 23}, "it should be a list of 24 times"),
    ],
)
def test_a_wrong_layer_is_refused_by_its_key(model: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, model, **changes)


def _indexers(config: ModelConfig) -> list[Indexer]:
    mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, LatentAttention)]
    return [mixer.indexer for mixer in mixers if mixer.indexer]


def test_three_layers_in_four_of_glm_5_2_share_a_choice(tmp_path: Path) -> None:
    own = _indexers(read(tmp_path, "GLM-5.2"))
    computed = _indexers(read(tmp_path, "GLM-5.2", indexer_types=None))
    letters = _indexers(read(tmp_path, "GLM-5", index_topk_pattern="FFF" + "SSSF" * 18 + "SSS"))
    plain = _indexers(read(tmp_path, "GLM-5"))

    assert own == computed == letters
    assert [i for i, one in enumerate(own) if not one.shared] == [0, 1, 2, *range(6, 78, 4)]
    assert plain == [Indexer(32, 128, 2048, interleaved=True)] * 78


@pytest.mark.parametrize("model", ["GLM-5", "DeepSeek-V3.2-Exp"])
def test_an_indexer_has_the_pairs_of_angles_that_the_file_says(model: str, tmp_path: Path) -> None:
    usual = _indexers(read(tmp_path, model))[0].interleaved
    kinds = ["deepseek_sparse_attention"] * len(_indexers(read(tmp_path, model)))
    other = _indexers(read(tmp_path, model, indexer_rope_interleave=not usual, layer_types=kinds))[0].interleaved

    assert (usual, other) == (model == "GLM-5", model != "GLM-5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": 5}, "indexed_attention for each layer"),
        ({"layer_types": ["full_attention"] * 78}, "indexed_attention for each layer"),
        ({"indexer_types": ["shared"] * 78}, "the first one full"),
        ({"index_topk_pattern": "FX" * 39}, "78 times full or shared"),
        ({"index_topk": 0}, "at least 1"),
        ({"index_head_dim": 48}, "from qk_rope_head_dim .64. to 4096"),
        ({"q_lora_rank": None}, "a rank"),
    ],
)
def test_an_indexer_that_cannot_be_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "GLM-5", **changes)


def _compressed(config: ModelConfig) -> list[CompressedAttention]:
    return [layer.mixer for layer in config.layers if isinstance(layer.mixer, CompressedAttention)]


def test_deepseek_v4_has_the_layers_that_either_key_names(tmp_path: Path) -> None:
    own = read(tmp_path, "DeepSeek-V4-Flash")
    plain, sparse, heavy = _compressed(own)[1:4]
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    types = [kinds[mixer.ratio] for mixer in _compressed(own)]
    named = read(tmp_path, "DeepSeek-V4-Flash", compress_ratios=None, layer_types=types, num_hash_layers=None,
                 mlp_layer_types=["hash_moe"] * 3 + ["moe"] * 40)  # fmt: skip

    assert plain == CompressedAttention(0, 1, 1024, window=128, groups=8, group_rank=1024)
    assert sparse == replace(
        plain, rope=2, back=3, ratio=4, overlapping=True, index_heads=64, index_dim=128, chosen=512
    )
    assert heavy == replace(plain, rope=2, back=3, ratio=128)
    assert [mixer.ratio for mixer in _compressed(own)] == [0, 0, *(4, 128) * 20, 4]
    assert own.layers == named.layers
    experts = [layer.feed_forward for layer in own.layers if isinstance(layer.feed_forward, Experts)]
    assert (
        [one.by_token for one in experts] == [one.correction is False for one in experts] == [True] * 3 + [False] * 40
    )
    assert own.hyper_connections == HyperConnections(4, 20, 1e-6)
    assert [mixer.ratio for mixer in _compressed(read(tmp_path, "DeepSeek-V4-Flash", compress_ratios=None))][:5] == [
        *(128, 128, 128, 4, 128)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0] * 42}, "43 times 0, 4, 128"),
        ({"compress_ratios": [0, 8] * 22}, "43 times 0, 4, 128"),
        ({"compress_ratios": None, "layer_types": ["full_attention"] * 43}, "43 times sliding_attention"),
        ({"mlp_layer_types": ["dense"] * 43}, "43 times hash_moe, moe"),
        ({"compress_rates": {"heavily_compressed_attention": 0}}, "1 to 1048576"),
        ({"head_dim": 500}, "a multiple of 16"),
        ({"qk_rope_head_dim": 63}, "that is even"),
        ({"o_groups": 5}, "a divisor of num_attention_heads"),
        ({"o_lora_rank": 1022}, "a multiple of 4"),
        ({"index_head_dim": 48}, "from 64, the rotated numbers, to 4096"),
        ({"index_topk": 0}, "1 to"),
        ({"hc_mult": 9}, "1 to 8"),
        ({"hc_sinkhorn_iters": 0}, "1 to 1000"),
        ({"swiglu_limit": 0}, "more than 0"),
        ({"scoring_func": "sigmoid"}, "sqrtsoftplus"),
        ({"num_key_value_heads": 2}, "1: no other is computed"),
    ],
)
def test_compressed_attention_that_cannot_be_computed_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "DeepSeek-V4-Flash", **changes)
