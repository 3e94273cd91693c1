"""What passes between the loop's thread and whoever feeds it, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from forearm import wire


@dataclass(frozen=True)
class From:
    """A message of a connection."""

    connection: int
    message: wire.Submit | wire.Abort | wire.ForgetPrefixes


@dataclass(frozen=True)
class Texts:
    """A connection's texts, for a PoolingLoop alone."""

    connection: int
    message: wire.Embed


@dataclass(frozen=True)
class Profiling:
    """A connection's wish about the recording of steps."""

    connection: int
    message: wire.Profile


@dataclass(frozen=True)
class Gone:
    """A connection has closed: nobody waits for what was its."""

    connection: int


@dataclass(frozen=True)
class Drain:
    """Take nothing new, finish what is there, end."""


@dataclass(frozen=True)
class Stop:
    """End now; what is open is aborted."""


Inward = From | Texts | Profiling | Gone | Drain | Stop
Outward = tuple[int, wire.FromEngine]  # to this connection


@dataclass(frozen=True)
class Snapshot:
    """What other threads may know of the loop. `step_s`: when a step last ended; None while there is nothing to do."""

    running: int
    waiting: int
    load: wire.Load
    kv_usage: float
    step_s: float | None
    draining: bool
