"""Arguments of LLM and AsyncLLMEngine."""

from forearm import AsyncEngineArgs, EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]
