"""Settings and fixtures that tests of several folders share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The threads of numpy spin between the small products of tests: two took twice the CPU time, and as long. It counts
# before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What tests start keeps weights and downloads here, not in the user's cache. huggingface_hub reads it when imported.
_CACHES = tempfile.TemporaryDirectory(prefix="forearm-tests-", ignore_cleanup_errors=True)
os.environ["HF_HOME"] = _CACHES.name

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Folders whose tests start processes and talk over sockets: a machine that stands still for seconds can fail them.
_OF_PROCESSES = ("api", "clients", "e2e", "engine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the gate's options."""
    parser.addoption(
        "--second-run", action="store_true", help="run a failed test of processes and sockets once more, and count it"
    )
    parser.addoption("--whole", action="store_true", help="run all of a long matrix of cases, not a sample of it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests of processes and sockets a second run. Numerics, kernels and models have none."""
    if config.getoption("--second-run"):
        here = Path(__file__).parent
        for item in items:
            if item.path.relative_to(here).parts[0] in _OF_PROCESSES:
                item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why the first runs failed."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser for all tests of a module."""
    from tests.browser import chromium  # here, because most tests need none

    with chromium() as one:
        yield one
