"""Draft metrics in an answer."""

from __future__ import annotations

import msgspec

from forearm.api.generation.response_bodies import DraftMetrics


def test_the_figures_are_vllms() -> None:
    """The example of vLLM's pull request 48915."""
    drafts = [(3, 0)] * 39 + [(3, 1)] + [(3, 3)] * 3

    assert msgspec.to_builtins(DraftMetrics.of(drafts)) == {
        "mean_acceptance_length": 1.2325581395348837,
        "draft_acceptance_rate": 0.07751937984496124,
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }
    assert DraftMetrics.of([]) is None
