"""LoRA adapters, which forearm does not have."""

from typing import Any

from forearm import LLM

__all__ = ["LoRARequest"]


class LoRARequest:
    """A request for an adapter: making one is refused, with the remedy."""

    def __init__(self, *args: Any, **others: Any) -> None:
        """Raises: InvalidRequest."""
        LLM.refuse_lora(self)
