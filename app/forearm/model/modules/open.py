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
from forearm.model.families.encoders.encoders import ENCODERS
from forearm.model.families.families import FAMILIES, TORCH_MISSING, family_of
from forearm.model.families.keys import read_json
from forearm.model.families.matrices import matrices
from forearm.model.gguf.gguf import is_gguf
from forearm.model.modules.coded import with_codes
from forearm.model.pooling.plan import PoolingPlan
from forearm.model.quantization.quantization import Asked, find_coded, quantization_of

if TYPE_CHECKING:
    from forearm.model.modules.architecture import Architecture

log = logging.getLogger(__name__)


def needs_transformers(folder: Path, impl: str, pooled: bool = False) -> bool:
    """Return whether transformers computes the model of this folder.

    impl: forearm, transformers, or auto: transformers if torch is here and there is no native family. pooled: the model
    pools, which encoders' families do, too.
    """
    if impl != "auto":
        return impl == "transformers"
    if is_gguf(folder) or _lacks_packages():
        return False
    return not _has_family(folder, pooled)


def _has_family(folder: Path, pooled: bool) -> bool:
    """Return whether forearm itself computes the model."""
    return family_of(read_json(folder / "config.json"), FAMILIES | ENCODERS if pooled else FAMILIES) is not None


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
    pooling: PoolingPlan | None = None,
) -> Checkpoint:
    """Open a model that transformers computes; arguments as open_checkpoint's.

    trust_remote_code: transformers may run the checkpoint's own Python code. pooling: how texts become vectors; None:
    the model generates text.
    Raises: ConfigError naming what is missing or not supported.
    """
    _check(folder, pooling)
    let_torch_sleep()
    quantized = quantization_of(read_json(folder / "config.json"), folder)
    tensors = read_tensors(folder) if quantized else {}
    find = find_coded(quantized, quantization, tensors, folder)  # refuses a method that is not the checkpoint's
    found, columns = _read(folder, pooling, trust_remote_code)
    config, coded = with_codes(found.config, find, tensors)
    most = config.max_positions if pooling is None else min(config.max_positions, pooling.max_tokens or 1 << 30)
    length = max_model_len or most
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
        pooling=pooling,
        columns=columns,
    )


def _check(folder: Path, pooling: PoolingPlan | None) -> None:
    """Raise ConfigError for a folder that only forearm itself computes, or without torch."""
    if is_gguf(folder):
        raise ConfigError(f"--model-impl transformers: {folder} is a GGUF file, which forearm itself computes")
    if _lacks_packages():
        raise ConfigError(f"--model-impl transformers: {TORCH_MISSING}")
    if pooling is not None and _has_family(folder, pooled=True):
        raise ConfigError(
            f"--model-impl transformers: {folder} embeds, scores or classifies, which forearm itself computes; "
            "leave the flag out"
        )


def _read(folder: Path, pooling: PoolingPlan | None, trust_remote_code: bool) -> tuple[Architecture, int]:
    """Return what the model needs, and the number of values of a text's output if it pools."""
    # These import torch, which takes seconds.
    from forearm.model.modules.architecture import read_architecture
    from forearm.model.modules.pooled import read_pooled

    if pooling is None:
        return read_architecture(folder, trust_remote_code), 0
    return read_pooled(folder, pooling, trust_remote_code)


def _log_executor(found: Architecture, folder: Path) -> None:
    """Log that transformers serves the model, how, and why it does."""
    native = _has_family(folder, found.config.pooled)
    why = "--model-impl says so" if native else f"forearm has no family {found.config.model_type}"
    if found.own_code:
        log.warning("transformers runs the checkpoint's own code (--trust-remote-code)")
    if found.config.pooled:
        log.info("transformers computes the model (%s), text by text, with its own attention and packed weights", why)
    elif found.own_cache:
        log.warning(
            "transformers computes the model (%s) with its own cache, sequence by sequence: %s", why, found.own_cache
        )
    else:
        log.info("transformers computes the model (%s), with forearm's attention and packed weights", why)
