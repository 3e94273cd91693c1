"""Two small layers are timed in the formats that a model has."""

from __future__ import annotations

import pytest

from forearm.config.number_formats import AT_LOAD, WeightFormat
from forearm.engine.host.placement import Plan
from forearm.plan.calibration import achieved
from forearm.plan.cost import Achieved, Cost, Rates
from forearm.plan.work import AttentionWork, Matrices, StepWork

ONE = Plan(1, (), (), 1, (), (1,))
INT4 = AT_LOAD["int4"]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int4-g32", "fp8"])
def test_a_format_is_timed_with_few_rows_and_with_many(name: str) -> None:
    format = AT_LOAD.get(name) or WeightFormat(name)  # type: ignore[arg-type]

    timed = achieved([format], ONE)[format]

    assert 0.1 < timed.few < 10_000  # GFLOP/s of one thread
    assert 0.1 < timed.many < 10_000


def test_gptqs_int4_is_timed_as_the_one_of_its_group_and_an_odd_group_is_left_out() -> None:
    gptq = WeightFormat("int4", 128, "float16", zero="int8")
    odd = WeightFormat("int4", 48, "float16")

    assert list(achieved([gptq, odd], ONE)) == [gptq]


def test_what_was_timed_is_what_is_predicted_with() -> None:
    work = StepWork((Matrices(INT4, 10**9, 10**9 // 2),), (), (AttentionWork(0, 1, 1, 1),), 1)
    peak = Rates(1e6, 1000.0, 1000.0, 1000.0)
    timed = Rates(1e6, 1000.0, 1000.0, 1000.0, achieved={INT4: Achieved(few=100.0, many=200.0)})

    assert Cost(work, timed, 512).decode_s(32, 1) == pytest.approx(2e-9 * 1e9 * 32 / 100, rel=0.01)
    assert Cost(work, timed, 512).prefill_s(512) == pytest.approx(2e-9 * 1e9 * 512 / 200, rel=0.01)
    assert Cost(work, peak, 512).prefill_s(512) == pytest.approx(2e-9 * 1e9 * 512 / (0.79 * 1000), rel=0.01)
