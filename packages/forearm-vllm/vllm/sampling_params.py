"""How answers are sampled."""

from forearm import BeamSearchParams, RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = ["BeamSearchParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
