"""Endpoints that pool: embeddings, scores, classes."""
