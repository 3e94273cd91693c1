"""Checkpoints: files found, headers read, tensors checked, weights packed."""
