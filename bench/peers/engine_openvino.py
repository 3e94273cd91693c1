"""OpenVINO GenAI: its continuous batching pipeline, stepped one step at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version

import numpy as np


class Engine:
    """A pipeline of OpenVINO GenAI. The model's files determine the format, the plugin that of activations."""

    version = version("openvino-genai")

    def __init__(self, model: str, format: str, threads: int, context: int, sequences: int) -> None:
        self._genai, self._openvino = import_module("openvino_genai"), import_module("openvino")
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = sequences
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = self._genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._requests = 0

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Return the times of each step's tokens, and their prompts."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        handles = []
        for ids in prompts:
            tensor = self._openvino.Tensor(np.array([ids], np.int64))
            handles.append(self._pipeline.add_request(self._requests, tensor, config))
            self._requests += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            yield now, [number for number, handle in enumerate(handles) if handle.can_read() and handle.read()]
