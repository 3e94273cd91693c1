"""Tiny random models of every generating model type of transformers.

`python -m tests.model.transformers_types [TYPE ...]` compares the executor's tokens with those of transformers'
generate, for all types (15 minutes at low priority, on two cores that others used) or for those named, and writes what
it found to the table of docs/models.md and to transformers_types.json, from which the table is made. The native
executor computes types of native families, the transformers executor all others.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tools import models_page
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from forearm.array_types import Int32Array
from forearm.config.engine_config import EngineConfig
from forearm.engine.batch import Batch, int32
from forearm.engine.executor import NativeExecutor
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.split_engines import memory_of
from forearm.engine.start import Cores, load
from forearm.errors import ConfigError
from forearm.model.families.families import FAMILIES
from forearm.model.modules.architecture import REFUSED

VOCABULARY, PROMPT_TOKENS, NEW_TOKENS = 128, 21, 32
_LONGEST = 160  # longest reason, in characters
PAGED = "paged attention"
MEMORY_BYTES, SECONDS = 8 << 30, 180  # limit for the process of one type in `main`

# Small sizes under every name that configurations use; a configuration is given the names that it has.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "n_embed"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4), "num_key_value_heads": 2, "head_dim": 16,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 256), "sliding_window": 8,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "moe_num_shared_experts", "first_k_dense_replace"), 1),
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "rotary_dim": 8, "state_size": 16, "time_step_rank": 8, "expand": 2,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_d_ssm": 128,
    "num_global_key_value_heads": 2, "global_head_dim": 16, "linear_num_heads": 4, "linear_head_dim": 16,
    "num_expert_group": 1,
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96), "ngram_vocab_size_base": 64, "pad_token_id": 0,
}  # fmt: skip
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MLA = {"num_key_value_heads": 4}
_MLA_ROTATED = _MLA | {"head_dim": 8}
# Fewer keys than the prompts have; with few heads many scores are 0, and which of their keys are chosen is left open.
_INDEX = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 12}
_DOTS3 = {
    **_MLA, **_INDEX, "num_hidden_layers": 3, "shared_experts_intermediate_size": 32, "per_layer_config": {2: {
        "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 24, "kv_lora_rank": 32, "head_dim": 24,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 16, "v_head_dim": 20,
    }},
}  # fmt: skip
_HEADS = {"head_dim": 16, "num_key_value_heads": 2}
_LINEAR_THEN_FULL = {"layer_types": ["linear_attention", "full_attention"]}
_QWEN4_TEXT = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "hc_lowrank": 8,
    "indexer_n_heads": 16,  # one of them at least scores each block more than 0: of equal scores any may be chosen
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1],
    "ple_embed_dim": 32,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "split_ngram_parts": 3,
}
_WRITTEN_AS_COMPUTED = ("hy_v4",)  # see made_cases.py
# Encoders that generate text only when configured as decoders, with causal attention.
_BERTS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip
# Values that a model type needs in addition to the sizes above, or instead of them.
_OTHER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("minicpm3", "glm4_moe_lite"), _MLA),
    **dict.fromkeys(("deepseek_v3", "longcat_flash", "youtu", "axk1"), _MLA_ROTATED),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2"), _MLA_ROTATED | _INDEX),
    "deepseek_v4": {
        **_INDEX,
        "index_topk": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "partial_rotary_factor": 0.25,
        "num_hidden_layers": 3,
        "o_groups": 2,
        "o_lora_rank": 16,
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    },
    "dots3_note_text": _DOTS3,
    "minimax_m3_vl_text": {
        **_HEADS,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 32,
        "index_topk_blocks": 1,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse"],
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 32,
    },
    "deepseek_v2": _MLA | {"num_experts_per_tok": 2},
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _LINEAR_THEN_FULL),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "nemotron"), _HEADS),
    "dots1": {"head_dim": 16, "num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    # transformers writes the three convolutions of OLMo Hybrid in equal parts, which are right for equal sizes alone
    "olmo_hybrid": _LINEAR_THEN_FULL | {"linear_num_key_heads": 4},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_rms_norm": True},
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "time_step_min": 1e-30,
        "n_group": 1,
        "topk_group": 1,
    },
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "use_mamba_kernels": False},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 1},
    "zaya": {"num_experts_per_tok": 1},
    "inkling_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 1,
        "swa_head_dim": 32,
        "sliding_window_size": 8,
        "rel_extent": 16,
        "log_scaling_n_floor": 12,
        "layer_types": ["hybrid_sliding", "hybrid"],
        "mlp_layer_types": ["dense", "sparse"],
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 24},
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), _LINEAR_THEN_FULL | _MLA_ROTATED),
    **{name: {"is_decoder": True} for name in _BERTS},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": 1e4} for name in ("sliding_attention", "full_attention")
        },
    },
    "emu3": {"text_config": _TOKENS},
    "mllama": {"text_config": _TOKENS | {"num_hidden_layers": 3, "cross_attention_layers": [1]}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}, "ffn_config": {"moe_top_k": 2}},
    "dots3_note": {
        "text_config": _DOTS3 | _TOKENS,
        "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"num_key_value_heads": 4, "adapter_input_size": 64, "adapter_out_dim": 64},
    },
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "altup_num_inputs": 2,
        "laurel_rank": 8,
    },
    **{name: {"text_config": _LINEAR_THEN_FULL} for name in ("qwen3_5", "qwen3_5_moe")},
    "qwen4_exp": {"text_config": _QWEN4_TEXT | _TOKENS},
    "qwen4_exp_text": _QWEN4_TEXT,
    "xlstm": {"embedding_dim": 64, "num_blocks": 2, "num_heads": 4, "chunk_size": 16, "qk_dim_factor": 1.0},
    "zamba": {
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "time_step_min": 1e-30,
        "mamba_d_state": 16,
        "n_mamba_heads": 4,
        "chunk_size": 16,
        "use_mamba_kernels": False,
    },
}


def tiny_config(model_type: str, **changes: Any) -> PretrainedConfig:
    """Return a small configuration of a model type. changes: values of its own in place of these."""
    made = CONFIG_MAPPING[model_type]
    given = _sizes(made().to_dict()) | _TOKENS
    for name, value in _OTHER.get(model_type, {}).items():
        given[name] = given[name] | value if isinstance(given.get(name), dict) else value
    return made(**given | changes)


def _sizes(known: dict[str, Any]) -> dict[str, Any]:
    """Return small sizes for a configuration and for those inside it, of text, images or sound."""
    found = {name: value for name, value in _SIZES.items() if known.get(name) is not None}
    for name, value in known.items():
        if name.endswith("_config") and isinstance(value, dict):
            found[name] = _sizes(value) | ({"model_type": value["model_type"]} if "model_type" in value else {})
    return found


def save_tiny(model_type: str, folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """Write a tiny random model to `folder` and return it; its matrices are large enough that tokens vary. changes:
    tiny_config's.
    """
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, **changes)).float().eval()
    for values in model.parameters():
        if values.dim() >= 2:
            torch.nn.init.normal_(values, std=0.1)
    model.save_pretrained(folder, save_original_format=model_type not in _WRITTEN_AS_COMPUTED)
    if model.config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:  # this class keeps the text part only
        tiny_config(model_type, **changes).save_pretrained(folder)
    return model


def save_words(folder: Path) -> None:
    """Write a tokenizer whose tokens are the words w0, w1 and so on."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder)


