"""Random faults of a fixed seed; `python -m tests.e2e.fault_matrix` runs thousands of others."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.e2e.fault_matrix import run_many

RUNS, LANES = 200, 3


def test_no_fault_leaves_a_client_without_an_answer_or_a_server_that_does_not_come_back() -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path: Unix sockets lie below it
        found, wrong = run_many(Path(folder), RUNS, seed=1, lanes=LANES)

    assert not wrong, "\n\n".join(wrong)
    assert found["runs"] == RUNS
    assert found["answer"] > RUNS
    assert found["cut"] + found["refused"] + found["error event"] > 20, f"the faults reached no request: {found}"
