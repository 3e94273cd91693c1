"""Many machines: a Ray Serve application whose replicas each run `forearm serve` (pip install forearm[ray]).

`serve run forearm.ray:app model=Qwen/Qwen2.5-0.5B-Instruct min_replicas=2 max_replicas=8 cpus=30`
"""

from __future__ import annotations

from forearm.ray.app import Arguments, app

__all__ = ["Arguments", "app"]