def reference_tokens(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    """Return the tokens that transformers generates greedily."""
    ids = torch.tensor([prompt])
    model.generation_config.forced_eos_token_id = None
    out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def make_executor(
    folder: Path, dtype: str = "float32", quantization: str = "none", model_impl: str = "transformers", **others: Any
) -> tuple[NativeExecutor, str]:
    """Return the executor of a folder with 64 KV blocks, and why it uses transformers' own cache."""
    config = EngineConfig(
        model=str(folder), model_impl=model_impl, dtype=dtype, quantization=quantization, max_num_seqs=4, threads=2,
        **others,
    )  # fmt: skip
    planned = fit(config, folder, memory_of(config), 2)
    executor = load(config, planned.checkpoint, planned.limits, Cores(2, (), (2,)), progress=False)
    executor.allocate(64, 2)
    return executor, planned.checkpoint.own_cache


def executor_tokens(executor: NativeExecutor, prompt: list[int], chunk: int) -> list[int]:
    """Return the tokens generated greedily, the prompt in chunks, beside a second sequence in every step."""
    company = Line([5, 6, 7], list(range(8, 16)))
    line = Line(prompt, list(range(8)))
    found: list[int] = []
    while len(found) < NEW_TOKENS:
        steps = [line.next(chunk), company.next(chunk)]
        starts = np.cumsum([0] + [len(tokens) for tokens, _ in steps])
        batch = Batch(
            _joined([tokens for tokens, _ in steps]),
            _joined([positions for _, positions in steps]),
            int32(starts.tolist()),
            int32([0, 8, 16]),
            _joined([line.blocks, company.blocks]),
            int32((starts[1:] - 1).tolist()),
            states=int32([0, 1]) if executor.states else None,
        )
        executor.forward(batch)
        chosen = executor.logits().argmax(axis=1).tolist()
        if line.take(chosen[0]):
            found.append(chosen[0])
        company.take(chosen[1])
    return found


class Line:
    """A sequence: its tokens, the number of computed ones, and its KV blocks."""

    def __init__(self, prompt: list[int], blocks: list[int]) -> None:
        self.tokens, self.blocks, self.computed = list(prompt), blocks, 0

    def next(self, chunk: int) -> tuple[list[int], list[int]]:
        """Return the next tokens to compute, at most `chunk`, and their positions."""
        begin, end = self.computed, min(self.computed + chunk, len(self.tokens))
        self.computed = end
        return self.tokens[begin:end], list(range(begin, end))

    def take(self, token: int) -> bool:
        """Append a generated token, if all tokens before it are computed."""
        done = self.computed == len(self.tokens)
        if done:
            self.tokens.append(token)
        return done


def compare(model_type: str) -> str:
    """Return "agrees", with the executor or cache, if the executor's tokens are transformers'; else what differs."""
    impl = "forearm" if model_type in FAMILIES else "transformers"
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny(model_type, Path(folder))
        prompt = np.random.default_rng(3).integers(3, VOCABULARY - 4, PROMPT_TOKENS).tolist()
        wanted = reference_tokens(model, prompt)
        executor, own_cache = make_executor(Path(folder), model_impl=impl)
        found = executor_tokens(executor, prompt, PROMPT_TOKENS if own_cache else 8)
    if found != wanted:
        return f"differs from token {next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b)} on"
    return f"agrees: {impl if impl == 'forearm' else own_cache or PAGED}"


def _joined(lists: list[list[int]]) -> Int32Array:
    return int32([value for one in lists for value in one])


def main(types: list[str]) -> None:
    """Compare each type in a process of its own, since some defaults take tens of GB, and write the table."""
    transformers.logging.set_verbosity_error()
    found: dict[str, str] = json.loads(models_page.TRANSFORMERS_TYPES.read_text())
    for model_type in types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        into, out = os.pipe()
        child = os.fork()
        if child:
            os.close(out)
            with os.fdopen(into) as said:
                text = said.read()
            _, status = os.waitpid(child, 0)
            found[model_type] = text or f"not tried: its tiny model took {SECONDS} s of CPU time or ended its process"
            print(f"{model_type}: {found[model_type]} ({status})", flush=True)
            models_page.TRANSFORMERS_TYPES.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
            continue
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            refused = REFUSED.get(model_type) if model_type not in FAMILIES else None
            text = f"refused: {refused}" if refused else compare(model_type)
        except ConfigError as problem:
            text = f"refused: {problem}"
        except ImportError:
            text = "refused: transformers builds it with packages for images that are not installed here"
        except Exception as problem:  # any exception of a model's code is a result for the table
            text = f"fails: {type(problem).__name__}: {problem}"
        os.write(out, " ".join(text.split())[:_LONGEST].encode())
        os._exit(0)
    models_page.PAGE.write_text(models_page.page())


if __name__ == "__main__":
    main(sys.argv[1:])
