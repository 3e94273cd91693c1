"""Makes a ModelConfig from a .gguf file's metadata: translates it to config.json's keys for the families' functions.

llama.cpp's files differ from config.json's models in three points. The q and k rows of some architectures are in the
order of interleaved angles, so the angles here are interleaved; q and k are permuted alike, and their products do not
change. Bamba's get their own order back: the converter reorders whole heads, of which half is rotated, so llama.cpp
rotates other pairs of values. Weights of norms of 1 + weight contain the 1. Llama 3's stretched angles are stored as a
tensor of factors.
Source: convert_hf_to_gguf.py and src/llama-model.cpp (load_hparams, llama_model_rope_type) of ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from forearm.config.number_formats import DTypeName
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import WHOLE
from forearm.model.families import switches
from forearm.model.families.config import Attention, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.encoders import encoders
from forearm.model.families.encoders.bert_like import norm_names
from forearm.model.families.families import FAMILIES, computed
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import GatedDelta
from forearm.model.families.rope import check_rope, with_rope
from forearm.model.generation import eos_ids
from forearm.model.gguf.gguf import Gguf
from forearm.model.gguf.gguf_architectures import ARCHITECTURES, NAMES, GgufArchitecture
from forearm.model.gguf.gguf_codes import FLOATS
from forearm.model.gguf.gguf_metadata import GgufMetadata
from forearm.model.gguf.gguf_pooling import ENCODERS

# Tokens that end a turn, for files whose keys name only the token that ends a text.
# Source: llama-vocab.cpp, special_eog_ids.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>",
    "<turn|>",
}  # fmt: skip
_HARMONY_ENDS = {"<|return|>", "<|call|>", "<|endoftext|>"}  # gpt-oss': <|end|> is between messages of a turn
_CONTROL = 3  # the value of tokenizer.ggml.token_type for control tokens


def gguf_config(
    gguf: Gguf,
    *,
    weight_dtype: DTypeName | None = None,
    max_model_len: int | None = None,
    allow_longer: bool = False,
    pooled: bool = False,
    rope: dict[str, Any] | None = None,
) -> ModelConfig:
    """Return the model of a .gguf file for one weight dtype and maximum length, like families.read_config.

    pooled: the model computes vectors instead of text (gguf_pooling.py).
    Raises: ConfigError naming the architecture or the key and value that is missing, wrong or not supported.
    """
    metadata = GgufMetadata.of(gguf, ARCHITECTURES)
    own = ARCHITECTURES[metadata.architecture]
    values = _values(metadata)
    switches.check_bounds(Keys(values, str(gguf.path)))  # before lists with a value for each layer are made
    model_type = own.own(metadata, values) or own.families[0]
    keys = with_rope(Keys(values, str(gguf.path)), rope)
    inputs = FamilyInputs(keys, _dtype(gguf), weight_dtype, max_model_len, allow_longer, pooled)
    config = computed((FAMILIES | encoders.ENCODERS)[model_type], inputs)
    if pooled:
        metadata.keys.get(f"{metadata.architecture}.pooling_type")  # marks it as read: gguf_pooling.py reads it
        config = _seen(metadata, config)
    check_rope(keys, rope)
    config = replace(
        config,
        model_type=model_type,
        names=_names(metadata, own, config),
        norm_plus_one=False,
        layers=tuple(
            replace(one, mixer=replace(one.mixer, tiled=own.tiled)) if isinstance(one.mixer, GatedDelta) else one
            for one in config.layers
        ),
        ropes=tuple(_as_stored(metadata, rope, config.head_dim) for rope in config.ropes),
        eos_token_ids=_ends(metadata.keys, config.vocab_size),
        bos_token_id=metadata.keys.optional_integer("tokenizer.ggml.bos_token_id"),
    )
    switches.check_sizes(config, inputs.keys)
    metadata.check_unread()
    return config


def _seen(metadata: GgufMetadata, config: ModelConfig) -> ModelConfig:
    """Return a pooling model whose tokens see those on both sides if the file says so: EuroBERT, Qwens made encoders.

    Raises: ConfigError if its layers have windows, because files do not say how far these reach to the other side.
    """
    if config.bidirectional or metadata.flag("attention.causal", metadata.architecture not in ENCODERS):
        return config
    if any(isinstance(one.mixer, Attention) and one.mixer.window for one in config.layers):
        raise metadata.wrong("attention.causal", "true: windows to both sides are not supported in this architecture")
    return replace(config, bidirectional=True)


def predicted_layers(gguf: Gguf) -> int:
    """Return the number of layers behind the model's own that predict further tokens, and are not computed."""
    return GgufMetadata.of(gguf, ARCHITECTURES).predicted_layers()


