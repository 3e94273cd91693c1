"""The engine inside an asyncio program."""

from forearm import AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
