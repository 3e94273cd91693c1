"""Log-probabilities of tokens."""

from forearm.outputs import Logprob

__all__ = ["Logprob"]
