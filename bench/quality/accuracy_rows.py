"""The formats that bench/quality/accuracy.py measures, and the largest error allowed for each.

A layer's bound is for the kind of weights that is hardest to round, in the small shape of tests/model/test_accuracy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from forearm.config.number_formats import AT_LOAD, WeightFormat


@dataclass(frozen=True)
class Row:
    """One line of the table.

    weights: a format, or the name of a GGUF type. options: LLM's arguments for this format; None: there is no flag for
    it. layer: bound on a layer's error. perplexity: bound on its relative rise over float32's.
    """

    name: str
    weights: WeightFormat | str = field(default_factory=lambda: WeightFormat("float32"))
    kv: str = "float32"
    options: dict[str, str] | None = field(default_factory=dict)
    layer: float = 1.0
    perplexity: float = 1.0


def _loaded(name: str, layer: float, perplexity: float, wide_layer: float = 0.0) -> Iterator[Row]:
    """Yield the rows of --quantization `name` with int8 activations and with float ones (bounded by `wide_layer`)."""
    format = AT_LOAD[name]
    options = {"quantization": name}
    if format.wide:
        yield Row(name, format, "float32", options, layer, perplexity)
        return
    yield Row(f"{name}, int8 activations", format, "float32", options, layer, perplexity)
    options = options | {"quantization_activations": "float"}
    wide = replace(format, wide=True)
    yield Row(f"{name}, float activations", wide, "float32", options, wide_layer or layer, perplexity)


def _kv(dtype: str, layer: float, perplexity: float) -> Row:
    return Row(f"KV {dtype}", kv=dtype, options={"kv_cache_dtype": dtype}, layer=layer, perplexity=perplexity)


ROWS: list[Row] = [
    Row("float32", layer=0.0, perplexity=0.0),
    Row("float16", WeightFormat("float16"), options={"dtype": "float16"}, layer=0.001, perplexity=0.001),
    Row("bfloat16", WeightFormat("bfloat16"), options={"dtype": "bfloat16"}, layer=0.007, perplexity=0.005),
    *_loaded("int8", 0.1, 0.01, wide_layer=0.07),
    *_loaded("int4-g32", 0.34, 0.04),
    *_loaded("int4-g64", 0.44, 0.06),
    *_loaded("int4", 0.5, 0.07),
    Row("int4 per channel, int8 activations", WeightFormat("int4", 0), options=None, layer=0.65),
    *_loaded("fp8", 0.06, 0.01),
    Row("GGUF Q8_0", "Q8_0", layer=0.035, perplexity=0.01),
    Row("GGUF Q6_K", "Q6_K", layer=0.075, perplexity=0.02),
    Row("GGUF Q5_K", "Q5_K", layer=0.13, perplexity=0.05),
    Row("GGUF Q5_0", "Q5_0", layer=0.19, perplexity=0.05),
    Row("GGUF Q4_K", "Q4_K", layer=0.27, perplexity=0.06),
    Row("GGUF Q4_1", "Q4_1", layer=0.28, perplexity=0.08),
    Row("GGUF Q4_0", "Q4_0", layer=0.37, perplexity=0.08),
    _kv("float16", 0.0004, 0.001),
    _kv("bfloat16", 0.003, 0.005),
    _kv("int8", 0.01, 0.005),
    _kv("fp8_e4m3", 0.03, 0.01),
    _kv("fp8_e5m2", 0.06, 0.02),
]
