"""Families with layers of Mamba and Mamba2."""
