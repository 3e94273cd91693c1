"""LLM inference and serving for Arm server CPUs; x86-64 runs the same code.

`LLM`, `SamplingParams` and `StructuredOutputsParams` are loaded when first asked for, so that `import forearm` (and
with it the command line) stays quick.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forearm.llm import LLM
    from forearm.outputs_pooling import PoolingParams
    from forearm.wire import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["LLM", "PoolingParams", "SamplingParams", "StructuredOutputsParams", "__version__"]

# transformers is here for its tokenizers. That it finds no torch is as it should be, and no news at every start.
logging.getLogger("transformers").addFilter(lambda record: "PyTorch was not found" not in record.getMessage())


def __getattr__(name: str) -> object:
    if name == "LLM":
        from forearm.llm import LLM

        return LLM
    if name == "PoolingParams":
        from forearm.outputs_pooling import PoolingParams

        return PoolingParams
    if name in ("SamplingParams", "StructuredOutputsParams"):
        from forearm import wire

        return getattr(wire, name)
    raise AttributeError(f"module 'forearm' has no attribute {name!r}")
