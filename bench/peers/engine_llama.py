"""llama.cpp through the C interface of llama-cpp-python: llama_decode alone, without the time of sampling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from typing import Any

BATCH = 2048  # most tokens of one llama_decode


class Engine:
    """A context of llama.cpp. The file determines the format."""

    version = version("llama-cpp-python")

    def __init__(self, model: str, format: str, threads: int, context: int, sequences: int) -> None:
        self._c: Any = import_module("llama_cpp.llama_cpp")
        self._c.llama_backend_init()
        self._model = self._c.llama_model_load_from_file(model.encode(), self._c.llama_model_default_params())
        assert self._model, f"{model} was not loaded"
        params = self._c.llama_context_default_params()
        params.n_ctx = max(context, 64 * sequences)
        params.n_batch, params.n_seq_max = BATCH, sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self._context = self._c.llama_init_from_model(self._model, params)
        assert self._context, "no context"
        self._batch = self._c.llama_batch_init(BATCH, 0, 1)

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Return the times of each step's tokens, and their prompts."""
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        rows = [(s, i, id, i == len(ids) - 1) for s, ids in enumerate(prompts) for i, id in enumerate(ids)]
        for begin in range(0, len(rows), BATCH):
            self._decode(rows[begin : begin + BATCH])
        yield time.perf_counter(), list(range(len(prompts)))
        for step in range(tokens - 1):
            self._decode([(s, len(ids) + step, ids[step % len(ids)], True) for s, ids in enumerate(prompts)])
            yield time.perf_counter(), list(range(len(prompts)))

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = self._c.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}"
        self._c.llama_synchronize(self._context)
