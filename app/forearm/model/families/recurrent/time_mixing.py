"""Rwkv7: the time mixing of RWKV-7, a mixer that keeps a state (recurrences.py has the others)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rwkv7:
    """A mixer: the time mixing of RWKV-7 (Peng et al. 2025, arXiv:2503.14456).

    A token is mixed with the one before it, by six vectors; of the mixes r, k and v are linear functions, and decays w,
    rates a, gates g and the part of the first layer's values that joins the layer's own, functions through few numbers:
    their ranks are given. A head's state [head_dim, head_dim] forgets each channel of its keys by a decay, loses a part
    of what it holds for a normalized key, by the rates, and gets k v^T; what r reads of it is normalized, gets the
    share of v that r reads of k alone, and is multiplied with g. FeedForward.shifted stands behind it.

    value_rank: 0 in the first layer, whose values later ones read. norm_eps: of the norm of each head's results.
    """

    heads: int
    head_dim: int
    decay_rank: int
    rate_rank: int
    value_rank: int
    gate_rank: int
    norm_eps: float = 64e-5

    @property
    def inner(self) -> int:
        """Return the width of r, k, v and the gates."""
        return self.heads * self.head_dim
