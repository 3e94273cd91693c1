"""The choice of a tier: the best one, or the one that FOREARM_TIER names, or a loud refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forearm._native import tier_names


def tier_in_use(wanted: str | None) -> subprocess.CompletedProcess[str]:
    """Return the choice of a new process, with FOREARM_TIER set to `wanted` or unset."""
    environment = {name: value for name, value in os.environ.items() if name != "FOREARM_TIER"}
    if wanted is not None:
        environment["FOREARM_TIER"] = wanted
    code = "from forearm import _native; print(_native.tier())"
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_the_best_tier_comes_first_and_scalar_last() -> None:
    # Intel's VDPBF16PS is slower than its FMA (tiers.cpp): what has it is taken there only when it is named.
    intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    best = [name for name in tier_names() if not (intel and name == "avx512_bf16")]

    assert tier_names()[-1] == "scalar"
    assert tier_in_use(None).stdout.strip() == best[0]
    assert tier_in_use("").stdout.strip() == best[0]


@pytest.mark.parametrize("tier", tier_names())
def test_a_tier_can_be_forced_by_name(tier: str) -> None:
    assert tier_in_use(tier).stdout.strip() == tier


def test_a_tier_that_cannot_run_is_refused_with_those_that_can() -> None:
    refused = tier_in_use("sve9000")

    assert refused.returncode != 0
    assert "FOREARM_TIER is 'sve9000'" in refused.stderr
    assert ", ".join(tier_names()) in refused.stderr
