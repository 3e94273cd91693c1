"""The time of a step: a roofline of reading and multiplying, with the measured efficiency of this engine in both.

Reading and multiplying overlap in part: the p-norm (p = 3) of the two times agrees with measurements at 1, 8 and 32
sequences, where a step is bound by one, the other or both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forearm.config.number_formats import WeightFormat
from forearm.plan.machines import CORE_GB_S, MULTIPLY_SHARE, READ_SHARE, Machine
from forearm.plan.work import Matrices, StepWork

# Efficiencies measured on a Zen 4 with two cores (avx512_bf16, the 0.5B shape): the share of read bandwidth that one
# stream reaches, and of the multiply peak at up to 32 rows and at 512 or more, after subtracting attention. They
# predict every figure of a later run (bench/results/engine/epyc-zen4-2-cores.json) within 10 % (a test). By their
# instruction counts Arm's loops are as good or better (bench/results/arm-loops.txt), but they were never timed on
# Graviton.
READ = 0.99
KV_READ = 0.58
FEW_ROWS, MANY_ROWS = 32, 512
SHARES = {"float": (0.86, 0.92), "int8": (0.71, 0.83), "grouped": (0.69, 0.79)}
ATTENTION = 0.55  # share of the bf16 peak, from the difference between prompts of 512 and 2048 tokens
OVERLAP = 3.0
LAYER_S = 12e-6  # five barriers and the small operations between them
STEP_S, SEQUENCE_S = 0.2e-3, 20e-6  # Python: 1.1 % of a step of 32 streams


@dataclass(frozen=True)
class Achieved:
    """The GFLOP/s of a matrix multiplication with few rows (up to FEW_ROWS) and with many (MANY_ROWS or more)."""

    few: float
    many: float


@dataclass(frozen=True)
class Rates:
    """The limits that compute threads reach on a machine: GB/s read, GFLOP/s (two operations a multiply-add).

    achieved: measured rates of whole multiplications by format; other formats get SHARES of the peak.
    """

    read_gb_s: float
    float_gflops: float
    bf16_gflops: float
    int8_gops: float
    measured: bool = False
    achieved: Mapping[WeightFormat, Achieved] = field(default_factory=dict)


def rates_of(machine: Machine, threads: int) -> Rates:
    """Return the rates of an instance type, from its data sheet."""
    generation = machine.generation
    cycles = threads * generation.clock_ghz * MULTIPLY_SHARE
    return Rates(
        read_gb_s=min(machine.memory_gb_s * READ_SHARE, threads * CORE_GB_S),
        float_gflops=cycles * generation.float_ops * generation.float_issue,
        bf16_gflops=cycles * generation.bf16_ops * generation.matrix_issue,
        int8_gops=cycles * generation.int8_ops * generation.matrix_issue,
    )


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of steps of one model on one engine. step_tokens: budget of a step."""

    work: StepWork
    rates: Rates
    step_tokens: int
    # The search for the highest rate comes back to the same few steps thousands of times.
    _decode_s: dict[tuple[int, int], float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a decode step of `sequences` sequences at a context length."""
        step = sequences, context
        if step not in self._decode_s:
            self._decode_s[step] = self._step_s(sequences, sequences, sequences, context, 0.0)
        return self._decode_s[step]

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a prompt alone, up to its first token, in steps of the token budget."""
        total, done = 0.0, 0
        while done < tokens:
            count = min(self.step_tokens, tokens - done)
            gflop = sum(4e-9 * a.width * _pairs(count, done, a.window) for a in self.work.attention)
            total += self._step_s(1, count, int(done + count == tokens), done + count, gflop)
            done += count
        return total

    def pool_s(self, texts: int, tokens: int) -> float:
        """Return the time of a pooling model's step of `texts` whole texts of `tokens` tokens each."""
        gflop = sum(4e-9 * a.width * texts * _pairs(tokens, tokens, a.window) for a in self.work.attention)
        return self._step_s(texts, texts * tokens, 0, tokens, gflop)

    def _step_s(self, sequences: int, tokens: int, logits: int, context: int, attention_gflop: float) -> float:
        """Return the time of a step: `sequences` read their keys, values and states once, `tokens` rows go through the
        layers and `logits` rows through the head.

        attention_gflop: of prompts; a single token's attention is bound by reading its keys and values.
        """
        read_s = self.work.read_bytes(tokens, logits) / (1e9 * READ * self.rates.read_gb_s)
        kept = sum(a.kv_bytes * min(context, a.window or context) for a in self.work.attention)
        kept_bytes = sequences * (kept + 2 * self.work.state_bytes)  # states are read and written
        multiply_s = sum(self._multiply_s(m, tokens) for m in self.work.body)
        multiply_s += sum(self._multiply_s(m, logits) for m in self.work.head)
        overlapped_s: float = (read_s**OVERLAP + multiply_s**OVERLAP) ** (1 / OVERLAP)
        attention_s = max(
            kept_bytes / (1e9 * KV_READ * self.rates.read_gb_s), attention_gflop / (ATTENTION * self.rates.bf16_gflops)
        )
        return overlapped_s + attention_s + LAYER_S * self.work.layers + STEP_S + SEQUENCE_S * sequences

    def _multiply_s(self, matrices: Matrices, rows: int) -> float:
        timed = self.rates.achieved.get(matrices.format)
        if timed is None:
            few, many = SHARES[kind_of(matrices.format)]
            timed = Achieved(few * self._peak(matrices.format), many * self._peak(matrices.format))
        full = min(1.0, max(0.0, (rows - FEW_ROWS) / (MANY_ROWS - FEW_ROWS)))
        return 2e-9 * matrices.weights * rows / (timed.few + (timed.many - timed.few) * full)

    def _peak(self, format: WeightFormat) -> float:
        """Return the peak GFLOP/s of this format's instructions; activations of 16 bits are multiplied as two of 8."""
        if kind_of(format) != "float":
            return self.rates.int8_gops / (2 if format.wide else 1)
        return self.rates.float_gflops if format.dtype in ("float32", "float16") else self.rates.bf16_gflops


def kind_of(format: WeightFormat) -> str:
    """Return the kind of multiplication: float, int8 (one scale a row), grouped (scales inside the row)."""
    if not format.is_integer:
        return "float"
    return "grouped" if format.group else "int8"


def _pairs(tokens: int, before: int, window: int) -> float:
    """Return the number of query-key pairs of `tokens` queries that follow `before` others."""
    if window and before + tokens > window:
        return float(tokens * min(window, before + tokens / 2))
    return tokens * (before + tokens / 2)
