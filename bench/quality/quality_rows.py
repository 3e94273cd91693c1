"""The formats that bench/quality/quality.py measures, and the largest loss allowed on SmolLM2-135M-Instruct.

The bounds hold for the windows of tests/model/test_quality.py; they lie about a third above what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: open_checkpoint's options, and bounds.

    divergence: of the KL divergence from the truth, in nats. same_best: least part of tokens whose best is the same.
    """

    name: str
    dtype: str = "float32"
    quantization: str = "none"
    embeddings: str = "auto"
    activations: str = "auto"
    kv: str = "float32"
    divergence: float | None = None
    same_best: float = 0.0


TRUTH = Row("float32", divergence=0.0, same_best=1.0)
ROWS: list[Row] = [
    Row("bfloat16", "bfloat16", kv="bfloat16", divergence=0.0006, same_best=0.97),
    Row("float16", "float16", kv="float16"),
    Row("int8", quantization="int8", divergence=0.0034, same_best=0.95),
    Row("int8, float activations", quantization="int8", activations="float", divergence=0.0018, same_best=0.96),
    Row("fp8", quantization="fp8", divergence=0.0041, same_best=0.94),
    Row("int4", quantization="int4", divergence=0.41, same_best=0.65),
    Row("int4-fast", quantization="int4-fast", divergence=0.9, same_best=0.48),
    Row("int4, float activations", quantization="int4", activations="float"),
    Row("int4-g64", quantization="int4-g64"),
    Row("int4-g32", quantization="int4-g32", divergence=0.29, same_best=0.67),
    Row("KV int8", kv="int8", divergence=0.0018, same_best=0.95),
    Row("KV fp8_e4m3", kv="fp8_e4m3", divergence=0.0027, same_best=0.94),
    Row("KV fp8_e5m2", kv="fp8_e5m2"),
]
