"""OpenAI's endpoints for chats, completions and models, and vLLM's additions to them."""
