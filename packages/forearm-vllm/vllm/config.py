"""Configs that scripts hand to LLM. Each is a dict of what it is given: forearm checks the keys where it reads them."""

from typing import Any

__all__ = ["CompilationConfig", "KVTransferConfig", "PoolerConfig", "StructuredOutputsConfig"]


class PoolerConfig(dict[str, Any]):
    """Settings of a pooling model's vectors: LLM's pooler_config."""


class StructuredOutputsConfig(dict[str, Any]):
    """Defaults of constraints: LLM's structured_outputs_config."""


class CompilationConfig(dict[str, Any]):
    """LLM's compilation_config, which has no effect: nothing is compiled."""


class KVTransferConfig(dict[str, Any]):
    """LLM's kv_transfer_config, which LLM refuses: KV blocks are not moved between machines."""
