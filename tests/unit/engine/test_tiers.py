"""Tiers that the test at start found wrong are told, in the log and in the metrics."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from forearm.engine.host import kernel_tiers, placement
from forearm.engine.host.instructions import instructions


def test_a_sound_machine_has_one_tier_and_none_quarantined() -> None:
    registry = CollectorRegistry()
    registry.register(kernel_tiers.Tiers())
    text = generate_latest(registry).decode()
    assert f'forearm:kernel_tier_info{{tier="{placement.tier()}"}} 1.0' in text
    assert "forearm:kernel_tiers_quarantined 0.0" in text


def test_a_wrong_tier_is_counted_and_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    registry.register(kernel_tiers.Tiers("neon_mm", [("sve256", "gemm")]))
    text = generate_latest(registry).decode()
    assert 'forearm:kernel_tier_info{tier="neon_mm"} 1.0' in text
    assert "forearm:kernel_tiers_quarantined 1.0" in text

    monkeypatch.setattr(placement, "quarantined", lambda: [("sve256", "gemm")])
    with caplog.at_level(logging.ERROR):
        kernel_tiers.tell()
    assert "sve256 gives wrong results in gemm" in caplog.text


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (  # of a Graviton3, shortened
            "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp sha512 sve svei8mm svebf16 i8mm bf16 dgh rng\n\n"
            "processor\t: 1\nFeatures\t: fp sve2\n",
            "bf16,i8mm,dotprod,sve",
        ),
        ("processor\t: 0\nflags\t\t: fpu avx2 fma avx512f avx512_vnni amx_int8\n", "avx2,avx512f,avx512_vnni,amx_int8"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "none"),
        ("", "none"),
    ],
)
def test_instructions_are_those_the_kernel_reports(tmp_path: Path, cpuinfo: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)

    assert instructions(tmp_path / "cpuinfo") == expected
