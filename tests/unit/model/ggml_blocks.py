"""Blocks of ggml, value by value, as one would explain them: what the fast decoders are held against.

Each gives [(scale, code, offset), ...] of one block with w = scale * code + offset, exactly (Python's floats hold a
float16 times a few bits).
Source: ggml-quants.c (dequantize_row_*), github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Value = tuple[float, int, float]


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2], np.float16)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def nibble(packed: bytes, i: int, width: int) -> int:
    """Value i where `width` bytes hold their low halves' values first, then their high halves'."""
    run, place = divmod(i, 2 * width)
    byte = packed[run * width + place % width]
    return byte >> 4 if place >= width else byte & 15


def q4_0(block: bytes) -> list[Value]:
    return [(half(block, 0), nibble(block[2:], i, 16) - 8, 0.0) for i in range(32)]


def q4_1(block: bytes) -> list[Value]:
    return [(half(block, 0), nibble(block[4:], i, 16), half(block, 2)) for i in range(32)]


def q5_0(block: bytes) -> list[Value]:
    fifth = int.from_bytes(block[2:6], "little")
    return [(half(block, 0), (nibble(block[6:], i, 16) | (fifth >> i & 1) << 4) - 16, 0.0) for i in range(32)]


def q5_1(block: bytes) -> list[Value]:
    fifth = int.from_bytes(block[4:8], "little")
    return [(half(block, 0), nibble(block[8:], i, 16) | (fifth >> i & 1) << 4, half(block, 2)) for i in range(32)]


def q8_0(block: bytes) -> list[Value]:
    return [(half(block, 0), signed(block[2 + i]), 0.0) for i in range(32)]


def q2_k(block: bytes) -> list[Value]:
    found = []
    for i in range(256):
        group = block[i // 16]
        code = block[16 + i // 128 * 32 + i % 32] >> (2 * (i % 128 // 32)) & 3
        found.append((half(block, 80) * (group & 15), code, -half(block, 82) * (group >> 4)))
    return found


def q3_k(block: bytes) -> list[Value]:
    found = []
    for i in range(256):
        j = i // 16
        low = block[96 + j % 8] >> (4 if j >= 8 else 0) & 15
        high = block[104 + j % 4] >> (2 * (j // 4)) & 3
        code = block[32 + i // 128 * 32 + i % 32] >> (2 * (i % 128 // 32)) & 3
        code -= 0 if block[i % 32] >> (i // 32) & 1 else 4
        found.append((half(block, 108) * ((low | high << 4) - 32), code, 0.0))
    return found


def six_bits(packed: bytes, j: int) -> tuple[int, int]:
    """Scale and minimum of group j of 8 (get_scale_min_k4)."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return packed[j + 4] & 15 | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6) << 4


def q4_k(block: bytes) -> list[Value]:
    found = []
    for i in range(256):
        scale, minimum = six_bits(block[4:16], i // 32)
        found.append((half(block, 0) * scale, nibble(block[16:], i, 32), -half(block, 2) * minimum))
    return found


def q5_k(block: bytes) -> list[Value]:
    found = []
    for i in range(256):
        scale, minimum = six_bits(block[4:16], i // 32)
        code = nibble(block[48:], i, 32) | (block[16 + i % 32] >> (i // 32) & 1) << 4
        found.append((half(block, 0) * scale, code, -half(block, 2) * minimum))
    return found


def q6_k(block: bytes) -> list[Value]:
    found = []
    for i in range(256):
        side, place = divmod(i, 128)
        low = block[64 * side + place % 64] >> (4 if place >= 64 else 0) & 15
        high = block[128 + 32 * side + place % 32] >> (2 * (place // 32)) & 3
        found.append((half(block, 208) * signed(block[192 + i // 16]), (low | high << 4) - 32, 0.0))
    return found


def q1_0(block: bytes) -> list[Value]:
    return [(half(block, 0), 1 if block[2 + i // 8] >> i % 8 & 1 else -1, 0.0) for i in range(128)]


PLAIN: dict[str, Callable[[bytes], list[Value]]] = {
    "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0, "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k,
    "Q5_K": q5_k, "Q6_K": q6_k, "Q1_0": q1_0,
}  # fmt: skip
