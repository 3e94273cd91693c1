"""Parameters of pooling requests."""

from forearm import PoolingParams

__all__ = ["PoolingParams"]
