"""Tensors of a checkpoint that nothing reads.

Those known to be of no use to text are ignored, those that would change the model are refused, and all others are
named in one log line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from forearm.errors import ConfigError
from forearm.model.checkpoint.names import stored_module
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.checkpoint.vector_names import VECTORS, layer_name
from forearm.model.families.config import Attention, Experts, ModelConfig

log = logging.getLogger(__name__)

# Tensors that a checkpoint may hold and that text does not need: parts of their names that follow a dot.
_CARRIED = (
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "rotary_embeddings.inv_freq",  # ESM's
    "attention.bias",  # causal masks that the first GPTs stored as tensors
    "attention.masked_bias",
    "attn.bias",
    "attn.masked_bias",
    "self_attn.bias",
    "self_attn.masked_bias",
    "position_ids",
    "vision_tower.",
    "vision_model.",
    "vit_large_projector.",  # Step 3.7's
    "vision_embed_tokens.",  # Fuyu's patches of pictures
    "visual.",
    "embed_vision.",
    "audio_tower.",
    "model.audio.",  # Inkling's
    "vision_encoder.",  # dots3-note's
    "audio_encoder.",
    "embed_audio.",
    "img_processor.",
    "embed_tokens_extend.",  # Phi-4-multimodal's vision and audio
    "talker.",  # Qwen Omni's speech
    "token2wav.",
    "code2wav.",
    "multi_modal_projector.",
    "model.connector.",
    "image_newline",
    "mtp.",
    "mtp_layers.",
    "mlp_AR.",  # PaddleOCR-VL's projector
    "vit.",  # HunyuanOCR's eyes
    "sam_model.",  # DeepSeek-OCR 2's
    "qwen2_model.",
    "model.projector.",
    "view_seperator",
    "vqmodel.",  # Emu3's codes of pictures
    "add_q_proj.",  # of layers of Cosmos 3 that draw pictures, beside those that read
    "add_k_proj.",
    "add_v_proj.",
    "to_add_out.",
    "norm_added_q.",
    "norm_added_k.",
    "k_norm_und_for_gen.",
    "input_layernorm_moe_gen.",
    "post_attention_layernorm_moe_gen.",
    "mlp_moe_gen.",
    "norm_moe_gen.",
    "q_scale",  # of a quantized KV cache
    "k_scale",
    "v_scale",
    "kv_scale",
    "k_proj.output_scale",
    "v_proj.output_scale",
    "altup.correct_output_scale",  # of a Gemma 3n whose config.json does not scale
    "rope_freqs.weight",  # in GGUF files: gguf_config.py has read them
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    "attn_rot_embd.weight",
    "ple_embedding.layer_multipliers",  # of Qwen4-Exp's hashes, which follow from config.json
    "ple_embedding.ngram_heads_vocab_sizes",
    "ple_embedding.ngram_heads_offsets",
    *(f"0.time_mix_v{i}." for i in range(3)),  # of RWKV-7's first layer, which mixes values with no other's
    "0.attn.v_lora.",
    "self_attn.slope_rate",  # of lightning attention, which follow from the number of heads
    "self_attn.query_decay",
    "self_attn.key_decay",
    "self_attn.diagonal_decay",
)
# Cosmos 3's eyes, which stand beside the model: beginnings of names.
_BESIDE = ("blocks.", "merger.", "patch_embed.", "pos_embed.", "deepstack_merger_list.")
_TEXT_PART = "language_model."  # in names of a multimodal model's tensors
# Heads for pretraining, which a pooling model does not compute; and T5's decoder and second name of the embedding.
_NOT_POOLED = (
    "cls.", "lm_head.", "pooler.dense.", "head.", "decoder.", "vocab_", "encoder.embed_tokens.",
    "lm_predictions.", "mask_predictions.", "pooler.weight", "pooler.bias", "predictions.", "sop_classifier.",
    "discriminator_predictions.", "generator_predictions.", "generator_lm_head.", "contact_head.",
)  # fmt: skip
HEADS = (
    "lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "thinker.lm_head.weight",
    "text_model.lm_head.weight", "output_projection.weight",
)  # fmt: skip
# Experts, what corrects their scores, and attention sinks, in a layer's names and in those of GGUF files.
_OF_EXPERTS = re.compile(
    r"\.(?:shared_)?experts?\.(?:.*\.)?(?:weight|bias|qweight|weight_packed|(?:gate_up|up|down)_proj(?:_blocks)?)$"
    r"|_(?:ex|shex)ps?\.(?:weight|bias)$|[._](?:e_score_correction_bias|expert_bias|exp_probs_b\.bias|sinks)$"
    r"|attn_sinks\.weight$"
)
_NUMBER_OF_EXPERT = re.compile(r"\.experts\.(\d+)\.")
# Stored for layers that share those of others, in a layer and in one of a GGUF file.
_OF_KEYS_AND_VALUES = (
    *(f"layers.%d.self_attn.{name}." for name in ("k_proj", "v_proj", "k_norm", "v_norm")),
    *(f"blk.%d.{name}." for name in ("attn_k", "attn_v", "attn_k_norm")),
)
_SHOWN = 5


def check_unread(
    folder: Path,
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    used: Collection[str],
    parts: Collection[TensorPart],
    *,
    predicted_layers: int = 0,
    ignore: bool = False,
) -> None:
    """Refuse tensors that would change the model if they were read, and name the others in one log line.

    used: names of tensors that are read. predicted_layers: number of layers after the model's own that predict further
    tokens (num_nextn_predict_layers) and are not computed. ignore: refuse nothing.
    Raises: ConfigError naming the tensors and the keys that may be wrong.
    """
    unread = unread_names(config, tensors, used)
    layer_of = re.compile(re.escape(stored_module(config, tensors, "layers")) + r"\.(\d+)\.")
    layers = {name: int(found[1]) for name in unread if (found := layer_of.match(name))}
    names = (layer_name(config.names, i) for i in range(len(config.layers)))
    computed = {int(name.removeprefix(f"{(VECTORS | config.names)['layers']}.").partition(".")[0]) for name in names}
    own = max(computed) + 1
    unread = [name for name in unread if not own <= layers.get(name, -1) < own + predicted_layers]
    unread = [name for name in unread if layers.get(name, own) in computed or layers.get(name, own) >= own]
    modules = {part.stored.rpartition(".")[0] for part in parts} | {name.rpartition(".")[0] for name in HEADS}
    biases = {name for name in unread if name.endswith(".bias") and name.rpartition(".")[0] in modules}
    # GPTQ's tools write a bias of zeros for every matrix.
    empty = {name for name in biases if not Files().mapping(tensors[name].path).bytes(tensors[name]).any()}
    unread = [name for name in unread if name not in empty]
    if not ignore:
        beyond = [name for name in unread if layers.get(name, -1) >= own]
        if beyond:
            raise ConfigError(
                f"{folder}: {some(beyond)} of layers beyond the {own} that the model is said to have; "
                f"{_remedy(folder, 'num_hidden_layers', 'block_count')}"
            )
        changing = [name for name in unread if _changes(name, modules, name in layers)]
        if changing:
            raise ConfigError(
                f"{folder}: {some(changing)} a bias or norm of what is computed, or an expert, and not in the model as "
                f"it is described; {_remedy(folder, 'model_type, attention_bias, mlp_bias', 'general.architecture')}"
            )
    if unread:
        log.warning("%s: %s in the files but not in the model, and left out", folder, some(unread))


def some(names: list[str]) -> str:
    """Return the first names, the number of further ones, and the verb: "a, b and 3 more are"."""
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        return f"{shown} and {len(names) - _SHOWN} more are"
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def unread_names(config: ModelConfig, tensors: Collection[str], used: Collection[str]) -> list[str]:
    """Return the names of tensors that nothing reads, without those known to be of no use to text."""
    tied = set(HEADS) if config.tied_head else set()
    shared = [
        i
        for i, layer in enumerate(config.layers)
        if isinstance(layer.mixer, Attention) and layer.mixer.shared_from is not None
    ]
    unused = [name % i for i in shared for name in _OF_KEYS_AND_VALUES]
    carried = tuple(f".{name}" for name in (*_CARRIED, *unused, *(_NOT_POOLED if config.pooled else ())))
    names = set(tensors) - set(used) - tied
    if _TEXT_PART in stored_module(config, tensors, "layers"):  # what stands beside it sees or hears
        names = {name for name in names if _TEXT_PART in name or "lm_head." in name}
    names = {name for name in names if not name.startswith(_BESIDE)}
    if skipping := [e for e in (layer.feed_forward for layer in config.layers) if isinstance(e, Experts) and e.zeros]:
        # transformers makes and writes gates of experts that pass rows on
        numbers = {name: int(found[1]) for name in names if (found := _NUMBER_OF_EXPERT.search(name))}
        names = {name for name in names if not 0 <= numbers.get(name, -1) - skipping[0].count < skipping[0].zeros}
    return sorted(name for name in names if not any(known in f".{name}" for known in carried))


def _changes(name: str, modules: Collection[str], in_layer: bool) -> bool:
    """Return whether a tensor would change the results: a bias or norm of what is computed, or an expert."""
    module, _, kind = name.rpartition(".")
    if module in modules and kind == "bias":
        return True
    norm = kind in ("weight", "bias") and "norm" in module.rpartition(".")[2].lower()
    return in_layer and (norm or _OF_EXPERTS.search(name) is not None)


def _remedy(folder: Path, config_keys: str, gguf_keys: str) -> str:
    where = f"its key {gguf_keys}" if folder.suffix == ".gguf" else f"{config_keys} in config.json"
    return f"see {where}, download it again, or leave them out with --ignore-unread-tensors"
