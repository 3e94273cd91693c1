"""Wrong or missing metadata of a .gguf file is refused by name; its tensors decide some settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.model.gguf_files import random_blocks, write_gguf

from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.hub import find_model

HIDDEN, MIDDLE, VOCAB = 256, 512, 96
KEYS: dict[str, Any] = {
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.block_count": 1,
    "llama.feed_forward_length": MIDDLE,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "<|im_end|>", "b"],
    "tokenizer.ggml.token_type": [1, 3, 1],
    "tokenizer.ggml.eos_token_id": 2,
}
MATRICES = {
    "token_embd": (VOCAB, HIDDEN), "output": (VOCAB, HIDDEN), "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (128, HIDDEN), "blk.0.attn_v": (128, HIDDEN), "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (MIDDLE, HIDDEN), "blk.0.ffn_up": (MIDDLE, HIDDEN), "blk.0.ffn_down": (HIDDEN, MIDDLE),
}  # fmt: skip


def opened(
    folder: Path, types: dict[str, str] | None = None, left_out: str = "", architecture: str = "llama", **keys: Any
) -> Checkpoint:
    """A tiny Llama's file, opened; matrices are Q4_K where `types` says nothing else."""
    tensors: dict[str, Any] = {
        f"{name}.weight": np.ones(HIDDEN, np.float32) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    }
    tokens = keys.get("tokenizer.ggml.tokens")
    vocab = max(VOCAB, len(tokens) if isinstance(tokens, list) else 0)
    for name, (rows, columns) in MATRICES.items():
        shape = (vocab if rows == VOCAB else rows, columns)
        kind = (types or {}).get(name, "Q4_K")
        floats = np.zeros(shape, np.float16 if kind == "F16" else np.float32)
        tensors[f"{name}.weight"] = floats if kind in ("F16", "F32") else (kind, random_blocks(kind, *shape))
    tensors.pop(left_out, None)
    given = {key: value for key, value in (KEYS | keys).items() if value is not None and key != left_out}
    return open_checkpoint(write_gguf(folder / "m.gguf", architecture, given, tensors))


def test_each_matrix_has_the_format_of_its_type_and_fused_ones_a_common_one(tmp_path: Path) -> None:
    checkpoint = opened(
        tmp_path, {"blk.0.attn_v": "Q6_K", "output": "Q6_K", "blk.0.ffn_down": "Q8_0", "token_embd": "F16"}
    )

    assert checkpoint.method == "gguf"
    assert checkpoint.formats == {
        "embed": WeightFormat("float16"),
        "head": WeightFormat("int6", 16, "float16"),
        "layers.0.qkv": WeightFormat("int6", 16, "float16", "float16"),
        "layers.0.o": WeightFormat("int4", 32, "float16", "float16"),
        "layers.0.up": WeightFormat("int4", 32, "float16", "float16"),
        "layers.0.down": WeightFormat("int8", 32, "float16"),
    }


def test_a_file_without_output_has_a_tied_head_and_one_without_codes_is_not_quantized(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, dict.fromkeys(MATRICES, "F16"), left_out="output.weight")

    assert checkpoint.config.tied_head
    assert checkpoint.config.dtype == "float16"
    assert (checkpoint.method, set(checkpoint.formats.values())) == ("", {WeightFormat("float16")})


def test_sizes_and_ends_are_the_metadata_s(tmp_path: Path) -> None:
    config = opened(tmp_path).config

    assert (config.vocab_size, config.hidden, config.head_dim, config.kv_heads) == (VOCAB, HIDDEN, 64, 2)
    assert (config.max_positions, config.layers[0].feed_forward.width, len(config.layers)) == (64, MIDDLE, 1)
    assert config.eos_token_ids == (1, 2)  # the token that the file names, and a control token known to end a turn
    assert config.ropes[0].interleaved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left_out": "llama.embedding_length"}, r"llama\.embedding_length is missing; it should be a whole number"),
        ({"left_out": "llama.attention.layer_norm_rms_epsilon"}, r"layer_norm_rms_epsilon is missing"),
        ({"left_out": "blk.0.ffn_up.weight"}, r"blk\.0\.ffn_up\.weight is missing from its tensors"),
        ({"left_out": "token_embd.weight"}, r"has no tensor token_embd\.weight"),
        ({"llama.expert_count": 8}, r"llama\.expert_used_count is missing"),
        ({"llama.attn_logit_softcapping": 50.0}, r"llama\.attn_logit_softcapping = 50\.0"),
        ({"llama.rope.scaling.type": "su"}, r'llama\.rope\.scaling\.type = "su"; it should be none, linear, yarn'),
        ({"llama.attention.value_length": 32}, r"value_length = 32; it should be the same as .*key_length \(64\)"),
        ({"llama.block_count": 2}, r"blk\.1\.attn_k\.weight, .* and 4 more are missing from its tensors; download it"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"head_count_kv = \[2, 1\]; it should be a whole number"),
        ({"llama.attention.head_count_kv": 3}, "it should be a divisor of num_attention_heads"),
        ({"llama.feed_forward_length": 768}, r"ffn_gate has shape \[512, 256\]|ffn_gate\.weight has shape"),
        ({"types": {"blk.0.attn_v": "F16"}}, r"attn_v\.weight is not: they are kept as one matrix"),
        ({"architecture": "rwkv6"}, r'general\.architecture = "rwkv6"; it should be one of llama, mistral3'),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, **changes)


def test_a_message_of_harmony_does_not_end_the_turn(tmp_path: Path) -> None:
    tokens = ["a", "<|end|>", "b", "<|return|>", "<|call|>"]

    named = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1, 3, 1, 3, 3]}

    assert opened(tmp_path, **named, **{"tokenizer.ggml.eos_token_id": 3}).config.eos_token_ids == (3, 4)
    tokens[3:] = ["c", "d"]
    assert opened(tmp_path, **named, **{"tokenizer.ggml.eos_token_id": 3}).config.eos_token_ids == (1, 3)


def test_a_window_makes_a_llama_a_mistral(tmp_path: Path) -> None:
    config = opened(tmp_path, **{"llama.attention.sliding_window": 32}).config

    assert config.model_type == "mistral"
    assert [layer.mixer.window for layer in config.layers] == [32]


def test_keys_that_are_not_known_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, **{"llama.shiny": 3})

    (line,) = [record.message for record in caplog.records if "does not know" in record.message]
    assert line.endswith("llama.shiny")


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    opened(tmp_path)
    assert find_model(str(tmp_path)) == tmp_path / "m.gguf"
    assert find_model(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"

    (tmp_path / "m.gguf").rename(tmp_path / "m-00001-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").touch()
    assert find_model(str(tmp_path)) == tmp_path / "m-00001-of-00002.gguf"

    (tmp_path / "other.gguf").touch()
    with pytest.raises(ConfigError, match=r"m-00001-of-00002\.gguf, .*other\.gguf; give the one to serve"):
        find_model(str(tmp_path))