def _values(metadata: GgufMetadata) -> dict[str, Any]:
    """Return the metadata that most architectures have as config.json's keys."""
    varies = ARCHITECTURES[metadata.architecture].varies
    heads = (metadata.largest if "attention.head_count" in varies else metadata.integer)("attention.head_count")
    hidden = metadata.size("embedding_length")
    if heads < 1 and metadata.architecture not in ("mamba", "mamba2", "rwkv7"):  # which have no attention
        raise metadata.wrong("attention.head_count", "at least 1")
    heads = max(heads, 1)
    head_dim = metadata.size("attention.key_length", max(hidden // heads, 1))
    apart = "attention.value_length" in varies or metadata.integer("attention.kv_lora_rank", 0)
    if not apart and metadata.integer("attention.value_length", head_dim) != head_dim:
        raise metadata.wrong("attention.value_length", f"the same as attention.key_length ({head_dim})")
    if not metadata.has("token_embd.weight"):
        raise ConfigError(f"{metadata.gguf.path} has no tensor token_embd.weight; is it a language model?")
    rotated = head_dim if "rope.dimension_count" in varies else metadata.size("rope.dimension_count", head_dim)
    eps = metadata.optional_number("attention.layer_norm_epsilon")
    eps = metadata.number("attention.layer_norm_rms_epsilon", eps)

    def size(key: str, default: int | None = None) -> int:
        """Return a size that all layers share; 1 for one that varies, which the architecture's `own` reads."""
        return 1 if key in varies else metadata.integer(key, default, zeros=True) or 1

    values: dict[str, Any] = {
        "vocab_size": metadata.gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "head_dim": head_dim,
        "num_hidden_layers": metadata.integer("block_count") - metadata.predicted_layers(),
        "intermediate_size": size("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        **dict.fromkeys(("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon"), eps),
        "max_position_embeddings": metadata.size("context_length"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "rope_theta": metadata.number(
            "rope.freq_base", 1e6 if metadata.architecture in ("gemma3", "gemma-embedding") else 1e4
        ),
        "partial_rotary_factor": rotated / head_dim,
        "mlp_bias": metadata.has("blk.0.ffn_up.bias"),
        "attention_bias": metadata.any_layer("attn_q.bias") or metadata.any_layer("attn_qkv.bias"),
    }
    _scaling(metadata, values)
    return values


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


def _names(metadata: GgufMetadata, own: GgufArchitecture, config: ModelConfig) -> dict[str, str]:
    """Return the names of the tensors, by ModelConfig.names; some tensors may be joint or split, which they tell."""
    names = NAMES | dict(own.names)
    for key, stored in config.names.items():
        if re.fullmatch(r"layers\.\d+", key):  # of layers behind one that is left out
            names[key] = stored.replace("layers.", "blk.")
    if any(_restored(metadata, rope, config.head_dim) for rope in config.ropes):
        names |= {"q": "attn_q[halves]", "k": "attn_k[halves]"}
    if metadata.has("blk.0.attn_qkv.weight") and not config.has_states:
        names |= dict.fromkeys("qkv", "attn_qkv")
    for key in own.rows:
        _, bracket, place = config.names[key].partition("[")
        names[key] += bracket + place
    if config.distance_bias == "each_layer":  # umT5's
        names["attention_bias"] = "attn_rel_b"
    if config.parallel_residual and not metadata.has("blk.0.ffn_norm.weight"):
        names["pre_mlp_norm"] = names["input_norm"]
    if metadata.architecture == "jina-bert-v2" and not metadata.has("blk.0.ffn_gate.weight"):
        names["gate"] = names["up"]  # the rows of both, in this order
    if metadata.has("blk.0.attn_norm_2.weight") and not config.has_states:  # Falcon's, of attention alone
        names["input_norm"] = "attn_norm_2"
    if metadata.any_layer("ffn_gate_up_exps.weight"):
        names |= {"experts.gate": "ffn_gate_up_exps[0]", "experts.up": "ffn_gate_up_exps[1]"}
    joint = metadata.any_layer("attn_kv_b.weight")  # the rows of both, head by head
    for key, split in (("k_up", "attn_k_b[all]"), ("v_up", "attn_v_b[all]")):
        names[key] = "attn_kv_b" if joint else split
    return norm_names(names, len(config.layers)) if config.norm_residual == "all" else names


def _restored(metadata: GgufMetadata, rope: Rope, head_dim: int) -> bool:
    """Return whether rows of q and k get the order back that they had before the conversion: Bamba's."""
    return metadata.architecture == "granitehybrid" and 2 * len(rope.inv_freq) < head_dim


def _as_stored(metadata: GgufMetadata, rope: Rope, head_dim: int) -> Rope:
    """Return the angles in the order of the stored rows, stretched by the file's factors."""
    if ARCHITECTURES[metadata.architecture].interleaved and not _restored(metadata, rope, head_dim):
        rope = replace(rope, interleaved=True)
    if metadata.has("rope_freqs.weight") and metadata.architecture not in ("gemma4", "step35"):
        factors = metadata.factors("rope_freqs.weight")
        if len(factors) != len(rope.inv_freq) or not all(0 < factor < math.inf for factor in factors):
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
    stored = (tensor.dtype for tensor in gguf.tensors.values() if len(tensor.shape) == 2)
    return any(dtype not in FLOATS and dtype not in WHOLE for dtype in stored)


def _ends(keys: Keys, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a text or a turn: those that the keys name, and the control tokens in _ENDS."""
    found = {i for name in ("eos", "eot", "eom") for i in eos_ids(keys, vocab_size, f"tokenizer.ggml.{name}_token_id")}
    tokens, types = (keys.get(f"tokenizer.ggml.{key}") or [] for key in ("tokens", "token_type"))
    for key, value in (("tokens", tokens), ("token_type", types)):
        if not isinstance(value, list):
            raise keys.wrong(f"tokenizer.ggml.{key}", "a list with a value for each token")
    ends = _HARMONY_ENDS if "<|return|>" in tokens and "<|call|>" in tokens else _ENDS
    kinds = enumerate(zip(tokens, types, strict=False))  # a file may have types for some tokens or for none
    found |= {i for i, (token, kind) in kinds if kind == _CONTROL and token in ends}
    return tuple(sorted(found))
