"""vLLM for CPUs as its package has it, with the engine in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


class Engine:
    """An LLMEngine of vLLM. format: the dtype, unless the checkpoint is quantized. model_impl: as vLLM's flag."""

    version = version("vllm-cpu")

    def __init__(
        self, model: str, format: str, threads: int, context: int, sequences: int, model_impl: str = "auto"
    ) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
        vllm = import_module("vllm")
        self._params = vllm.SamplingParams
        self._engine = vllm.LLM(
            model,
            dtype=format if "float" in format else "bfloat16",
            max_model_len=context,
            max_num_seqs=sequences,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
            model_impl=model_impl,
        ).llm_engine

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Return the times of each step's tokens, and their prompts."""
        for number, ids in enumerate(prompts):
            params = self._params(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            self._engine.add_request(str(number), {"prompt_token_ids": ids}, params)
        while self._engine.has_unfinished_requests():
            # A step's outputs carry the request's id, which newer versions make unique with a suffix.
            outputs = self._engine.step()
            yield time.perf_counter(), [int(o.request_id.split("-")[0]) for o in outputs if o.outputs[0].token_ids]
