"""Makes a ModelConfig from a .gguf file's metadata: translates it to config.json's keys for the families' functions.

llama.cpp's files differ from config.json's models in three points. The q and k rows of some architectures are in the
order of interleaved angles, so the angles here are interleaved; q and k are permuted alike, and their products do not
change. Weights of norms of 1 + weight contain the 1. Llama 3's stretched angles are stored as a tensor of factors.
Source: convert_hf_to_gguf.py and src/llama-model.cpp (load_hparams, llama_model_rope_type) of ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

from forearm.errors import ConfigError
from forearm.model.families import switches
from forearm.model.families.config import DTypeName, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.families import FAMILIES, computed
from forearm.model.families.generation import eos_ids
from forearm.model.families.keys import Keys
from forearm.model.families.overrides import check_rope, with_rope
from forearm.model.gguf.gguf import Gguf
from forearm.model.gguf.gguf_codes import FLOATS
from forearm.model.gguf.gguf_metadata import GgufMetadata

# Architectures with the families (families.py) of their files; if there are experts, the last one.
ARCHITECTURES = {
    "llama": ("llama", "mistral", "mixtral"), "gemma3": ("gemma3_text",), "qwen2moe": ("qwen2_moe",),
    "qwen3moe": ("qwen3_moe",), "olmoe": ("olmoe",),
    **{name: (name,) for name in ("qwen2", "qwen3", "phi3", "gemma2", "olmo2", "smollm3", "granite", "ernie4_5")},
    "lfm2": ("lfm2",), "gpt-oss": ("gpt_oss",),
}  # fmt: skip
_WITH_EXPERTS = ("llama", "qwen2moe", "qwen3moe", "olmoe", "gpt-oss")
_INTERLEAVED = ("llama", "smollm3", "granite")  # llama.cpp rotates neighbouring values; its converter permutes q and k

_NAMES = {
    "embed": "token_embd", "final_norm": "output_norm", "head": "output", "layers": "blk", "q": "attn_q",
    "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    "input_norm": "attn_norm", "post_attention_norm": "post_attention_norm", "pre_mlp_norm": "ffn_norm",
    "post_mlp_norm": "post_ffw_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "router": "ffn_gate_inp",
    "shared_gate": "ffn_gate_inp_shexp",
    **{f"experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"shared.{part}": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}  # fmt: skip
_LFM2 = {
    "final_norm": "token_embd_norm", "conv": "shortconv.conv", "conv_out": "shortconv.out_proj",
    **{f"conv_{part}": "shortconv.in_proj" for part in ("b", "c", "x")},
}  # fmt: skip
_GPT_OSS = {"pre_mlp_norm": "post_attention_norm", "sinks": "attn_sinks.weight"}
_PHI3 = {"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv", "gate": "ffn_up", "up": "ffn_up"}

# Tokens that end a turn, for files whose keys name only the token that ends a text.
# Source: llama-vocab.cpp, special_eog_ids.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>",
}  # fmt: skip
_HARMONY_ENDS = {"<|return|>", "<|call|>", "<|endoftext|>"}  # gpt-oss': <|end|> is between messages of a turn
_CONTROL = 3  # the value of tokenizer.ggml.token_type for control tokens


def gguf_config(
    gguf: Gguf,
    *,
    weight_dtype: DTypeName | None = None,
    max_model_len: int | None = None,
    allow_longer: bool = False,
    rope: dict[str, Any] | None = None,
) -> ModelConfig:
    """Return the model of a .gguf file for one weight dtype and maximum length, like families.read_config.

    Raises: ConfigError naming the architecture or the key and value that is missing, wrong or not supported.
    """
    metadata = GgufMetadata.of(gguf, ARCHITECTURES)
    model_type, values = _values(metadata)
    keys = with_rope(Keys(values, str(gguf.path)), rope)
    inputs = FamilyInputs(keys, _dtype(gguf), weight_dtype, max_model_len, allow_longer)
    config = computed(FAMILIES[model_type], inputs)
    check_rope(keys, rope)
    config = replace(
        config,
        model_type=model_type,
        names=_NAMES | {"phi3": _PHI3, "lfm2": _LFM2, "gpt_oss": _GPT_OSS}.get(model_type, {}),
        norm_plus_one=False,
        ropes=tuple(_as_stored(metadata, rope) for rope in config.ropes),
        eos_token_ids=_ends(metadata.keys, config.vocab_size),
        bos_token_id=metadata.keys.optional_integer("tokenizer.ggml.bos_token_id"),
    )
    switches.check_sizes(config, inputs.keys)
    metadata.check_unread()
    return config


def _values(metadata: GgufMetadata) -> tuple[str, dict[str, Any]]:
    """Return the name of the family, and the metadata as config.json's keys for it."""
    heads, hidden = metadata.size("attention.head_count"), metadata.size("embedding_length")
    head_dim = metadata.size("attention.key_length", max(hidden // heads, 1))
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise metadata.wrong("attention.value_length", f"the same as attention.key_length ({head_dim})")
    if not metadata.has("token_embd.weight"):
        raise ConfigError(f"{metadata.gguf.path} has no tensor token_embd.weight; is it a language model?")
    values: dict[str, Any] = {
        "vocab_size": metadata.gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "head_dim": head_dim,
        "num_hidden_layers": metadata.integer("block_count"),
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size("attention.head_count_kv", heads, zeros=metadata.architecture == "lfm2"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.size("context_length"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "rope_theta": metadata.number("rope.freq_base", 1e6 if metadata.architecture == "gemma3" else 1e4),
        "partial_rotary_factor": metadata.size("rope.dimension_count", head_dim) / head_dim,
        "mlp_bias": metadata.has("blk.0.ffn_up.bias"),
    }
    bias = metadata.has("blk.0.attn_q.bias")
    values["use_bias" if metadata.architecture == "ernie4_5" else "attention_bias"] = bias
    _scaling(metadata, values)
    return _family(metadata, values), values


def _scaling(metadata: GgufMetadata, values: dict[str, Any]) -> None:
    """Add config.json's rope_scaling to the values."""
    kind = metadata.text("rope.scaling.type", "none")
    original = metadata.integer("rope.scaling.original_context_length", values["max_position_embeddings"])
    attention = metadata.number("rope.scaling.attn_factor", 1.0)
    if metadata.has("rope_factors_long.weight"):
        values["original_max_position_embeddings"] = original
        values["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": metadata.factors("rope_factors_long.weight"),
            "short_factor": metadata.factors("rope_factors_short.weight"),
            "attention_factor": attention,
        }
    elif kind == "yarn":
        factor = metadata.number("rope.scaling.factor")
        values["original_max_position_embeddings"] = original
        values["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": attention * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
            "beta_fast": metadata.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    elif kind == "linear":
        values["rope_scaling"] = {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
    elif kind != "none":
        raise metadata.wrong("rope.scaling.type", "none, linear, yarn or longrope with its factors")


def _family(metadata: GgufMetadata, values: dict[str, Any]) -> str:
    """Add the keys that only one architecture has; return its name among the families."""
    architecture, heads = metadata.architecture, values["num_attention_heads"]
    wide_scale = values["hidden_size"] // heads  # the 27B models' queries
    if experts := metadata.integer("expert_count", 0):
        return _family_of_experts(metadata, values, experts)
    if architecture == "llama" and metadata.integer("attention.sliding_window", 0):
        values["sliding_window"] = metadata.integer("attention.sliding_window")
        return "mistral"
    if architecture == "phi3":
        values["sliding_window"] = metadata.integer("attention.sliding_window", 0) or None
        values.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
    elif architecture == "gemma2":
        values["sliding_window"] = metadata.integer("attention.sliding_window", 4096)
        values["attn_logit_softcapping"] = metadata.number("attn_logit_softcapping", 50.0)
        values["final_logit_softcapping"] = metadata.number("final_logit_softcapping", 30.0)
        values["query_pre_attn_scalar"] = wide_scale if values["num_hidden_layers"] == 46 else values["head_dim"]
    elif architecture == "gemma3":
        values["sliding_window"] = metadata.integer("attention.sliding_window")
        values["sliding_window_pattern"] = metadata.integer("attention.sliding_window_pattern", 6)
        values["rope_local_base_freq"] = metadata.number("rope.freq_base_swa", 1e4)
        values["final_logit_softcapping"] = metadata.number("final_logit_softcapping", 0.0)
        values["query_pre_attn_scalar"] = wide_scale if values["num_hidden_layers"] == 62 else values["head_dim"]
        return "gemma3_text"
    elif architecture == "lfm2":
        values |= {"norm_eps": values["rms_norm_eps"], "block_auto_adjust_ff_dim": False}
        values["conv_L_cache"] = metadata.integer("shortconv.l_cache")
        each = metadata.keys.get("lfm2.attention.head_count_kv")
        if isinstance(each, list):
            values["layer_types"] = [switches.FULL if one else "conv" for one in each]
    elif architecture == "granite":
        values["embedding_multiplier"] = metadata.number("embedding_scale")
        values["residual_multiplier"] = metadata.number("residual_scale")
        values["attention_multiplier"] = metadata.number("attention.scale")
        values["logits_scaling"] = metadata.number("logit_scale")
    return architecture


def _family_of_experts(metadata: GgufMetadata, values: dict[str, Any], experts: int) -> str:
    """Add the keys of layers with experts; return the family's name.

    Source of norm_topk_prob: llama.cpp's graphs divide by the sum for Qwen3 and Mixtral, not for Qwen2 and OLMoE.
    """
    if metadata.architecture not in _WITH_EXPERTS:
        raise metadata.wrong("expert_count", f"0: experts are read in {', '.join(_WITH_EXPERTS)}")
    values["num_local_experts"] = values["num_experts"] = experts
    values["num_experts_per_tok"] = metadata.integer("expert_used_count")
    values["norm_topk_prob"] = metadata.architecture == "qwen3moe"
    width = metadata.integer("expert_feed_forward_length", values["intermediate_size"])
    values["moe_intermediate_size"] = values["intermediate_size"] = width
    if metadata.architecture == "qwen2moe":
        values["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length")
        values["qkv_bias"] = values.pop("attention_bias")
    if metadata.architecture == "gpt-oss":
        values["sliding_window"] = metadata.integer("attention.sliding_window", 128)
        values.get("rope_scaling", {})["truncate"] = False  # no key tells it
    return ARCHITECTURES[metadata.architecture][-1]


def _as_stored(metadata: GgufMetadata, rope: Rope) -> Rope:
    """Return the angles in the order of the stored rows, stretched by the file's factors."""
    if metadata.architecture in _INTERLEAVED:
        rope = replace(rope, interleaved=True)
    if metadata.has("rope_freqs.weight"):
        factors = metadata.factors("rope_freqs.weight")
        if len(factors) != len(rope.inv_freq) or min(factors) <= 0:
            raise ConfigError(
                f"{metadata.gguf.path}: rope_freqs.weight should be {len(rope.inv_freq)} positive factors"
            )
        rope = replace(rope, inv_freq=(rope.inv_freq / factors).astype("float32"))
    return rope


def _dtype(gguf: Gguf) -> DTypeName:
    """Return the dtype of most bytes of float matrices.

    float32 does not count in a quantized file; float16 stands for a file in which no float matrix counts.
    """
    sizes: Counter[DTypeName] = Counter()
    for tensor in gguf.tensors.values():
        if len(tensor.shape) == 2 and tensor.dtype in FLOATS:
            sizes[tensor.float_dtype] += tensor.end - tensor.begin
    if is_quantized(gguf):
        sizes["float16"] += 1
        del sizes["float32"]
    return sizes.most_common(1)[0][0] if sizes else "float16"


def is_quantized(gguf: Gguf) -> bool:
    return any(len(tensor.shape) == 2 and tensor.dtype not in FLOATS for tensor in gguf.tensors.values())


def _ends(keys: Keys, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a text or a turn: those that the keys name, and the control tokens in _ENDS."""
    found = {i for name in ("eos", "eot", "eom") for i in eos_ids(keys, vocab_size, f"tokenizer.ggml.{name}_token_id")}
    tokens = keys.get("tokenizer.ggml.tokens") or []
    types = keys.get("tokenizer.ggml.token_type") or []
    ends = _HARMONY_ENDS if "<|return|>" in tokens and "<|call|>" in tokens else _ENDS
    kinds = enumerate(zip(tokens, types, strict=False))  # a file may have types for some tokens or for none
    found |= {i for i, (token, kind) in kinds if kind == _CONTROL and token in ends}
    return tuple(sorted(found))
