"""Settings and fixtures that tests of several folders share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# What tests start keeps weights and downloads here, not in the user's cache. huggingface_hub reads it when imported.
_CACHES = tempfile.TemporaryDirectory(prefix="forearm-tests-", ignore_cleanup_errors=True)
os.environ["HF_HOME"] = _CACHES.name

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser for all tests of a module."""
    from tests.browser import chromium  # here, because most tests need none

    with chromium() as one:
        yield one
