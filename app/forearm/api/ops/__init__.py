"""Endpoints for operators, and pages for people: health, metrics, administration, documentation, playground."""
