"""forearm: LLM's own engine, stepped one step at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from forearm import LLM, SamplingParams, wire
from forearm.engine.inbox import Received


class Engine:
    """An LLM that is stepped here.

    format: bfloat16, float16 or float32, a value of --quantization, or the type of a GGUF file. weight_cache: a folder;
    empty: none. model_impl: as --model-impl.
    """

    version = version("forearm")

    def __init__(
        self, model: str, format: str, threads: int, context: int, sequences: int, weight_cache: str = "",
        model_impl: str = "auto",
    ) -> None:  # fmt: skip
        wide = format in ("bfloat16", "float16", "float32")
        others: dict[str, Any] = {} if model.endswith(".gguf") else {"dtype" if wide else "quantization": format}
        self._llm = LLM(
            model,
            max_model_len=context,
            max_num_seqs=sequences,
            enable_prefix_caching=False,
            omp_num_threads=threads,
            kv_cache_memory_bytes=2 << 30,
            weight_cache=weight_cache,
            model_impl=model_impl,
            **others,
        )

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Return the times of each step's tokens, and their prompts."""
        loop = self._llm._loop  # LLM.generate steps it too, but returns only when all requests have ended
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for number, ids in enumerate(prompts):
            loop.take(Received(0, wire.Submit(request_id=str(number), prompt_token_ids=ids, params=params)))
        loop.outbox.clear()
        while loop.busy:
            loop.step()
            numbers = [int(m.request_id) for _, m in loop.outbox if isinstance(m, wire.Tokens)]
            loop.outbox.clear()
            yield time.perf_counter(), numbers
