"""The compressed-tensors library decompresses what `forearm quantize` writes to the weights that forearm serves."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.cases import CASES
from tests.model.made_cases import make
from transformers import AutoModelForCausalLM

from forearm.cli.main import main
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.shards import Files
from forearm.model.quantization.codes import CodedMatrix, dequantized

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="compressed-tensors 0.20 needs Python 3.11")


@pytest.mark.parametrize("format", ["int4", "int8"])  # int8 of down projections is packed in groups
def test_the_library_reads_the_weights_that_are_served(format: str, tmp_path: Path) -> None:
    assert main(["quantize", "-o", str(tmp_path / "codes"), "--format", format, "--quality-tokens", "0"]) == 0

    assert same_weights(tmp_path / "codes") == 7 * 6


def test_the_library_reads_a_model_with_states(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "qwen3.5-text")
    sizes = {  # groups of 128 columns must divide them
        "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    }  # fmt: skip
    make(replace(case, settings=case.settings | sizes), tmp_path / "floats")
    asked = ["-o", str(tmp_path / "codes"), "--format", "int4", "--quality-tokens", "0"]

    assert main(["quantize", str(tmp_path / "floats"), *asked]) == 0

    assert same_weights(tmp_path / "codes") == 4 * 3 + 4 + 5 * 3, "delta rules without gates, attention, feed-forwards"


def same_weights(folder: Path) -> int:
    """Compare each quantized matrix with the library's, bit for bit, and return their number."""
    model, files = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), Files()
    model.hf_quantizer.compressor.decompress_model(model)
    theirs = model.state_dict()
    matrices = {stored.name: stored for _, stored in open_checkpoint(folder).sources if isinstance(stored, CodedMatrix)}
    for name, matrix in matrices.items():
        ours = dequantized(matrix, matrix.read(files, 0, matrix.shape[0]))
        assert np.array_equal(theirs[f"{name}.weight"].float().numpy(), ours), name
    return len(matrices)
