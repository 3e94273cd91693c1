"""The version of vLLM whose names these are."""

from vllm import __version__, __version_tuple__

__all__ = ["__version__", "__version_tuple__"]
