"""No unit test sees the variables that forearm reads, or says something of, but those it sets itself."""

from __future__ import annotations

import pytest

from forearm.config.environment import environment


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment():  # torch, where another test has imported it, sets its own
        if name.startswith(("VLLM_", "FOREARM_", "OMP_", "KMP_", "CPU_VISIBLE", "TORCHINDUCTOR_")):
            monkeypatch.delenv(name)
