"""Structured output: constraints of requests as grammars of llguidance."""
