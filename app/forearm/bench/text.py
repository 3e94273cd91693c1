"""The tokenizer that makes and counts prompts: of a model, without a download of its weights."""

from __future__ import annotations

from pathlib import Path

from forearm.bench.datasets import Text
from forearm.errors import ConfigError
from forearm.model.hub import DEMO_MODEL, explained, local_model
from forearm.text.chat_template import ChatTemplate, find_chat_template
from forearm.text.tokenizer import load_tokenizer

FILES = ["tokenizer*", "*.jinja", "chat_template.json", "config.json", "special_tokens_map.json", "added_tokens.json"]
FILES += ["*.model", "*.tiktoken", "merges.txt", "vocab.txt", "vocab.json"]


def load_text(name: str) -> Text:
    """Of a folder, a .gguf file, a Hugging Face id, or of what a server of the demo model calls that.

    Raises: ConfigError.
    """
    try:
        folder = _find(name)
        tokenizer = load_tokenizer(folder)
    except ConfigError as error:
        raise ConfigError(f"{error} (prompts are made with a tokenizer: --tokenizer)") from None
    source = find_chat_template(folder, None, tokenizer.backend.chat_template)
    template = None if source is None else ChatTemplate(source, tokenizer.backend.special_tokens_map)
    return Text(tokenizer, template)


def _find(name: str) -> Path:
    local = DEMO_MODEL if name == DEMO_MODEL.name else local_model(name)
    if local is not None:
        return local
    from huggingface_hub import snapshot_download

    name, _, _ = name.partition(":")  # of owner/name:Q4_K_M, the quantisation
    with explained(name, "main"):
        return Path(snapshot_download(name, allow_patterns=FILES))
