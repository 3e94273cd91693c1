"""ServeConfig: settings of `forearm serve` itself, each with its flag, variable, unit and default."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.config.common import Common
from forearm.config.settings import number, setting, whole


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Common):
    """Settings of the supervisor, which starts and watches the engines and gunicorn."""

    data_parallel_size: int = setting(
        1,
        "engines, each with the whole model and its own cores, of one NUMA node where there are enough nodes; a "
        "request goes to the engine that has computed its beginning before, as far as load allows",
        flag="--data-parallel-size -dp",
        parse=whole(1, 64),
    )
    data_parallel_size_local: int | None = setting(
        None,
        "how many of these engines run on this machine: all",
        flag="--data-parallel-size-local -dpl",
        parse=whole(0, 64),
    )
    fail_on_environ_validation: bool = setting(
        False,
        "an unknown variable that begins with VLLM_ or FOREARM_ is an error; otherwise it is named in the log and "
        "ignored",
        flag="--fail-on-environ-validation",
        off="--no-fail-on-environ-validation",
    )
    engine_ready_timeout_s: float = setting(
        600.0,
        "time in which an engine must have loaded the model",
        env="VLLM_ENGINE_READY_TIMEOUT_S",
        unit="s",
        parse=number(1),
    )
    answer_timeout_s: float = setting(
        30.0,
        "time without an answer after which an engine's process is killed and started again (it answers during a step, "
        "too); also the time after which a stopped gunicorn master is",
        env="FOREARM_ANSWER_TIMEOUT",
        unit="s",
        parse=number(1),
    )
