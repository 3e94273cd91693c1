"""GGUF files: metadata, tensors and their block formats."""
