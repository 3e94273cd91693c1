"""The engine of models that pool: requests, loop, executor."""
