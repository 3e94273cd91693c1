"""Threads with room for deep recursion: llguidance follows a schema's references and a grammar's rules by recursion."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

# Of address space; memory is taken as it is used. With the 8 MiB that threads have otherwise, 1500 references in a row
# ended the process. The deepest ones that json_schema.py and constraints.py let through made a whole process
# 177 MB large (tests/unit/text/test_deep_threads.py has them).
STACK_BYTES = 512 << 20

_size = threading.Lock()  # the size is the whole process'


def deep_threads(count: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads are there already, each with this much stack."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    together = threading.Barrier(count)  # nobody is idle before the last one is there: each gets a thread of its own
    with _size:
        before = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(count):
                pool.submit(together.wait)
        finally:
            threading.stack_size(before)
    return pool
