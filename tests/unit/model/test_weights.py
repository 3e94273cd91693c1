"""Loading into the real executor: what arrives, how much memory it takes on the way, what it shows and says."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.model.stored import LLAMA, llama, llama_shapes

from forearm import _native
from forearm.model.checkpoint import weights
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.shards import widened
from forearm.model.quantization.quantization import Asked

GIBIBYTE = 1 << 30


def load(folder: Path, *, progress: bool = False, dtype: str = "auto") -> _native.Executor:
    return weights.load_native(
        open_checkpoint(folder, dtype=dtype),
        step_tokens=8,
        step_sequences=1,
        step_logit_rows=8,
        cores=(),
        threads=1,
        progress=progress,
    )


def logits(executor: _native.Executor) -> np.ndarray:
    executor.allocate_kv(1)
    one = np.zeros(1, np.int32)
    ends = np.array([0, 1], np.int32)
    executor.forward(np.array([7], np.int32), one, ends, ends, one, one)
    return executor.logits()


def random_llama(folder: Path, dtype: torch.dtype, **changes: Any) -> Path:
    torch.manual_seed(3)
    config = LLAMA | changes
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: torch.randn(s).to(dtype) for n, s in llama_shapes(config).items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_widening_is_exact(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -3.14159, 6e-8, 65504.0, float("inf")]).to(dtype)
    bits = values.numpy() if dtype == torch.float32 else values.view(torch.int16).numpy().view(np.uint16)

    assert widened(bits, str(dtype).removeprefix("torch.")).tolist() == values.float().tolist()


def test_small_pieces_load_what_large_ones_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = random_llama(tmp_path, torch.bfloat16)
    whole = logits(load(folder))

    monkeypatch.setattr(weights, "PIECE_BYTES", 24 * 2 * 5)  # five rows, across panels of sixteen
    pieces = logits(load(folder))

    assert np.abs(whole).max() > 0
    assert (whole == pieces).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float32_checkpoint_is_rounded_as_torch_rounds(dtype: torch.dtype, tmp_path: Path) -> None:
    full, rounded = random_llama(tmp_path, torch.float32), tmp_path / "rounded"
    rounded.mkdir()
    (rounded / "config.json").write_text(json.dumps(LLAMA))
    tensors = load_file(full / "model.safetensors")
    # Vectors stay in float32 whatever the dtype, so only matrices are rounded here.
    save_file({n: t.to(dtype) if t.dim() == 2 else t for n, t in tensors.items()}, rounded / "model.safetensors")

    asked = str(dtype).removeprefix("torch.")
    assert (logits(load(full, dtype=asked)) == logits(load(rounded, dtype=asked))).all()
    assert (logits(load(full, dtype=asked)) != logits(load(full))).any()


def test_data_at_an_odd_byte_of_the_file_loads_the_same(tmp_path: Path) -> None:
    path = random_llama(tmp_path, torch.bfloat16) / "model.safetensors"
    even = logits(load(tmp_path))

    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :])

    assert (logits(load(tmp_path)) == even).all()


def test_the_plan_is_what_the_executor_takes(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        checkpoint = open_checkpoint(llama(tmp_path), dtype=dtype)

        taken = load(tmp_path, dtype=dtype).packed_bytes

        assert 0.8 * checkpoint.packed_bytes <= taken <= checkpoint.packed_bytes


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_plan_counts_what_is_free_between_the_pieces_of_matrices(quantization: str, tmp_path: Path) -> None:
    folder = llama(tmp_path, hidden_size=48, intermediate_size=48, vocab_size=48, num_hidden_layers=20)
    checkpoint = open_checkpoint(folder, dtype="float32", quantization=Asked(quantization))

    taken = weights.load_native(
        checkpoint, step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(), threads=1, progress=False
    ).packed_bytes

    # Scales of 16 or 48 rows fill no line of 128 bytes: 3 to 5 kB of 160 to 320.
    assert 0.8 * checkpoint.packed_bytes <= taken <= checkpoint.packed_bytes


def test_the_bar_ends_with_all_bytes_and_a_rate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(llama(tmp_path), progress=True)

    err = capfd.readouterr().err
    assert "Loading weights: 100%" in err
    assert "B/s" in err


def test_one_line_says_what_is_multiplied_with_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    load(llama(tmp_path, "BF16"))

    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("dtype:")]
    assert len(lines) == 1
    assert f"weights bfloat16, products in {_native.operand_form('bfloat16')}" in lines[0]
    assert ("no bfloat16 products on this CPU" in lines[0]) == (_native.operand_form("bfloat16") == "float32")


# Zeros, so that the file takes no disk; packing writes them all the same. 1.4 GB in bfloat16, more than the slack.
BIG = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 8,
       "num_key_value_heads": 4, "vocab_size": 50_000}  # fmt: skip
PEAK = """
import sys
from pathlib import Path
from typing import Any
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.weights import load_native

def kibibytes(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))

checkpoint = open_checkpoint(Path(sys.argv[1]))
before = kibibytes("VmRSS")
executor = load_native(checkpoint, step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(), threads=1)
print(executor.packed_bytes, (kibibytes("VmHWM") - before) * 1024)
"""


def test_loading_takes_the_packed_weights_and_less_than_a_gibibyte_more(tmp_path: Path) -> None:
    folder = llama(tmp_path, "BF16", **BIG)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    packed, peak = (int(word) for word in done.stdout.split())
    assert packed > 1.2 * GIBIBYTE, "smaller than the slack: it would show nothing"
    assert packed <= peak <= packed + GIBIBYTE // 4, f"{(peak - packed) >> 20} MiB beyond the packed weights"
