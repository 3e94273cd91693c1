"""--speculative-config: vLLM's keys, checked and read into one dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forearm.config.engine_config import EngineConfig
from forearm.errors import ConfigError

METHODS = ("ngram", "draft_model", "mtp")
MOST_TOKENS = 32  # of one draft
_TOKENS = 8  # default bound; drafts are no longer than they are measured to pay
_LOOKUP = (3, 5)  # default of the least and most tokens looked up
_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "quantization",
         "revision", "draft_tensor_parallel_size")  # fmt: skip


@dataclass(frozen=True)
class Drafting:
    """The way in which draft tokens are made.

    tokens       most tokens of one draft
    least, most  ngram: length of the sequences that are looked up, in tokens
    model        draft_model: folder or Hugging Face id of the draft model, with its `revision`
    quantization of the draft model, or of the layer of mtp
    """

    method: str
    tokens: int = _TOKENS
    least: int = _LOOKUP[0]
    most: int = _LOOKUP[1]
    model: str = ""
    revision: str = ""
    quantization: str = "none"

    @property
    def predicts(self) -> bool:
        """True if a layer of the model's own checkpoint drafts."""
        return self.method == "mtp"


def drafting_asked(config: EngineConfig) -> Drafting | None:
    """Read --speculative-config and --spec-*; None where nothing is drafted.

    Raises: ConfigError naming the key, its value and what it may be.
    """
    named = {"method": config.spec_method, "model": config.spec_model, "num_speculative_tokens": config.spec_tokens}
    given = {**(config.speculative_config or {}), **{name: value for name, value in named.items() if value}}
    try:
        return _read(given, config.model) if given else None
    except ValueError as error:
        raise ConfigError(f"--speculative-config: {error}") from None


def _read(given: Mapping[str, Any], served: str) -> Drafting:
    for key in given:
        if key not in _KEYS:
            raise ValueError(f"{key} is not known; the keys are {', '.join(_KEYS)}")
    model = given.get("model") or ""
    method = given.get("method") or ("ngram" if model in ("", "ngram", "[ngram]") else "draft_model")
    if isinstance(method, str) and method.endswith("_mtp"):  # vLLM's older names, one for each family
        method = "mtp"
    if method not in METHODS:
        raise ValueError(f"method {method} is not supported; write {', '.join(METHODS[:-1])} or {METHODS[-1]}")
    if method == "draft_model" and not (model and isinstance(model, str)):
        raise ValueError("method draft_model needs model: the folder or Hugging Face id of a smaller model")
    if method == "mtp" and model not in ("", served):
        raise ValueError(f"method mtp takes a layer of the model that is served, not of {model}; leave model out")
    if given.get("draft_tensor_parallel_size", 1) != 1:
        raise ValueError("draft_tensor_parallel_size must be 1: the draft model runs where the model does")
    # As in vLLM, a bound that is given alone is the other one, too.
    names = ("prompt_lookup_min", "prompt_lookup_max")
    bounds = [given.get(name) for name in names]
    least, most = _LOOKUP
    if bounds != [None, None]:
        least, most = (_whole(given, name, bounds[1 - i], 64) for i, name in enumerate(names))
    if least > most:
        raise ValueError(f"prompt_lookup_min {least} is more than prompt_lookup_max {most}")
    return Drafting(
        method=method,
        tokens=_whole(given, "num_speculative_tokens", _TOKENS, MOST_TOKENS),
        least=least,
        most=most,
        model=model if method == "draft_model" else "",
        revision=str(given.get("revision") or ""),
        quantization=str(given.get("quantization") or ("int8" if method == "mtp" else "none")),
    )


def _whole(given: Mapping[str, Any], name: str, default: Any, most: int) -> int:
    value = given.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 to {most}")
    return value
