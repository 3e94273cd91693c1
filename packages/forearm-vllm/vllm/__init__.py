"""vLLM's names for forearm's classes, imported on first use. Modules here have the paths of vLLM's modules."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.33.0+forearm"  # the version of vLLM that has these names
__version_tuple__ = (0, 33, 0)

_MODULES = {
    "forearm": "LLM AsyncEngineArgs AsyncLLMEngine CompletionOutput EngineArgs LLMEngine PoolingParams RequestOutput "
    "SamplingParams",
    "vllm.inputs": "PromptType TextPrompt TokensPrompt",
    "vllm.outputs": "ClassificationOutput ClassificationRequestOutput EmbeddingOutput EmbeddingRequestOutput "
    "PoolingOutput PoolingRequestOutput ScoringOutput ScoringRequestOutput",
}
_FROM = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module 'vllm' has no attribute {name!r}: this is forearm-vllm, which has {', '.join(_FROM)}")


def _check_alone() -> None:
    """Check that vLLM itself is not installed. Raises: ImportError if it is."""
    try:
        real = version("vllm")
    except PackageNotFoundError:
        return
    raise ImportError(
        f"vllm {real} and forearm-vllm are both installed, and the files of one overwrite those of the other. Run `pip "
        "uninstall forearm-vllm vllm`, then install the one that you want"
    )


_check_alone()
