"""Loads tokenizers."""

from pathlib import Path
from typing import Any

from forearm.model.checkpoint.hub import find_tokenizer
from forearm.text.tokenizer.tokenizer import load_tokenizer

__all__ = ["get_tokenizer"]


def get_tokenizer(tokenizer_name: str | Path, *args: Any, revision: str | None = None, **others: Any) -> Any:
    """Return a folder's, .gguf file's or hub id's tokenizer, as transformers has it. Raises: ConfigError."""
    return load_tokenizer(find_tokenizer(str(tokenizer_name), revision=revision or "")).as_transformers
