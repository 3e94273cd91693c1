"""Parameters of pooling requests."""

from forearm import PoolingParams
from forearm.offline.pooling_outputs import LateChunkingParams

__all__ = ["LateChunkingParams", "PoolingParams"]
