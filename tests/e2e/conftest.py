from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for a Unix socket's: with several pytest processes that of tmp_path is longer."""
    with tempfile.TemporaryDirectory(prefix="short-") as folder:
        yield Path(folder)
