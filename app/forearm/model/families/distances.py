"""Buckets of distances: the rows of the bias that attention adds to a score by the distance of its two tokens.

Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1: near distances have a bucket each, farther ones share buckets
that grow with the logarithm of the distance, and all beyond the farthest share the last.
"""

from __future__ import annotations

import math

import numpy as np

MOST_DISTANCE = 1 << 14  # the largest bound that a config.json may give; models have 128


def distance_buckets(buckets: int, reach: int) -> tuple[int, ...]:
    """Return the bucket of each distance key - query from -reach to reach; farther ones are in the same as those.

    The first half of the `buckets` is of keys up to the query, the second of keys after it. Bounds between buckets are
    rounded in float32, as transformers rounds them.
    """
    half = buckets // 2
    exact = half // 2
    distance = np.arange(reach + 1)
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(reach / exact))
    shared = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int64), half - 1)
    one_way = np.where(distance < exact, distance, shared)
    return (*one_way[::-1].tolist(), *(one_way[1:] + half).tolist())
