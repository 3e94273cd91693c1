"""A file that describes another model than it holds is refused by name; what real checkpoints carry along passes."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.model.stored import LLAMA, llama, llama_shapes, write
from tests.unit.model.test_gguf_config import HIDDEN, KEYS, opened

from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.gguf.gguf import read_gguf_file

LAYER = "model.layers.0"
BEYOND = {f"model.layers.2.{name}": shape for name, shape in {"mlp.up_proj.weight": [40, 24]}.items()}


def with_tensors(folder: Path, extra: dict[str, list[int]], filled: bool = True, **changes: Any) -> Path:
    """A Llama with more tensors than it needs; `filled`: of ones."""
    llama(folder, **changes)
    path = folder / "model.safetensors"
    write(path, llama_shapes(LLAMA | changes) | extra)
    if filled:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size - 4 * sum(int(np.prod(shape)) for shape in extra.values()))
            file.write(np.ones(1, np.float32).tobytes())
    return folder


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (BEYOND, r"layers\.2\.mlp\.up_proj\.weight is of layers beyond the 2 .*num_hidden_layers"),
        ({f"{LAYER}.self_attn.q_proj.bias": [24]}, r"q_proj\.bias is a bias or norm of what is computed"),
        ({f"{LAYER}.self_attn.q_norm.weight": [8]}, r"q_norm\.weight is a bias or norm of what is computed"),
        ({"model.norm.bias": [24]}, r"model\.norm\.bias is a bias or norm"),
        ({"lm_head.bias": [50]}, r"lm_head\.bias is a bias or norm"),
        ({f"{LAYER}.mlp.shared_expert.up_proj.weight": [40, 24]}, r"up_proj\.weight is a bias or norm .*or an expert"),
        ({f"{LAYER}.mlp.experts.3.up_proj.qweight": [3, 24]}, r"up_proj\.qweight is a bias or norm"),
        ({f"{LAYER}.mlp.experts.gate_up_proj": [2, 24, 24]}, r"gate_up_proj is a bias or norm"),
        ({f"{LAYER}.mlp.gate.e_score_correction_bias": [4]}, r"e_score_correction_bias is a bias or norm"),
        ({f"{LAYER}.self_attn.sinks": [3]}, r"sinks is a bias or norm"),
    ],
    ids=str,
)
def test_tensors_that_would_change_the_model_are_refused_unless_they_are_to_be_ignored(
    tmp_path: Path, extra: dict[str, list[int]], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with_tensors(tmp_path, extra)

    with pytest.raises(ConfigError, match=rf"{message}.*--ignore-unread-tensors"):
        open_checkpoint(tmp_path)

    open_checkpoint(tmp_path, ignore_unread=True)
    assert [next(iter(extra)) in record.getMessage() for record in caplog.records] == [True]


CARRIED = {
    "inv_freq": {f"{LAYER}.self_attn.rotary_emb.inv_freq": [4]},
    "rotary cache": {f"{LAYER}.self_attn.rotary_emb.cos_cached": [1, 4]},
    "GPT-2's masks": {f"{LAYER}.attn.bias": [1, 4], f"{LAYER}.attn.masked_bias": [1]},
    "old masks": {f"{LAYER}.self_attn.bias": [1, 4], f"{LAYER}.self_attn.masked_bias": [1]},
    "position ids": {"model.embeddings.position_ids": [1, 4]},
    "vision": {"vision_tower.encoder.layers.9.norm.weight": [3], "multi_modal_projector.linear.bias": [3]},
    "Qwen's vision": {"visual.blocks.0.norm1.bias": [3], "model.visual.merger.ln_q.weight": [3]},
    "audio": {"audio_tower.conv1.bias": [3], "model.embed_audio.norm.weight": [3]},
    "predictions": {"mtp.layers.0.input_layernorm.weight": [3], "model.mtp_layers.0.mlp.up_proj.weight": [3, 3]},
    "scales of a KV cache": {f"{LAYER}.self_attn.k_scale": [1], f"{LAYER}.self_attn.k_proj.k_scale": [1]},
}


@pytest.mark.parametrize("extra", CARRIED.values(), ids=list(CARRIED))
def test_what_real_checkpoints_carry_along_passes_without_a_word(
    tmp_path: Path, extra: dict[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    open_checkpoint(with_tensors(tmp_path, extra))

    assert caplog.records == []


def test_a_tied_head_layers_that_predict_and_biases_of_zeros_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_checkpoint(llama(tmp_path, tie_word_embeddings=True))  # its lm_head is in the file
    open_checkpoint(with_tensors(tmp_path, BEYOND, num_nextn_predict_layers=1))
    zeros = {f"{LAYER}.{name}_proj.bias": [24] for name in ("self_attn.q", "self_attn.o", "mlp.down")}
    open_checkpoint(with_tensors(tmp_path, zeros, filled=False))

    assert caplog.records == []


def test_fewer_layers_than_a_gguf_file_holds_are_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    content = (tmp_path / "m.gguf").read_bytes().replace(b"blk.0.attn_q.weight", b"blk.1.attn_q.weight")
    (tmp_path / "m.gguf").write_bytes(content)

    with pytest.raises(ConfigError, match=r"blk\.0\.attn_q\.weight is missing"):
        open_checkpoint(tmp_path / "m.gguf")


def put(folder: Path, change: Any, data: bytes = b"") -> Path:
    """A Llama whose header `change` has changed."""
    path = llama(folder) / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = change(content[8 : 8 + size])
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :] + data)
    return folder


def offsets(name: str, begin: Any, end: Any) -> Any:
    def change(header: bytes) -> bytes:
        entries = json.loads(header)
        entries[name]["data_offsets"] = [begin, end]
        return json.dumps(entries).encode()

    return change


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h[:-1] + b', "lm_head.weight": {}}', "'lm_head.weight' twice"),
        (offsets(NORM, 0, 96), "overlaps the one before it"),
        (offsets("model.layers.0.input_layernorm.weight", 4801, 4897), "leaves a hole before it"),
        (offsets(NORM, 0.0, 96.0), "whole numbers"),
        (offsets(NORM, 1e300, 96), "whole numbers"),
        (offsets(NORM, float("inf"), 96), "whole numbers"),
        (offsets(NORM, True, 96), "whole numbers"),
        (offsets(NORM, -96, 0), "whole numbers"),
        (lambda h: h.replace(b'{"format": "pt"}', b'{"format": 1}'), "__metadata__"),
        (lambda h: h.replace(b'"F32"', b'"F33"', 1), "dtype 'F33'"),
    ],
)
def test_a_safetensors_header_is_read_as_strictly_as_by_its_library(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.safetensors.*{message}"):
        open_checkpoint(put(tmp_path, change))


def test_bytes_behind_the_last_tensor_and_a_tensor_in_two_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 bytes after its last tensor"):
        open_checkpoint(put(tmp_path, lambda header: header, b"abc"))

    llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    write(tmp_path / "b.safetensors", {NORM: [24]})
    with pytest.raises(ConfigError, match=r"norm\.weight is in two files, .*a\.safetensors and .*b\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": float("inf")},
        {"rope_theta": float("nan")},
        {"rope_theta": -1e4},
        {"rope_theta": 1e300},
        {"rms_norm_eps": float("inf")},
        {"rms_norm_eps": -1e-5},
        {"rms_norm_eps": 1e30},
        {"rope_scaling": {"rope_type": "linear", "factor": -2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": float("nan")}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": -4.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": -1}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [-1.0] * 4, "long_factor": [1.0] * 4}},
        {"eos_token_id": 50},
        {"eos_token_id": [2, -1]},
        {"head_dim": 1 << 63},
        {"head_dim": 1 << 20},
        {"hidden_size": 1 << 63},
        {"max_position_embeddings": 1e300},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_with_its_key(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = llama(tmp_path)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))

    with pytest.raises(ConfigError, match=rf"config\.json.*{next(iter(changes))[:4]}"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.attention.head_count": 0},
        {"llama.embedding_length": 0},
        {"llama.attention.key_length": 0},
        {"llama.attention.head_count_kv": 0},
        {"llama.rope.dimension_count": 0},
        {"llama.rope.freq_base": float("inf")},
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float("nan")},
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": -1.0},
        {"tokenizer.ggml.eos_token_id": 96},
    ],
    ids=str,
)
def test_a_gguf_key_out_of_range_is_refused_by_name(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"m\.gguf"):
        opened(tmp_path, **keys)


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        ("lfm2", {"block_count": 1 << 31, "shortconv.l_cache": 3, "attention.head_count_kv": 2}),
        ("qwen35", {"block_count": 1 << 31, "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.state_size": 8,
                    "ssm.inner_size": 32, "ssm.conv_kernel": 4}),
        ("llama", {"block_count": 1 << 31}),
    ],
)  # fmt: skip
def test_layers_of_a_gguf_file_are_bounded_before_they_are_listed(
    tmp_path: Path, architecture: str, keys: dict[str, Any]
) -> None:
    named = {f"{architecture}.{key.removeprefix('llama.')}": value for key, value in KEYS.items() if key[0] == "l"}

    with pytest.raises(ConfigError, match=r"m\.gguf: num_hidden_layers = \d+; it should be 1 to 1024"):
        opened(tmp_path, architecture=architecture, **named | {f"{architecture}.{key}": keys[key] for key in keys})


@pytest.mark.parametrize("key", ["tokens", "token_type"])
def test_a_gguf_vocabulary_that_is_no_list_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"m\.gguf: tokenizer\.ggml\.{key} = 7; it should be a list"):
        opened(tmp_path, **{f"tokenizer.ggml.{key}": 7})


def test_gguf_tensors_doubled_overlapping_or_misaligned_are_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    path = tmp_path / "m.gguf"
    content = path.read_bytes()
    doubled = content.replace(b"blk.0.attn_norm.weight", b"blk.0.ffn_norm.weight\0", 1)
    path.write_bytes(doubled)
    read_gguf_file(path)  # under another name
    path.write_bytes(content.replace(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight", 1))
    with pytest.raises(ConfigError, match=r"m\.gguf is damaged: tensor blk\.0\.attn_q\.weight twice"):
        read_gguf_file(path)

    place = content.index(b"blk.0.attn_norm.weight") + len(b"blk.0.attn_norm.weight") + 4 + 8 + 4
    own = int.from_bytes(content[place : place + 8], "little")
    assert own % 32 == 0
    for wrong in (0, own + 1, own + 32, HIDDEN):
        path.write_bytes(content[:place] + struct.pack("<Q", wrong) + content[place + 8 :])
        if wrong != own:
            with pytest.raises(ConfigError, match=r"m\.gguf is damaged: tensor \S+ at offset \d+, not where"):
                read_gguf_file(path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "generation_config.json"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, file: str) -> None:
    folder = llama(tmp_path)
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)

    with pytest.raises(ConfigError, match=rf"{file} is not a regular file"):
        open_checkpoint(folder)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Be another user where tests run as root, who may read everything."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "m.gguf"])
def test_a_file_that_this_user_may_not_read_is_told_as_such(file: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        if file == "m.gguf":
            opened(folder)
        else:
            llama(folder)
        (folder / file).chmod(0)
        with without_rights(), pytest.raises(ConfigError, match=rf"{file} can't be read: this user has no right to"):
            open_checkpoint(folder / file if file == "m.gguf" else folder)


def test_a_key_twice_with_two_values_is_refused(tmp_path: Path) -> None:
    folder = llama(tmp_path)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"hidden_size": 24, ', 1))
    open_checkpoint(folder)  # the same value twice is consistent

    (folder / "config.json").write_text(text.replace("{", '{"hidden_size": 25, ', 1))
    with pytest.raises(ConfigError, match=r"config\.json: 'hidden_size' appears twice"):
        open_checkpoint(folder)
