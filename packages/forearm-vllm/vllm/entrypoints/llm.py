"""The engine inside a Python program."""

from forearm import LLM

__all__ = ["LLM"]
