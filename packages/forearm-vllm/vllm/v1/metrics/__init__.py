"""Package at the path that vLLM has."""
