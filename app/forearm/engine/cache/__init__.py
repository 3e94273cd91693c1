"""The paged KV cache: blocks, groups of layers that have blocks of their own, and the prefix cache."""
