"""The context of use that vLLM reports to its makers; forearm sends nothing."""

from enum import Enum

__all__ = ["UsageContext"]


class UsageContext(str, Enum):
    """A place that an engine runs in."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
