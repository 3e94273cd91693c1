"""One thread for torch: the models of these tests are so small that a second one only spins."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_torch() -> None:
    """Begin each file so: an executor with modules of transformers sets as many as it has itself."""
    torch.set_num_threads(1)
