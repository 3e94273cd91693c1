"""Small tasks with one right answer, for bench/quality/quality.py: made here, or part of the demo model's files.

A model of 135M parameters is wrong in many of them; the difference between a row's results and the truth's counts.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from forearm.model.checkpoint.hub import DEMO_MODEL

COUNT = 40
JSON_TOKENS = 48


class Tokens(Protocol):
    """The part of a tokenizer that the tasks use."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


class Predicts(Protocol):
    """The part of TextModel that the tasks use."""

    def logits(self, tokens: Sequence[int], begin: int = 0) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True)
class Question:
    """A prompt and its answers; the first is right."""

    prompt: str
    answers: tuple[str, ...]


def definitions(count: int = COUNT) -> list[Question]:
    """Return held-out questions of the demo model on WordNet's glosses, with the answers to three others."""
    lines = (DEMO_MODEL / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [[message["content"] for message in json.loads(line)["messages"]] for line in lines]
    asked = [turn for turn in turns if len(turn) == 2 and turn[0].startswith("What ")][: 4 * count]
    chosen = random.Random(1)
    found = []
    for question, right in asked[:count]:
        others = [answer for other, answer in asked if other != question]
        found.append(
            Question(f"Question: {question}\nAnswer:", (f" {right}", *(f" {o}" for o in chosen.sample(others, 3))))
        )
    return found


def copies(count: int = COUNT) -> list[Question]:
    """Return lines of random words and numbers, to be copied."""
    chosen = random.Random(2)
    found = []
    for _ in range(count):
        words = ["".join(chosen.choices(string.ascii_lowercase, k=5)) for _ in range(4)]
        line = f"{words[0]}-{chosen.randrange(1000)} {words[1]} {words[2]}{chosen.randrange(10)} {words[3].upper()}"
        found.append(
            Question(f"Original: the 3 red foxes\nCopy: the 3 red foxes\n\nOriginal: {line}\nCopy:", (f" {line}",))
        )
    return found


def sums(count: int = COUNT) -> list[Question]:
    """Return sums of two numbers below 50, each after four examples."""
    chosen = random.Random(3)
    found = []
    for _ in range(count):
        pairs = [(chosen.randrange(2, 50), chosen.randrange(2, 50)) for _ in range(5)]
        *shown, (a, b) = pairs
        lines = "".join(f"{x} + {y} = {x + y}\n" for x, y in shown)
        found.append(Question(f"{lines}{a} + {b} =", (f" {a + b}\n",)))
    return found


def records(count: int = COUNT // 2) -> list[str]:
    """Return sentences to be written as JSON, each after an example."""
    chosen = random.Random(4)
    names, towns = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"), ("Oslo", "Rome", "Lima", "Cairo", "Paris", "Quito")
    example = 'Sam is 31 and lives in Bern.\n{"name": "Sam", "age": 31, "city": "Bern"}\n\n'
    return [
        f"{example}{chosen.choice(names)} is {chosen.randrange(18, 90)} and lives in {chosen.choice(towns)}.\n{{"
        for _ in range(count)
    ]


class Tasks:
    """All tasks, with a tokenizer."""

    def __init__(self, tokenizer: Tokens) -> None:
        self._tokenizer = tokenizer

    def results(self, model: Predicts) -> dict[str, float]:
        """Return the share of right answers of each task."""
        return {
            "definitions": _mean(self._chosen(model, question) == 0 for question in definitions()),
            "copies": _mean(self._written(model, question) for question in copies()),
            "sums": _mean(self._written(model, question) == 1.0 for question in sums()),
            "JSON": _mean(self._is_record(model, prompt) for prompt in records()),
        }

    def _encoded(self, prompt: str, answer: str) -> tuple[list[int], int]:
        """Return the tokens of both, and the index of the answer's first one."""
        begin = self._tokenizer.encode(prompt)
        return [*begin, *self._tokenizer.encode(answer)], len(begin)

    def _chosen(self, model: Predicts, question: Question) -> int:
        """Return the index of the answer with the best mean log-probability."""
        scores = []
        for answer in question.answers:
            tokens, begin = self._encoded(question.prompt, answer)
            rows = model.logits(tokens)[begin - 1 : -1].astype(np.float64)
            best = rows.max(axis=1)
            all_of = best + np.log(np.exp(rows - best[:, None]).sum(axis=1))
            scores.append(float((rows[np.arange(len(rows)), tokens[begin:]] - all_of).mean()))
        return int(np.argmax(scores))

    def _written(self, model: Predicts, question: Question) -> float:
        """Return the share of the answer's tokens that are the most probable at their positions."""
        tokens, begin = self._encoded(question.prompt, question.answers[0])
        best = model.logits(tokens)[begin - 1 : -1].argmax(axis=1)
        return _mean(token == chosen for token, chosen in zip(tokens[begin:], best, strict=True))

    def _is_record(self, model: Predicts, prompt: str) -> bool:
        """Return whether the greedily generated text is JSON with the three keys."""
        tokens = self._tokenizer.encode(prompt)
        best = int(model.logits(tokens)[-1].argmax())
        text = "{"
        for at in range(len(tokens), len(tokens) + JSON_TOKENS):
            text += self._tokenizer.decode([best])
            if "}" in text:
                break
            best = int(model.logits([best], at)[-1].argmax())
        try:
            return set(json.loads(text[: text.find("}") + 1])) == {"name", "age", "city"}
        except ValueError:
            return False


def _mean(values: Any) -> float:
    return float(np.mean([float(value) for value in values]))
