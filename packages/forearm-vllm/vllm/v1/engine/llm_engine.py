"""The engine whose caller takes each step, at vLLM's newer path."""

from forearm import LLMEngine

__all__ = ["LLMEngine"]
