"""Merging of several processes' metrics into one valid text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from forearm.api.ops.exposition import labelled, merged

ONE = """# HELP a_total Counts.
# TYPE a_total counter
a_total{engine="0",x="}\\" 1"} 1.0
# HELP up Is.
# TYPE up gauge
up 2.0
"""
OTHER = ONE.replace('engine="0"', 'engine="1"').replace("1.0", "5.0")


def test_a_family_stands_once_with_the_series_of_all() -> None:
    text = merged([labelled(ONE, "engine", "0"), labelled(OTHER, "engine", "1")])

    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert text.count("# TYPE a_total") == text.count("# TYPE up ") == 1
    assert [(s.labels["engine"], s.value) for s in families["a"].samples] == [("0", 1.0), ("1", 5.0)]
    assert [(s.labels["engine"], s.value) for s in families["up"].samples] == [("0", 2.0), ("1", 2.0)]
    assert all(sample.labels["x"] == '}" 1' for sample in families["a"].samples)


def test_one_text_stays_as_it_is() -> None:
    assert merged([ONE]) == ONE
