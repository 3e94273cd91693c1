"""Endpoints for operators, and the pages for people: health, metrics, administration, documentation, playground."""
