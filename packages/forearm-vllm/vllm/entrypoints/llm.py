"""The engine within a program."""

from forearm import LLM

__all__ = ["LLM"]
