"""ServeConfig: settings of `forearm serve` itself, each with its flag, variable, unit and default."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.config.common import Common
from forearm.config.settings import (
    number,
    setting,
    whole,
)


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Common):
    """`forearm serve` itself: what starts and watches the others."""

    data_parallel_size: int = setting(
        1,
        "engines, each with the whole model on cores of its own: of one NUMA node, where there are as many; a request "
        "goes where its beginning was computed before, as far as load allows",
        flag="--data-parallel-size -dp",
        parse=whole(1, 64),
    )
    data_parallel_size_local: int | None = setting(
        None, "how many of them run here: all", flag="--data-parallel-size-local -dpl", parse=whole(0, 64)
    )
    fail_on_environ_validation: bool = setting(
        False,
        "end the start where the environment has an unknown variable that begins with VLLM_ or FOREARM_; else such "
        "variables are named in the log and ignored",
        flag="--fail-on-environ-validation",
        off="--no-fail-on-environ-validation",
    )
    engine_ready_timeout_s: float = setting(
        600.0, "time an engine has to load the model", env="VLLM_ENGINE_READY_TIMEOUT_S", unit="s", parse=number(1)
    )
    answer_timeout_s: float = setting(
        30.0,
        "time without any answer of an engine's process, which answers while it computes too, until it is killed and "
        "started again; HTTP's first process if it is stopped so long",
        env="FOREARM_ANSWER_TIMEOUT",
        unit="s",
        parse=number(1),
    )
