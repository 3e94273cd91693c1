"""Sampling defaults and end-of-text tokens of a model, from generation_config.json or a .gguf file's own keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys, read_json
from forearm.model.gguf.gguf import is_gguf, read_gguf_file
from forearm.wire import range_missed

log = logging.getLogger(__name__)

FILE = "generation_config.json"
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
# What an operator may set besides those: the fields that api/generation/sampling_params.py takes of the defaults.
_MORE_NUMBERS = ("presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k", "n", "min_tokens", "max_tokens", "max_new_tokens")

# A .gguf file has no generation_config.json. Sampled at temperature 1 from the whole vocabulary, a small quantized
# model produces nonsense, so parameters that the file's own keys leave open have llama.cpp's defaults
# (common_params_sampling in common/common.h), which Ollama uses too. The keys after "general.sampling." are those of
# llama-arch.cpp.
_GGUF_DEFAULTS: dict[str, float | int] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_GGUF_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def sampling_defaults(model: Path, generation_config: str, override: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the server's defaults for requests, by the names of SamplingParams.

    model: a folder or .gguf file. generation_config: auto (the model's own), vllm (none), or a folder.
    override: changes to these defaults, by generation_config.json's names.

    Raises: ConfigError.
    """
    found: dict[str, Any] = {}
    if generation_config == "auto":
        found = dict(generation_defaults(model))
    elif generation_config != "vllm":
        if not Path(generation_config).is_dir():
            raise ConfigError(f"--generation-config {generation_config}: no such folder; write auto, vllm or a folder")
        found = dict(generation_defaults(Path(generation_config)))
    # Out of range, a value would refuse each request; of another type than in the engine's messages, it would end the
    # connection, and every stream on it.
    for name, value in tuple(found.items()):
        if remedy := range_missed(name, value):
            log.warning("%s: its default %s = %s is not used; it should be %s", model, name, value, remedy)
            del found[name]
    keys = Keys(dict(override or {}), "--override-generation-config")
    numbers: dict[str, float] = {name: keys.number(name) for name in (*_NUMBERS, *_MORE_NUMBERS) if name in keys}
    numbers |= {name: keys.integer(name) for name in _INTEGERS if name in keys}
    for name, value in numbers.items():
        if remedy := range_missed("max_tokens" if name == "max_new_tokens" else name, value):
            raise keys.wrong(name, remedy)
    for name in sorted((override or {}).keys() - numbers.keys()):
        # As in vLLM they do nothing, among them keys of generation_config.json such as do_sample and eos_token_id.
        log.warning(
            "--override-generation-config: %s has no effect; write %s",
            *(name, ", ".join((*_NUMBERS, *_MORE_NUMBERS, *_INTEGERS))),
        )
    changes = dict(numbers)
    if "max_new_tokens" in changes:
        changes["max_tokens"] = changes.pop("max_new_tokens")
    return {**found, **changes}


def generation_defaults(folder: Path) -> dict[str, float | int]:
    """Return a model's defaults for SamplingParams' fields of the same names, and `max_tokens` from max_new_tokens.

    As in vLLM, values that the file does not have are left to SamplingParams, and `do_sample` false without a
    temperature is greedy. A .gguf file has its general.sampling keys, and llama.cpp's defaults for the others.

    Raises: ConfigError if the file exists and can't be read.
    """
    defaults: dict[str, float | int]
    if is_gguf(folder):
        keys = Keys(read_gguf_file(folder, texts=False).metadata, str(folder))
        defaults = dict(_GGUF_DEFAULTS)
        for name, key in _GGUF_KEYS.items():
            stored = f"general.sampling.{key}"
            if stored in keys:  # in llama.cpp a value below 0 switches the parameter off, as 0 does
                defaults[name] = max(keys.integer(stored) if name == "top_k" else keys.number(stored), 0)
        return defaults
    keys = generation_keys(folder)
    defaults = {k: keys.number(k) for k in _NUMBERS if keys.get(k) is not None}
    if keys.get("top_k") is not None:
        defaults["top_k"] = keys.integer("top_k")
    if keys.get("max_new_tokens") is not None:
        defaults["max_tokens"] = keys.integer("max_new_tokens")
    if keys.get("do_sample") is False and "temperature" not in defaults:
        defaults["temperature"] = 0.0
    return defaults


def eos_ids(keys: Keys, vocab_size: int, key: str = "eos_token_id") -> tuple[int, ...]:
    """Return the ids of end-of-text tokens from a key of config.json, generation_config.json or GGUF metadata.

    Raises: ConfigError for an id outside the vocabulary, with which no text would ever end.
    """
    ids = keys.ids(key)
    if not all(0 <= token < vocab_size for token in ids):
        raise keys.wrong(key, f"a token of the vocabulary, 0 to {vocab_size - 1}")
    return ids


def generation_keys(folder: Path) -> Keys:
    """Return the keys of generation_config.json; none if the file does not exist."""
    return read_json(folder / FILE) if (folder / FILE).exists() else Keys({}, str(folder / FILE))
