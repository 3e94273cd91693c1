"""Files on disk become weights in memory: configs of every family, checkpoints, loading."""
