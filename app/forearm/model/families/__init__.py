"""Model families: config.json of every family as one ModelConfig."""
