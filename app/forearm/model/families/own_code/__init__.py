"""Families whose checkpoints come with code of their own, because transformers has no class of them."""
