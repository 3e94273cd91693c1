"""Types of encoders: forearm's own families, and those that transformers computes."""

from __future__ import annotations

from forearm.model.families.encoders.encoders import ENCODERS

# Encoders of transformers whose tokens see those on both sides, whatever head the checkpoint has.
OTHER_ENCODERS = frozenset({
    "big_bird", "convbert", "flaubert", "fnet", "ibert", "layoutlm", "longformer", "luke", "mobilebert", "mra",
    "nystromformer", "roc_bert", "roformer", "squeezebert", "xlm", "xmod", "yoso",
})  # fmt: skip


def is_encoder(model_type: str) -> bool:
    """Return whether models of a type are encoders, unless config.json makes a decoder of one."""
    return model_type in ENCODERS or model_type in OTHER_ENCODERS
