"""How texts are pooled."""

from forearm import PoolingParams

__all__ = ["PoolingParams"]
