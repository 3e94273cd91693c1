"""Log-probabilities of tokens."""

from forearm.offline.outputs import Logprob

__all__ = ["Logprob"]
