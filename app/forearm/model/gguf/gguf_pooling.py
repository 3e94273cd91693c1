"""The kind of pooling of a .gguf file's model, which has none if it generates text.

The API's start reads this alone, without the families.

Source: enum llama_pooling_type of ggml-org/llama.cpp.
"""

from __future__ import annotations

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys

# Architectures whose tokens see those on both sides; their family's model type.
ENCODERS = {
    "bert": "bert", "nomic-bert": "nomic_bert", "nomic-bert-moe": "nomic_bert_moe",
    "jina-bert-v2": "jina_bert_v2", "jina-bert-v3": "jina_embeddings_v3", "modern-bert": "modernbert",
    "eurobert": "llama", "llama-embed": "llama", "neo-bert": "neobert", "t5encoder": "t5",
    "gemma-embedding": "gemma3_text",
}  # fmt: skip
NONE, MEAN, FIRST, LAST, RANK = range(5)  # none: vectors of tokens alone; rank: scores of pairs


def pooling_kind(keys: Keys, runner: str, convert: str) -> int | None:
    """Return the kind of pooling that a model is served with, NONE if its file has none; None if it generates text.

    keys: the file's metadata. runner, convert: the settings.
    Raises: ConfigError naming the key or flag that asks for a function that the model does not have.
    """
    architecture = keys.text("general.architecture", "")
    key = f"{architecture}.pooling_type"
    kind, encoder = keys.optional_integer(key), architecture in ENCODERS
    if kind not in (None, NONE, MEAN, FIRST, LAST, RANK):
        raise keys.wrong(key, "0 (none), 1 (mean), 2 (first token), 3 (last token) or 4 (scores of pairs)")
    if runner == "generate":
        if encoder:
            raise ConfigError(
                f"--runner generate: {keys.source} is an encoder ({architecture}) and generates no text; leave it out"
            )
        return None
    wanted = runner == "pooling" or convert in ("embed", "classify")
    return kind or NONE if encoder or kind or wanted else None
