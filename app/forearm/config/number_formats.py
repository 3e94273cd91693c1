"""Number formats, one row of a table each: of weights and KV caches, and what --quantization calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

DTypeName = Literal["bfloat16", "float16", "float32"]
CodeName = Literal["int8", "int6", "int4", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"]
KvDTypeName = Literal[DTypeName, "int8", "fp8_e4m3", "fp8_e5m2"]


@dataclass(frozen=True)
class NumberFormat:
    """A number format of packed weights (native/kernels/kernels.h, DType).

    bits: of a value. quantum: most values of k that a layout (kernels.h, Layout) keeps together; quantum_bytes: theirs.
    """

    kind: Literal["float", "integer", "fp8"]
    bits: int
    quantum: int
    quantum_bytes: int


NUMBER_FORMATS: dict[DTypeName | CodeName, NumberFormat] = {
    "float32": NumberFormat("float", 32, 4, 16),
    "float16": NumberFormat("float", 16, 4, 8),
    "bfloat16": NumberFormat("float", 16, 4, 8),
    "int8": NumberFormat("integer", 8, 8, 8),
    "int6": NumberFormat("integer", 6, 16, 12),
    "int4": NumberFormat("integer", 4, 16, 8),
    "fp8_e4m3": NumberFormat("fp8", 8, 4, 4),
    "fp8_e5m2": NumberFormat("fp8", 8, 4, 4),
    "fp4_e2m1": NumberFormat("integer", 4, 16, 8),  # a code is twice the number, an integer
}
INTEGERS: dict[int, CodeName] = {8: "int8", 4: "int4"}  # by bits: what users choose and checkpoints name
KV_CODES = [name for name in get_args(KvDTypeName) if NUMBER_FORMATS[name].kind != "float"]
# Other names that users write for dtypes, and all names, those of KV caches, too.
SAME_DTYPE: dict[str, DTypeName] = {"half": "float16", "float": "float32"}
SAME_KV_DTYPE: dict[str, KvDTypeName] = {**SAME_DTYPE, "fp8": "fp8_e4m3"}
DTYPES: dict[str, DTypeName] = {name: name for name in get_args(DTypeName)} | SAME_DTYPE
KV_DTYPES: dict[str, KvDTypeName] = {name: name for name in get_args(KvDTypeName)} | SAME_KV_DTYPE


@dataclass(frozen=True)
class WeightFormat:
    """The number format of one packed matrix in memory (native/kernels/kernels.h, PackedWeights).

    For codes, w = scale * (code - zero) or scale * code + offset, with one scale for `group` values of a row.
    """

    dtype: DTypeName | CodeName
    group: int = 0  # values of a row that share a scale, a multiple of 16; 0: the whole row
    scale_dtype: DTypeName | Literal["e8m0"] = "float32"  # e8m0: 2^(byte - 128)
    zero: Literal["none", "int8", "float16"] = "none"  # symmetric, zero points, offsets
    wide: bool = False  # activations are of 16 bits (W4A16), beside fp8 floats; else int8; scales by token and group
    ordered: bool = False  # columns were sorted while loading: `order` of load_codes
    turned: bool = False  # activations are turned in groups before they are rounded (kernels.h, QuantizeTask)

    @property
    def is_quantized(self) -> bool:
        """True if the matrix is stored as codes with scales, rather than as floats."""
        return NUMBER_FORMATS[self.dtype].kind != "float"

    @property
    def is_integer(self) -> bool:
        """True if the codes are integers, which are multiplied with activations of 8 or 16 bits."""
        return NUMBER_FORMATS[self.dtype].kind == "integer"

    @property
    def bits(self) -> int:
        """Return the bits of a value, without its scale."""
        return NUMBER_FORMATS[self.dtype].bits


# Formats that float weights can be rounded to while loading. float16 scales add half a bit per weight at group 32.
AT_LOAD = {
    "int8": WeightFormat("int8"),
    "int4": WeightFormat("int4", 128, "float16"),
    "int4-fast": WeightFormat("int4", 128, "float16"),  # without calibration
    "int4-g32": WeightFormat("int4", 32, "float16"),
    "int4-g64": WeightFormat("int4", 64, "float16"),
    "int4-g128": WeightFormat("int4", 128, "float16"),
    "fp8": WeightFormat("fp8_e4m3", wide=True),
}
# quant_method -> the names that --quantization accepts for it.
METHODS = {
    "gptq": ("gptq",),
    "awq": ("awq",),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("fp8",),
    "fbgemm_fp8": ("fbgemm_fp8", "fp8"),
    "mxfp4": ("mxfp4",),
    "bitnet": ("bitnet",),
    "gguf": ("gguf",),
}
