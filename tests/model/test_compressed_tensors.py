"""The compressed-tensors library decompresses what `forearm quantize` writes to the weights that forearm serves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from forearm.cli.main import main
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.shards import Files
from forearm.model.quantization.codes import CodedMatrix, dequantized


@pytest.mark.skipif(sys.version_info < (3, 11), reason="compressed-tensors 0.20 needs Python 3.11")
@pytest.mark.parametrize("format", ["int4", "int8"])  # int8 of down projections is packed in groups
def test_the_library_reads_the_weights_that_are_served(format: str, tmp_path: Path) -> None:
    folder, files = tmp_path / "codes", Files()
    assert main(["quantize", "-o", str(folder), "--format", format, "--quality-tokens", "0"]) == 0
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.hf_quantizer.compressor.decompress_model(model)
    theirs = model.state_dict()

    matrices = [stored for _, stored in open_checkpoint(folder).sources if isinstance(stored, CodedMatrix)]

    assert len(matrices) == 7 * model.config.num_hidden_layers
    for matrix in matrices:
        ours = dequantized(matrix, matrix.read(files, 0, matrix.shape[0]))
        assert np.array_equal(theirs[f"{matrix.name}.weight"].float().numpy(), ours), matrix.name
