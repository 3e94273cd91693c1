"""A model folder without a model: one token a byte; a chat's prompt is its contents and EOS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.tokenization_utils_tokenizers import TokenizersBackend

TEMPLATE = (
    "{% for message in messages %}{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('nobody is called ' ~ message.role) }}{% endif %}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ eos_token }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's characters for the bytes 0 to 255, in the order of the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_letters(folder: Path, template: str | None = TEMPLATE, special: Sequence[str] = ()) -> Path:
    """ids 0 to 255 are the bytes, 256 is <eos>, 257 <bos>, then come `special` ones."""
    tokenizer = Tokenizer(models.BPE({char: byte for byte, char in enumerate(byte_alphabet())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<eos>", "<bos>", *special)]
    )
    backend = TokenizersBackend(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<bos>"
    )
    backend.save_pretrained(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 20}))
    return folder
