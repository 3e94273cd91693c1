"""Models that pool: poolers, sentence-transformers' modules, layers behind the encoder."""
