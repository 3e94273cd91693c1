"""Models that pool: poolers, sentence-transformers' modules, layers after the encoder."""
