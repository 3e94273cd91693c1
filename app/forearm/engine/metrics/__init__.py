"""Prometheus metrics and timings of the engine's steps."""
