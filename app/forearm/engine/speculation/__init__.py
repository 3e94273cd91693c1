"""Speculative decoding: drafts, their sources and their length."""
