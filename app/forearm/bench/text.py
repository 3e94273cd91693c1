"""The tokenizer that makes and counts prompts: of a model, without a download of its weights."""

from __future__ import annotations

from forearm.bench.datasets import ModelText
from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import DEMO_MODEL, find_tokenizer, local_model
from forearm.text.templates.chat_template import ChatTemplate, find_chat_template
from forearm.text.tokenizer.tokenizer import load_tokenizer


def load_text(name: str) -> ModelText:
    """Load the text part of a folder, a .gguf file, a Hugging Face id, or a server's name of the demo model.

    Raises: ConfigError.
    """
    try:
        local = local_model("" if name == DEMO_MODEL.name else name, "tokenizer")
        # Of owner/name:Q4_K_M the repository alone: a .gguf would bring its weights along.
        folder = local or find_tokenizer(name.partition(":")[0])
        tokenizer = load_tokenizer(folder)
    except ConfigError as error:
        raise ConfigError(f"{error} (prompts are made with a tokenizer: --tokenizer)") from None
    source = find_chat_template(folder, None, tokenizer.parts.chat_template)
    template = None if source is None else ChatTemplate(source, tokenizer.parts.special_tokens_map)
    return ModelText(tokenizer, template)
