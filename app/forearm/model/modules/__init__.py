"""Models that transformers builds: their modules, with our paged attention and packed matrices in them."""
