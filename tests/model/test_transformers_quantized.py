"""Quantized checkpoints of models that transformers builds have the logits of the same numbers stored as floats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model.stored_codes import FORMATS
from tests.model.test_quantized import quantize
from tests.model.transformers_types import VOCABULARY, make_executor, save_tiny

from forearm.engine.batch import Batch, int32
from forearm.engine.executor import NativeExecutor
from forearm.errors import ConfigError

BY_NAME = {format.name: format for format in FORMATS}
GPTQ, AWQ, W4A16 = "gptq-4bit-g32-sym-v1-actorder", "awq-g32", "ct-w4a16-packed-g32-asym"
TABLES = ("embed_tokens", "word_embeddings", "lm_head")
# Of the largest logit: float32 sums in another order. FP8 is multiplied in bfloat16 where the CPU has such products.
SUMS, BFLOAT16 = 2.0**-12, 2.0**-6
PROMPT = np.random.default_rng(3).integers(3, VOCABULARY - 4, 21).tolist()


def logits_of(executor: NativeExecutor) -> np.ndarray:
    """Return the logits of the prompt's last tokens, computed in one step."""
    count = len(PROMPT)
    rows = int32(list(range(count)))
    executor.forward(Batch(int32(PROMPT), rows, int32([0, count]), int32([0, 4]), int32([0, 1, 2, 3]), rows[-8:]))
    return executor.logits().copy()


# Attention that is ours, over bias and none; layers that are native calls; transformers' own cache.
@pytest.mark.parametrize(
    ("model_type", "format", "skip", "near"),
    [
        ("persimmon", GPTQ, TABLES, SUMS),
        ("persimmon", AWQ, TABLES, SUMS),
        ("persimmon", W4A16, TABLES, SUMS),
        ("persimmon", "fp8-block", TABLES, BFLOAT16),
        ("ernie4_5", W4A16, TABLES, SUMS),
        ("llama", GPTQ, TABLES, SUMS),
        ("llama", W4A16, (*TABLES, "k_proj", "up_proj"), SUMS),  # beside floats a layer is a matrix of its own
        ("bloom", GPTQ, TABLES, SUMS),
    ],
)
def test_codes_have_the_logits_of_the_same_numbers_as_floats(
    model_type: str, format: str, skip: tuple[str, ...], near: float, tmp_path: Path
) -> None:
    save_tiny(model_type, tmp_path / "plain")
    quantize(tmp_path / "plain", replace(BY_NAME[format], skip=skip), tmp_path)

    coded, floats = (
        make_executor(tmp_path / kind, quantization_activations="float" if kind == "stored" else "auto")[0]
        for kind in ("stored", "floats")
    )

    wanted = logits_of(floats)
    assert np.abs(logits_of(coded) - wanted).max() < near * np.abs(wanted).max()
    assert coded.packed_bytes < floats.packed_bytes


def test_codes_that_no_linear_layer_reads_are_refused(tmp_path: Path) -> None:
    save_tiny("bloom", tmp_path / "plain")
    quantize(tmp_path / "plain", BY_NAME[GPTQ], tmp_path)

    with pytest.raises(ConfigError, match=r"word_embeddings\.qweight and 1 other tensors are quantized"):
        make_executor(tmp_path / "stored")
