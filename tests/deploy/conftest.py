"""Tests of a host where the role has been: build/deploy/bin/pytest tests/deploy --hosts=ssh://user@host [--sudo].

They read, and ask the server; they change nothing. What was deployed is told by the host's file deployed.json. Without
--hosts, as in `pytest tests`, none of them is collected. A key of the server's is taken from FOREARM_API_KEY.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the folder if no host is named (testinfra, which has the option, may not be installed)."""
    named = config.getoption("hosts", default=None)
    return True if collection_path.name.startswith("test_") and not named else None


@pytest.fixture
def deployed(host: Any) -> dict[str, Any]:
    """Return the host's deployed.json, which the role has written."""
    found: dict[str, Any] = json.loads(host.file("/etc/forearm/deployed.json").content_string)
    return found


@pytest.fixture
def url(deployed: dict[str, Any]) -> str:
    """Return the server's address as seen from the host."""
    return f"http://127.0.0.1:{deployed['port']}"
