"""Types of the results of LLM.beam_search."""

from forearm.offline.beams import BeamSearchOutput, BeamSearchSequence

__all__ = ["BeamSearchOutput", "BeamSearchSequence"]
