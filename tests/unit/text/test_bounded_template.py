"""The model's own template cannot take more time and memory than a request's, and makes what it made before."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.unit.text.test_chat_template import HELLO, render
from transformers.utils import chat_template_utils

from forearm.errors import InvalidRequest
from forearm.text.templates import bounded_template

FULL = "{% for a in range(99999) %}{% for b in range(99999) %}"


@pytest.mark.parametrize(
    "source",
    [
        FULL + "{% endfor %}{% endfor %}",
        FULL + "{{ a }}{% endfor %}{% endfor %}",
        FULL + "{% set c = a * b %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in [[[]]] recursive %}{{ loop([a, a, a]) }}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=7) %}{% for a in range(90) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='a' * 999999, y=[]) %}{% for a in range(9999) %}"
        "{% set ns.y = ns.y + [ns.x ~ a] %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * 'x' }}",
        "{{ ['x'] * 10000000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ 'x'.ljust(messages | length * 10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ '{:>10000000000}'.format(1) }}",
        "{% set x = 'x' * 9999999 %}{{ x.replace('x', x) }}",
        "{% set x = 'x' * 9999999 %}{{ x | replace('x', x) }}",
        "{% set x = 'x' * 9999999 %}{{ x.join(range(99999) | list) }}",
        "{% set x = 'x' * 9999999 %}{{ range(99999) | list | join(x) }}",
        "{{ ('\n' * 999999) | indent(999999) }}",
        "{{ range(99999) | map('string') | map('list') | sum(start=[]) }}",
        "{{ messages | tojson(indent=10000000000) }}",
        "{% set x = 'x' * 9999999 %}{% for a in range(9999) %}{{ x }}{% endfor %}",
        "{% for a in range(99999) %}" + "x" * 99_999 + "{% endfor %}",
        "{% set x %}{% for a in range(99999) %}" + "x" * 99_999 + "{% endfor %}{% endset %}",
        "{{ lipsum(n=1000000) }}",
    ],
)
def test_a_template_that_takes_too_much_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_template, "MOST_S", 0.5)
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()

    with pytest.raises(InvalidRequest):
        render(source, HELLO)

    assert time.thread_time() - begun < 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


ORDINARY = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex0 }} {{ loop.last }} {{ m.content }}\n"
    "{% if not loop.last %}{{ loop.nextitem.role }}{% endif %}{% else %}none{% endfor %}",
    "{% for key, value in messages[0].items() %}{{ key ~ '=' ~ value ~ 3 ~ none }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.cycle('a', 'b') }}{% break %}{% endfor %}",
    "{{ 1 + 2 }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}",
    "{{ '%s-%03d' % ('a', 5) }}",
    "{{ messages | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}",
    "{{ 'a\nb' | indent(2, true) }}",
    "{{ 'abc'.replace('b', 'x') }}{{ 'abc' | replace('b', 'y') }}{{ ', '.join(['a', 'b']) }}{{ 'a' | center(9) }}",
    "{{ missing }}{{ none }}{{ [1, 2] | sum }}{{ [1.25] | map('round', 1) | list }}{{ '{}-{}'.format(1, 2) }}",
    "{% macro f(x) %}<{{ x }}>{{ caller() if caller else '' }}{% endmacro %}{{ f(1) }}{% call f(2) %}in{% endcall %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% filter upper %}b{{ 2 }}{% endfilter %}",
    "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{{ loop.depth }}{% endfor %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}"
    "{{ ns.a }}",
    "{% for s in [[1, 2, 3, 4] | batch(2) | list, [1, 2, 3] | slice(2) | list] %}{{ s }}{% endfor %}{{ -1 % 3 }}",
]


@pytest.mark.parametrize("source", ORDINARY)
def test_what_others_make_stays_as_it_was(source: str) -> None:
    plain = chat_template_utils._cached_compile_jinja_template(source)
    assert type(plain.environment) is ImmutableSandboxedEnvironment
    variables: dict[str, Any] = {"messages": [*HELLO, {"role": "assistant", "content": "yes"}]}

    assert render(source, variables["messages"]) == plain.render(**variables)
