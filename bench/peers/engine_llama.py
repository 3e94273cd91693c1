"""llama.cpp, or its fork ik_llama.cpp: llama_steps.cpp, which calls llama_decode, as a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator


class Engine:
    """A context of llama.cpp. The file determines the format. steps: the program that computes it."""

    def __init__(self, model: str, format: str, threads: int, context: int, sequences: int, steps: str) -> None:
        sizes = [threads, max(context, 64 * sequences), sequences]
        self._process = subprocess.Popen(
            [steps, model, *map(str, sizes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = self._line()

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Return the times of each step's tokens, and their prompts."""
        assert self._process.stdin
        numbers = [tokens, len(prompts)]
        for prompt in prompts:
            numbers += [len(prompt), *prompt]
        self._process.stdin.write(" ".join(map(str, numbers)) + "\n")
        self._process.stdin.flush()
        for _ in range(tokens):
            yield float(self._line()), list(range(len(prompts)))

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "llama-steps ended"
        return line.strip()
