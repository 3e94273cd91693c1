"""Opens a model folder that transformers computes. Imports torch only once such a model is opened."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from forearm.config.environment import let_torch_sleep
from forearm.config.number_formats import DTYPES, KV_DTYPES
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint, dtype_of
from forearm.model.checkpoint.formats import plan_formats
from forearm.model.checkpoint.shards import read_tensors
from forearm.model.families.families import FAMILIES, TORCH_MISSING, family_of
from forearm.model.families.keys import read_json
from forearm.model.families.matrices import matrices
from forearm.model.gguf.gguf import is_gguf
from forearm.model.modules.coded import with_codes
from forearm.model.quantization.quantization import Asked, find_coded, quantization_of

if TYPE_CHECKING:
    from forearm.model.modules.architecture import Architecture

log = logging.getLogger(__name__)


def needs_transformers(folder: Path, impl: str) -> bool:
    """Return whether transformers computes the model of this folder.

    impl: forearm, transformers, or auto: transformers if torch is here and there is no native family.
    """
    if impl != "auto":
        return impl == "transformers"
    if is_gguf(folder) or _lacks_packages():
        return False
    return family_of(read_json(folder / "config.json"), FAMILIES) is None


def _lacks_packages() -> bool:
    return any(find_spec(name) is None for name in ("torch", "transformers"))


def open_modules(
    folder: Path,
    *,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
    allow_longer: bool = False,
    quantization: Asked,
    trust_remote_code: bool = False,
) -> Checkpoint:
    """Open a model that transformers computes; arguments as open_checkpoint's.

    trust_remote_code: transformers may run the checkpoint's own Python code.

    Raises: ConfigError naming what is missing or not supported.
    """
    if is_gguf(folder):
        raise ConfigError(f"--model-impl transformers: {folder} is a GGUF file, which forearm itself computes")
    if _lacks_packages():
        raise ConfigError(f"--model-impl transformers: {TORCH_MISSING}")
    let_torch_sleep()
    from forearm.model.modules.architecture import read_architecture  # imports torch, which takes seconds

    quantized = quantization_of(read_json(folder / "config.json"), folder)
    tensors = read_tensors(folder) if quantized else {}
    find = find_coded(quantized, quantization, tensors, folder)  # refuses a method that is not the checkpoint's
    found = read_architecture(folder, trust_remote_code)
    config, coded = with_codes(found.config, find, tensors)
    length = max_model_len or config.max_positions
    if length > config.max_positions and not allow_longer:
        raise ConfigError(f"--max-model-len {length}: the model's context is {config.max_positions} tokens")
    weight_dtype = config.dtype if dtype == "auto" else dtype_of(dtype, "--dtype", DTYPES)
    _log_executor(found, folder)
    return Checkpoint(
        folder=folder,
        config=config,
        weight_dtype=weight_dtype,
        kv_dtype=weight_dtype if kv_dtype == "auto" else dtype_of(kv_dtype, "--kv-cache-dtype", KV_DTYPES),
        max_model_len=length,
        sources=coded,
        formats=plan_formats(matrices(config), coded, weight_dtype, quantization, quantized is not None, False),
        method=quantized[0] if quantized else "",
        own_cache=found.own_cache,
        recomputes=found.recomputes,
        module_bytes=found.module_bytes,
        own_code=found.own_code,
    )


def _log_executor(found: Architecture, folder: Path) -> None:
    """Log that transformers serves the model, how, and why it does."""
    native = family_of(read_json(folder / "config.json"), FAMILIES) is not None
    why = "--model-impl says so" if native else f"forearm has no family {found.config.model_type}"
    if found.own_code:
        log.warning("transformers runs the checkpoint's own code (--trust-remote-code)")
    if found.own_cache:
        log.warning(
            "transformers computes the model (%s) with its own cache, sequence by sequence: %s", why, found.own_cache
        )
    else:
        log.info("transformers computes the model (%s), with forearm's attention and packed weights", why)
