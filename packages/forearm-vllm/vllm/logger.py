"""Loggers of scripts."""

import logging

__all__ = ["init_logger"]


def init_logger(name: str) -> logging.Logger:
    """Return the logger of that name."""
    return logging.getLogger(name)
