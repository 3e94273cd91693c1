"""Families whose tokens attend to the keys that an indexer chooses."""
