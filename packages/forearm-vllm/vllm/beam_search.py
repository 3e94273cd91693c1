"""What LLM.beam_search returns."""

from forearm.offline.beams import BeamSearchOutput, BeamSearchSequence

__all__ = ["BeamSearchOutput", "BeamSearchSequence"]
