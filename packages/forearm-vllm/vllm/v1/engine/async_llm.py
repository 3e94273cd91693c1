"""The engine within an asyncio program, under its newer name."""

from forearm import AsyncLLMEngine as AsyncLLM

__all__ = ["AsyncLLM"]
