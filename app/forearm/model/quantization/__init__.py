"""Quantized checkpoints and the formats of packed matrices."""
