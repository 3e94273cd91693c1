"""config.json -> ModelConfig: one short function for each family, in a table by `model_type`.

A key that real checkpoints leave out has the default of transformers' configuration class (a missing key is not the
same as null: see keys.py). A switch that the executor does not compute raises a ConfigError that names key and value;
unknown keys are listed in one log line (switches.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forearm.config.number_formats import DTypeName
from forearm.errors import ConfigError
from forearm.model.families import (
    by_layer,
    experts,
    gemma,
    gpt_like,
    hybrid,
    latent,
    layer_norm,
    llama_like,
    mixtures,
    post_norm,
    switches,
)
from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.encoders.encoders import ENCODERS, modernbert_decoder
from forearm.model.families.indexed import axk2, deepseek_v4, dots3_note, hy_v4, minimax_m3, qwen4_exp
from forearm.model.families.keys import Keys, read_json, text_part
from forearm.model.families.own_code.families import OWN_CODE
from forearm.model.families.recurrent import delta, inkling, mamba2, recurrent_gemma, selective_scan, zamba, zaya
from forearm.model.families.rope import check_rope, with_rope
from forearm.model.generation import eos_ids, generation_keys

TORCH_MISSING = "transformers computes it where torch is installed too: pip install 'forearm[transformers]'"


def read_config(
    folder: Path,
    *,
    weight_dtype: DTypeName | None = None,
    max_model_len: int | None = None,
    allow_longer: bool = False,
    pooled: bool = False,
    own_head: bool = False,
    rope: dict[str, Any] | None = None,
) -> ModelConfig:
    """Return the model in `folder` (config.json and generation_config.json) for one weight dtype and maximum length.

    Both change the results: Gemma rounds a scale to the weights' dtype, and `dynamic` and `longrope` choose their
    angles by the length (rope.py). The end-of-text tokens are the union of those in both files.

    weight_dtype: None selects the checkpoint's. max_model_len: in tokens; None selects the model's own. allow_longer:
    permit a length beyond the model's own. pooled: the model computes vectors instead of text (pooling.py).
    own_head: the checkpoint has an output head. rope: changes to the rotary angles (rope.py).
    Raises: ConfigError naming the key and the value that are missing, wrong or not supported.
    """
    outer = read_json(folder / "config.json")
    model_type = outer.text("model_type")
    families = FAMILIES | ENCODERS if pooled else FAMILIES
    family = family_of(outer, families)
    if family is None:
        raise _unknown(outer, families, pooled)
    switches.check_architecture(outer, pooled)

    inner = text_part(outer) or outer
    if outer.flag("tie_word_embeddings"):  # a multimodal model's head is outside its text part
        inner.values["tie_word_embeddings"] = True
    elif own_head and "tie_word_embeddings" in outer:  # the text part's own value may be another
        inner.values["tie_word_embeddings"] = False
    inner = with_rope(inner, rope)
    dtype = switches.checkpoint_dtype(inner, outer, folder)
    inputs = FamilyInputs(inner, dtype, weight_dtype, max_model_len, allow_longer, pooled)
    config = computed(family, inputs)
    check_rope(inner, rope)
    ends = {token for keys in (inner, outer, generation_keys(folder)) for token in eos_ids(keys, config.vocab_size)}
    config = replace(
        config,
        model_type=model_type,
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=inner.optional_integer("bos_token_id"),
    )
    switches.check_sizes(config, inner)
    switches.check_unread(outer, inner)
    return config


def _unknown(outer: Keys, families: Mapping[str, Family], pooled: bool) -> ConfigError:
    """Return the error for a model without a family."""
    keys = outer if outer.text("model_type") not in families else text_part(outer) or outer
    near = difflib.get_close_matches(keys.text("model_type"), families, n=1, cutoff=0.5)
    nearest = f" (the nearest name is {near[0]})" if near else ""
    other = "Other types generate text, but are not served for pooling" if pooled else f"For any other, {TORCH_MISSING}"
    return keys.wrong("model_type", f"one of the {len(families)} types that forearm computes itself{nearest}. {other}")


def family_of(outer: Keys, families: Mapping[str, Family]) -> Family | None:
    """Return the family of a config.json, or of the text part of a multimodal one; None if there is none.

    A multimodal model may have a text part of another family (Mistral 3 with ministral3's): that part's type decides.
    """
    model_type = outer.text("model_type")
    if model_type not in families:
        return None
    text = text_part(outer)
    inner_type = model_type if text is None else text.text("model_type", model_type)
    return families.get(inner_type) or families.get(inner_type.removesuffix("_text"))


def computed(family: Family, inputs: FamilyInputs) -> ModelConfig:
    """Return the model of a family. Raises: ConfigError, also for sizes that do not divide each other."""
    switches.check_bounds(inputs.keys)
    try:
        return family(inputs)
    except ArithmeticError as problem:
        raise ConfigError(
            f"{inputs.keys.source}: its sizes do not fit together ({problem}); see hidden_size, num_attention_heads"
        ) from None


Family = Callable[[FamilyInputs], ModelConfig]
FAMILIES: dict[str, Family] = {
    "llama": llama_like.llama,
    "mistral": llama_like.mistral,
    "qwen2": llama_like.qwen2,
    "qwen3": llama_like.qwen3,
    "phi3": llama_like.phi3,
    "gemma2": gemma.gemma2,
    **dict.fromkeys(("gemma3_text", "gemma3"), gemma.gemma3),
    **dict.fromkeys(("gemma3n_text", "gemma3n"), gemma.gemma3n),
    **dict.fromkeys(("gemma4_text", "gemma4"), gemma.gemma4),
    "olmo2": post_norm.olmo2,
    "smollm3": llama_like.smollm3,
    "granite": llama_like.granite,
    "ernie4_5": llama_like.ernie4_5,
    "opt": gpt_like.opt,
    "mixtral": experts.mixtral,
    "qwen2_moe": experts.qwen2_moe,
    "qwen3_moe": experts.qwen3_moe,
    "olmoe": experts.olmoe,
    "glm4_moe": experts.glm4_moe,
    "ernie4_5_moe": experts.ernie4_5_moe,
    "gpt_oss": experts.gpt_oss,
    "granitemoe": experts.granite_moe,
    "granitemoeshared": experts.granite_moe,
    "phimoe": experts.phimoe,
    "internlm3": llama_like.internlm3,
    "ministral": llama_like.ministral,
    "arcee": llama_like.arcee,
    "seed_oss": llama_like.seed_oss,
    "helium": llama_like.helium,
    "glm": llama_like.glm,
    "gemma": gemma.gemma,
    "olmo3": post_norm.olmo3,
    "exaone4": post_norm.exaone4,
    "glm4": post_norm.glm4,
    "starcoder2": layer_norm.starcoder2,
    "nemotron": layer_norm.nemotron,
    "lfm2": hybrid.lfm2,
    "lfm2_moe": hybrid.lfm2_moe,
    "lfm3": hybrid.lfm3,
    "granitemoehybrid": mamba2.granite_hybrid,
    "bamba": mamba2.bamba,
    "falcon_h1": mamba2.falcon_h1,
    "nemotron_h": mamba2.nemotron_h,
    "mamba2": mamba2.mamba2,
    "zamba2": zamba.zamba2,
    "zaya": zaya.zaya,
    "mamba": selective_scan.mamba,
    "falcon_mamba": selective_scan.falcon_mamba,
    "jamba": selective_scan.jamba,
    "recurrent_gemma": recurrent_gemma.recurrent_gemma,
    **dict.fromkeys(("inkling_text", "inkling_mm_model"), inkling.inkling),
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_5_moe_text": hybrid.qwen3_5_moe,
    "phi": layer_norm.phi,
    "stablelm": layer_norm.stablelm,
    "olmo": layer_norm.olmo,
    "cohere": layer_norm.cohere,
    "cohere2": layer_norm.cohere2,
    "ministral3": llama_like.ministral3,
    "hunyuan_v1_dense": llama_like.hunyuan,
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": latent.deepseek_v3,
    "kimi_k2": latent.deepseek_v3,
    "deepseek_v32": latent.deepseek_v32,
    "glm4_moe_lite": latent.glm4_moe_lite,
    "glm_moe_dsa": latent.glm_moe_dsa,
    "minicpm3": latent.minicpm3,
    "kimi_linear": delta.kimi_linear,
    "bailing_hybrid": delta.bailing_hybrid,
    "gpt_neox": gpt_like.gpt_neox,
    "gpt_neox_japanese": gpt_like.gpt_neox_japanese,
    "gpt2": gpt_like.gpt2,
    "gpt_bigcode": gpt_like.gpt_bigcode,
    "gptj": gpt_like.gptj,
    "codegen": gpt_like.codegen,
    "gpt-sw3": gpt_like.gpt2,
    "gpt_neo": gpt_like.gpt_neo,
    "biogpt": gpt_like.biogpt,
    "falcon": gpt_like.falcon,
    "bloom": gpt_like.bloom,
    "mpt": layer_norm.mpt,
    "cohere2_moe": layer_norm.cohere2_moe,
    "flint": by_layer.flint,
    "apertus": llama_like.apertus,
    "llama4_text": experts.llama4,
    "iquestcoder": llama_like.llama,
    **dict.fromkeys(("emu3_text_model", "emu3"), llama_like.emu3),
    "cwm": llama_like.cwm,
    "jais2": layer_norm.jais2,
    "persimmon": layer_norm.persimmon,
    "modernbert-decoder": modernbert_decoder,
    "hyperclovax": post_norm.hyperclovax,
    "youtu": latent.youtu,
    "mistral4": latent.mistral4,
    "axk1": latent.axk1,
    "axk2": axk2.axk2,
    "nanochat": post_norm.nanochat,
    "vaultgemma": gemma.vaultgemma,
    "gemma4_unified_text": gemma.gemma4_unified,
    "gemma4_unified": gemma.gemma4_unified,
    "phi4_multimodal": llama_like.phi3,
    "minimax_m2": mixtures.minimax_m2,
    "minimax": hybrid.minimax,
    "hunyuan_v1_moe": mixtures.hunyuan_moe,
    "hy_v3": mixtures.hy_v3,
    "hy_v4": hy_v4.hy_v4,
    "dots1": mixtures.dots1,
    "dbrx": mixtures.dbrx,
    **dict.fromkeys(("dots3_note", "dots3_note_text"), dots3_note.dots3_note),
    "longcat_flash": mixtures.longcat_flash,
    "solar_open": mixtures.solar_open,
    "exaone_moe": mixtures.exaone_moe,
    "kolibri1": post_norm.kolibri1,
    "flex_olmo": post_norm.flex_olmo,
    "afmoe": mixtures.afmoe,
    "granite_swa": llama_like.granite_swa,
    "laguna": by_layer.laguna,
    "bitnet": post_norm.bitnet,
    "deepseek_v4": deepseek_v4.deepseek_v4,
    "olmo_hybrid": post_norm.olmo_hybrid,
    "mellum": by_layer.mellum,
    **dict.fromkeys(("minimax_m3_vl_text", "minimax_m3_vl"), minimax_m3.minimax_m3),
    **dict.fromkeys(("aria_text", "aria"), mixtures.aria),
    "granitemoe_swa": mixtures.granite_moe_swa,
    "mimo_v2_flash": by_layer.mimo_v2_flash,
    **dict.fromkeys(("step3p5", "step3p7"), by_layer.step3p5),
    **OWN_CODE,
    # multimodal models, for text alone: text_config's model_type comes first
    "llama4": experts.llama4,
    "mistral3": llama_like.mistral,
    "qwen2_vl": llama_like.qwen2_vl,
    "qwen2_5_vl": llama_like.qwen2_vl,
    "qwen3_vl": llama_like.qwen3_vl,
    "qwen3_vl_moe": experts.qwen3_vl_moe,
    "glm4v_text": post_norm.glm4v,
    "glm4v": post_norm.glm4v,
    "glm46v": post_norm.glm4v,
    "glm4v_moe": experts.glm4_moe,
    "internvl": llama_like.qwen2,
    **dict.fromkeys(("llava", "llava_next", "idefics3", "smolvlm", "deepseek_vl"), llama_like.llama),
    **dict.fromkeys(("deepseek_vl_hybrid", "janus", "llava_next_video", "perception_lm"), llama_like.llama),
    "llava_onevision": llama_like.qwen2,
    "ovis2": llama_like.qwen2,
    "exaone4_5": post_norm.exaone4,
    "lfm2_vl": hybrid.lfm2,
    "lfm3_vl": hybrid.lfm3,
    "minicpmv4_6": hybrid.qwen3_5,
    "aya_vision": layer_norm.cohere2,
    "cohere2_vision": layer_norm.cohere2,
    "fast_vlm": llama_like.qwen2,
    "glm_ocr": post_norm.glm_ocr,
    "glmga": post_norm.glm4v,
    "got_ocr2": llama_like.qwen2,
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), llama_like.granite),
    "idefics2": llama_like.mistral,
    "kimi_k25": latent.deepseek_v3,
    "deepseek_ocr2": latent.deepseek_ocr2,
    "lighton_ocr": llama_like.qwen3,
    "minicpm_ocr": hybrid.qwen3_5,
    "minicpmv4_7": hybrid.qwen3_5,
    "nemotron_h_omni": mamba2.nemotron_h,
    "pp_chart2table": llama_like.qwen2,
    "qianfan_ocr": llama_like.qwen3,
    "qwen2_audio": llama_like.qwen2,
    "video_llama_3": llama_like.qwen2,
    **dict.fromkeys(("video_llava", "vipllava", "voxtral", "glmasr"), llama_like.llama),
    **dict.fromkeys(("qwen2_5_omni", "qwen2_5_omni_thinker"), llama_like.qwen2_vl),
    "qwen3_omni_moe": experts.qwen3_moe,
    "qwen3_omni_moe_thinker": experts.qwen3_moe,
    "audioflamingo3": llama_like.qwen2,
    "musicflamingo": llama_like.qwen2,
    "moss_transcribe_diarize": llama_like.qwen3,
    "cohere_compass_text": layer_norm.cohere_compass,
    "cohere_compass": layer_norm.cohere_compass,
    "cosmos3_omni": llama_like.qwen3_vl,
    "cosmos3_edge": llama_like.cosmos3_edge,
    "fun_asr_nano": llama_like.qwen3,
    "fuyu": layer_norm.persimmon,
    **dict.fromkeys(("granite4_vision", "granite_docling"), llama_like.granite),
    "hunyuan_vl": llama_like.hunyuan_vl,
    "hyperclovax_vision_v2": post_norm.hyperclovax,
    "mllama_text_model": llama_like.mllama,
    "mllama": llama_like.mllama,
    "paddleocr_vl": llama_like.paddleocr_vl,
    "qwen3_asr": llama_like.qwen3,
    "vibevoice_asr": llama_like.qwen2,
    "qwen3_5": hybrid.qwen3_5,
    "qwen3_5_moe": hybrid.qwen3_5_moe,
    **dict.fromkeys(("qwen4_exp_text", "qwen4_exp"), qwen4_exp.qwen4_exp),
}
