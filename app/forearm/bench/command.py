"""`forearm bench KIND`: runs one kind, whose modules are imported only then."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib import import_module

from forearm.errors import ConfigError

USAGE = """usage: forearm bench KIND ...

  serve        a running server under load: latencies and throughput, one request rate or several
  throughput   this machine, all requests at once, without HTTP
  latency      this machine, one batch of requests
  startup      time until a model is ready, cold and warm
  plot FILES   results of serve as a figure

`forearm bench KIND --help` lists the flags: those of vllm bench."""


def bench(argv: Sequence[str]) -> int:
    """Run one kind of benchmark. Returns: the exit status.

    Raises: ConfigError.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if argv else 2
    if argv[0] not in KINDS:
        near = difflib.get_close_matches(argv[0], KINDS, n=1)
        raise ConfigError(f"there is no kind {argv[0]}{f'; did you mean {near[0]}?' if near else ''}\n\n{USAGE}")
    run: Callable[[Sequence[str]], int] = getattr(import_module(f"forearm.bench.{KINDS[argv[0]]}"), argv[0])
    return run(argv[1:])


# The module of each kind; its function has the kind's name.
KINDS = {"serve": "serve", "throughput": "offline", "latency": "offline", "startup": "startup", "plot": "plot"}
