"""Connections of an API worker to the engines."""
