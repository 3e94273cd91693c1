"""Threads with a large stack: llguidance follows a schema's references and a grammar's rules by recursion."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

# Of address space; memory is only used as far as the stack grows. With the usual 8 MiB, a chain of 1500 references
# crashed the process. The deepest ones that json_schema.py and constraints.py accept made the whole process 177 MB
# large (tests/unit/text/test_deep_threads.py has them).
STACK_BYTES = 512 << 20

_size = threading.Lock()  # threading.stack_size applies to the whole process


def deep_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads, each with this much stack, have already started."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    together = threading.Barrier(count)  # no thread is idle before the last has started, so that `count` threads start
    with _size:
        before = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(count):
                pool.submit(together.wait)
        finally:
            threading.stack_size(before)
    return pool
