"""The engine inside an asyncio program, under vLLM's newer name."""

from forearm import AsyncLLMEngine as AsyncLLM

__all__ = ["AsyncLLM"]
