"""Models of folders as .gguf files: the inverse of what reads these, family by family."""
