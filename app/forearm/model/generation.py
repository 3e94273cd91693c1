"""generation_config.json: how the model's authors would have it sampled, and the tokens that end a text."""

from __future__ import annotations

from pathlib import Path

from forearm.model.keys import Keys, read_json

FILE = "generation_config.json"
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")


def generation_defaults(folder: Path) -> dict[str, float | int]:
    """Defaults for SamplingParams' fields of the same names, and `max_tokens` from max_new_tokens.

    As in vLLM, what the file does not say is left to SamplingParams. `do_sample` false without a temperature is greedy.

    Raises: ConfigError if the file is there and can't be read.
    """
    keys = _keys(folder)
    defaults: dict[str, float | int] = {k: keys.number(k) for k in _NUMBERS if keys.get(k) is not None}
    if keys.get("top_k") is not None:
        defaults["top_k"] = keys.integer("top_k")
    if keys.get("max_new_tokens") is not None:
        defaults["max_tokens"] = keys.integer("max_new_tokens")
    if keys.get("do_sample") is False and "temperature" not in defaults:
        defaults["temperature"] = 0.0
    return defaults


def generation_eos(folder: Path) -> tuple[int, ...]:
    """The file's eos_token_id, as ids."""
    return _keys(folder).ids("eos_token_id")


def _keys(folder: Path) -> Keys:
    return read_json(folder / FILE) if (folder / FILE).exists() else Keys({}, str(folder / FILE))
