"""Prompts go where their beginning is known, as far as load allows; what is remembered has an end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forearm.routing import MOST_PIECES, PrefixRouter, chain

ENGINES = ("a", "b", "c")
loads = st.dictionaries(st.sampled_from(ENGINES), st.integers(0, 200), min_size=1)
prompts = st.lists(st.binary(min_size=0, max_size=40), max_size=20)


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 40))
def test_chains_agree_as_far_as_prompts_do(common: bytes, one: bytes, other: bytes, size: int) -> None:
    first, second = common + one, common + other
    mine, theirs = chain(first, size), chain(second, size)

    assert len(mine) == len(first) // size
    for number in range(min(len(mine), len(theirs))):
        end = (number + 1) * size
        assert (mine[number] == theirs[number]) == (first[:end] == second[:end])


def test_salts_share_nothing_and_chains_have_an_end() -> None:
    assert not set(chain(b"x" * 64, 8, "one")) & set(chain(b"x" * 64, 8, "two"))
    assert len(chain(b"x" * (MOST_PIECES + 5), 1)) == MOST_PIECES


@given(prompts, loads, st.integers(0, 5))
def test_no_engine_is_preferred_beyond_the_bound(sent: list[bytes], load: dict[str, int], slack: int) -> None:
    router: PrefixRouter[str] = PrefixRouter(slack=slack)
    for prompt in sent:
        pieces = chain(prompt, 4)
        chosen = router.choose(pieces, load)
        router.remember(pieces, chosen)

        assert chosen in load
        assert load[chosen] <= 1.5 * min(load.values()) + slack


@given(st.binary(min_size=8, max_size=80), st.binary(max_size=8), loads, st.sampled_from(ENGINES))
def test_a_known_beginning_is_followed_within_the_bound(
    prompt: bytes, more: bytes, load: dict[str, int], home: str
) -> None:
    router: PrefixRouter[str] = PrefixRouter(slack=2)
    router.remember(chain(prompt, 4), home)

    chosen = router.choose(chain(prompt + more, 4), load)

    if home in load and load[home] <= min(load.values()) + min(load.values()) // 2 + 2:
        assert chosen == home
    else:
        assert load[chosen] == min(load.values())


@given(st.binary(max_size=80))
def test_routers_that_never_talk_agree_on_unknown_prompts(prompt: bytes) -> None:
    load = dict.fromkeys(ENGINES, 1)

    one, other = PrefixRouter[str](), PrefixRouter[str]()

    assert one.choose(chain(prompt, 4), load) == other.choose(chain(prompt, 4), load)


def test_unknown_prompts_spread_over_idle_engines() -> None:
    router: PrefixRouter[str] = PrefixRouter()
    chosen = [router.choose(chain(number.to_bytes(4, "little"), 4), dict.fromkeys(ENGINES, 0)) for number in range(300)]

    assert all(60 <= chosen.count(engine) <= 140 for engine in ENGINES)


def test_a_little_in_common_is_not_worth_a_longer_queue() -> None:
    router: PrefixRouter[str] = PrefixRouter()
    router.remember(chain(b"template" + b"x" * 80, 8), "a")

    assert router.choose(chain(b"template" + b"y" * 80, 8), {"a": 1, "b": 0}) == "b"
    assert router.choose(chain(b"template" + b"x" * 80, 8), {"a": 1, "b": 0}) == "a"


@given(prompts, st.integers(1, 30))
def test_memory_is_bounded_and_the_beginning_stays_longest(sent: list[bytes], most: int) -> None:
    router: PrefixRouter[str] = PrefixRouter(most_pieces=most)
    for prompt in sent:
        pieces = chain(prompt, 2)
        router.remember(pieces, "a")

        assert len(router) <= most
        assert router.known(pieces, "a") == min(most, len(pieces))


@given(prompts)
def test_a_dead_engine_is_forgotten(sent: list[bytes]) -> None:
    router: PrefixRouter[str] = PrefixRouter()
    for prompt in sent:
        for engine in ENGINES:
            router.remember(chain(prompt, 4), engine)

    router.forget("a")
    router.keep({"a", "b"})

    assert all(router.known(chain(prompt, 4), engine) == 0 for prompt in sent for engine in ("a", "c"))
    assert all(router.known(chain(prompt, 4), "b") == len(prompt) // 4 for prompt in sent)
