"""LLM inference and serving for Arm server CPUs; x86-64 runs the same code.

The names of the offline API are imported at their first use, so that `import forearm`, and with it the command line,
stays quick.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forearm.beam_search import BeamSearchParams
    from forearm.offline.arguments import AsyncEngineArgs, EngineArgs
    from forearm.offline.async_llm import AsyncLLMEngine
    from forearm.offline.llm import LLM
    from forearm.offline.llm_engine import LLMEngine
    from forearm.offline.outputs import CompletionOutput, RequestOutput, RequestOutputKind
    from forearm.offline.pooling_outputs import PoolingParams
    from forearm.offline.sampling_params import SamplingParams
    from forearm.wire import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "PoolingParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_MODULES = {
    "LLM": "offline.llm",
    "AsyncEngineArgs": "offline.arguments",
    "AsyncLLMEngine": "offline.async_llm",
    "BeamSearchParams": "beam_search",
    "CompletionOutput": "offline.outputs",
    "EngineArgs": "offline.arguments",
    "LLMEngine": "offline.llm_engine",
    "PoolingParams": "offline.pooling_outputs",
    "RequestOutput": "offline.outputs",
    "RequestOutputKind": "offline.outputs",
    "SamplingParams": "offline.sampling_params",
    "StructuredOutputsParams": "wire",
}

# transformers is used for its tokenizers alone and needs no torch: its warning at every start would mislead.
logging.getLogger("transformers").addFilter(lambda record: "PyTorch was not found" not in record.getMessage())


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"forearm.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'forearm' has no attribute {name!r}")
