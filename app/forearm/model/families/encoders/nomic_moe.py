"""NomicBERT with experts: nomic-embed-text-v2-moe, an XLM-RoBERTa with rotary angles."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.encoders.bert_like import JINA, rotary_encoder


def nomic_bert_moe(inputs: FamilyInputs) -> ModelConfig:
    """nomic-embed-text-v2-moe: every second layer has experts, weighted by a softmax of all scores.

    Its published experts share a bias, which llama.cpp's files leave out and this family does not have.
    """
    from forearm.model.families.experts import routed  # not above: it imports numpy, and every server's API this file

    inputs = inputs.with_defaults(num_experts=8, num_experts_per_tok=2, moe_every_n_layers=2, type_vocab_size=1)
    every = inputs.keys.integer("moe_every_n_layers")
    if every < 2:
        raise inputs.keys.wrong("moe_every_n_layers", "at least 2: the second of so many layers has experts")
    dense = rotary_encoder(inputs, JINA, gated=False, biases=True)
    experts = routed(inputs, "num_experts", "intermediate_size", renormalized=False, gated=False)
    experts = replace(experts, activation="gelu_erf")
    layers = (replace(one, feed_forward=experts) if i % every == 1 else one for i, one in enumerate(dense.layers))
    return replace(dense, layers=tuple(layers))
