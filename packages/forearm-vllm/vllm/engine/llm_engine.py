"""The engine whose caller takes each step."""

from forearm import LLMEngine

__all__ = ["LLMEngine"]
