"""The first token, before anybody is served."""

from __future__ import annotations

import pytest
from tests.history_executor import HistoryExecutor

from forearm.engine.admission import Terms
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.start import warm_up
from forearm.engine.step import Stepper
from forearm.errors import ConfigError


def test_one_token_is_computed_before_anybody_is_served() -> None:
    executor = HistoryExecutor()

    warm_up(Stepper(executor, StepTrace()), Terms(executor.vocab_size, executor.max_model_len))

    assert executor.steps == [1]


def test_a_model_that_gives_no_numbers_is_refused() -> None:
    executor = HistoryExecutor()
    executor.nan_after = 0

    with pytest.raises(ConfigError, match="the model's output has a NaN at the first token"):
        warm_up(Stepper(executor, StepTrace()), Terms(executor.vocab_size, executor.max_model_len))
