"""A pytest plugin: a time limit for each test, the outcome of each as a line of JSON in $PEERS_RESULTS, and no way out.

Some tests load pictures or models from other hosts: they fail at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

LIMIT_S = 120  # includes a server's start on a busy machine


_getaddrinfo = socket.getaddrinfo


def loopback_alone(host: Any, *rest: Any, **options: Any) -> Any:
    """Stand in for socket.getaddrinfo: no name of another host is looked up."""
    if host not in (None, "localhost", "127.0.0.1", "::1"):
        raise OSError(f"{host} is not on this machine; tests of peers ask loopback addresses alone")
    return _getaddrinfo(host, *rest, **options)


socket.getaddrinfo = loopback_alone


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Stop a test that takes longer than the limit, so that one hung request does not hold the others up."""

    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(LIMIT_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test's outcome: its call's, or its setup's where that did not pass."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        _write(report.nodeid, report.outcome, report.longreprtext)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write a file that cannot be imported as one failed test, so that it is not missed."""
    if report.failed:
        _write(report.nodeid, "failed", report.longreprtext)


def _write(test: str, outcome: str, text: str) -> None:
    told = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    line: dict[str, Any] = {"test": test, "outcome": outcome, "why": " | ".join(told[:2])[:300]}
    with Path(os.environ["PEERS_RESULTS"]).open("a") as out:
        print(json.dumps(line), file=out)
