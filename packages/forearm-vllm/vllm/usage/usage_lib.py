"""Where an engine runs, which vLLM reports to its makers. forearm sends nothing."""

from enum import Enum

__all__ = ["UsageContext"]


class UsageContext(str, Enum):
    """Where an engine runs."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
