"""The engine within a Python program: LLM, AsyncLLMEngine, and what they take."""
