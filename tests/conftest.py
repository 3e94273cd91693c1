"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser for all tests of a module."""
    from tests.browser import chromium  # here, because most tests need none

    with chromium() as one:
        yield one
