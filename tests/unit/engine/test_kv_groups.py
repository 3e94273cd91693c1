"""The block pool of a model with windows in some or all layers: what sequences read is what was written for them."""

from __future__ import annotations

import random

import pytest
from tests.unit.engine.test_blocks import known, sequence

from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.digests import window_of
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP, KvGroups, blocks_for
from forearm.engine.cache.prefix_cache import StateSlots
from forearm.engine.sequence import Sequence, Slice

STEP, RUNNING = 70, 100
GROUPS = KvGroups(whole=2, windowed=3, reach=100, held=blocks_for(100 + 64 + STEP) + 1)
ALL_WINDOWED = KvGroups(whole=0, windowed=1, reach=100, held=GROUPS.held)


class Cache:
    """A pool, and what was written to each block last: its group, and the tokens up to each of its positions; and to
    each slot for states: the tokens before it.

    kept: slots for copies of states; None: layers keep none
    """

    def __init__(self, count: int, groups: KvGroups = GROUPS, kept: int | None = None) -> None:
        self.slots: dict[int, tuple[int, ...]] = {}
        states = None if kept is None else StateSlots(RUNNING, kept, self._copy)
        self.pool = BlockPool(count, states, groups)
        self.written: dict[int, tuple[int, list[tuple[int, ...]]]] = {}

    def step(self, one: Sequence, tokens: int, wrong: int = 0) -> bool:
        """Compute tokens as a step does, and so many wrong drafts behind them. Returns: whether there was room.

        Raises: AssertionError for a wrong read.
        """
        start, end = one.computed, one.computed + tokens
        if not self.pool.grow(one, tokens + wrong):
            return False
        if wrong and not self.pool.save(one):
            wrong = 0
        self._write(one, start, (*one.tokens[:end], *[99] * wrong))
        one.computed = end
        self._read(one, start)
        if one.saved is not None:
            self.pool.settle(Slice(one, start, end, samples=True, scores=range(0), drafts=(99,) * wrong), 0)
        self.pool.publish(one, start)
        self._read(one, one.computed)
        self.pool.trim(one)
        return True

    def _copy(self, slot: int, target: int) -> None:
        self.slots[target] = self.slots.get(slot, ())

    def _write(self, one: Sequence, start: int, tokens: tuple[int, ...]) -> None:
        if self.pool.states is not None:
            assert one.state is not None
            before = self.slots[one.state] if start else ()
            assert before == tokens[:start], "states are those of the tokens before"
            self.slots[one.state] = tokens
        for position in range(start, len(tokens)):
            self._write_keys(one, position, tokens[: position + 1])

    def _write_keys(self, one: Sequence, position: int, tokens: tuple[int, ...]) -> None:
        number, at = divmod(position, BLOCK_TOKENS)
        for group, table in enumerate(one.tables):
            if at == 0:
                self.written[table[number]] = (group, [])
            whose, rows = self.written[table[number]]
            assert whose == group
            if self.pool.states is not None:
                del rows[at:]  # they were taken back with the states
            assert len(rows) == at, "a block is written from its beginning, by one sequence"
            rows.append(tokens)

    def _read(self, one: Sequence, position: int) -> None:
        """Read what a query at `position` or later, below the computed tokens, sees."""
        for group, table in enumerate(one.tables):
            first = 0 if group < self.pool.groups.whole else max(0, position - self.pool.groups.reach + 1)
            for key in range(first, one.computed):
                whose, rows = self.written[table[key // BLOCK_TOKENS]]
                assert whose == group
                assert rows[key % BLOCK_TOKENS] == tuple(one.tokens[: key + 1])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kept", [None, 1, 5, 40], ids=["no states", "1 copy", "5 copies", "40 copies"])
@pytest.mark.parametrize(("groups", "count"), [(GROUPS, 130), (ALL_WINDOWED, 20)], ids=["some", "all"])
def test_sequences_read_their_own_tokens_and_no_block_is_lost(
    groups: KvGroups, count: int, kept: int | None, seed: int
) -> None:
    """Sequences with common beginnings come, grow, are preempted and end, in a cache that is mostly short of blocks;
    drafts are taken back where there are states.
    """
    dice = random.Random(seed)
    cache, running = Cache(count, groups, kept), list[Sequence]()
    prompts = [[dice.randrange(3) for _ in range(dice.choice((40, 300, 500)))] for _ in range(3)]
    adopted = refused = 0
    for _ in range(250):
        act = dice.random()
        if act < 0.25 or not running:
            prompt = dice.choice(prompts)
            one = sequence([*prompt[: dice.randrange(1, len(prompt))], 9, dice.randrange(50)])
            if kept is None:
                adopted += cache.pool.adopt(one)
            running.append(one)
        elif act < 0.8:
            one = dice.choice(running)
            if not one.pending:
                one.append(dice.randrange(50))
            if one.pending > BLOCK_TOKENS:
                adopted += cache.pool.adopt(one)
            tokens = cache.pool.cut(one, dice.randrange(1, min(STEP, one.pending) + 1))
            wrong = dice.choice((0, 0, 3)) if kept and tokens == one.pending else 0
            if not cache.step(one, tokens, wrong):
                refused += 1
                if one.state is None:  # it does not run, so that its copy of states may go
                    cache.pool.release(one)
        elif act < 0.9:
            cache.pool.release(dice.choice(running))
        elif act < 0.97:
            one = running.pop(dice.randrange(len(running)))
            if dice.random() < 0.2:
                cache.pool.discard(one)
            cache.pool.release(one)
        else:
            cache.pool.forget_prefixes()
    assert adopted or kept == 1
    assert refused

    for one in running:
        cache.pool.release(one)
    assert cache.pool.available == count


@pytest.mark.parametrize("kept", [None, 2], ids=["no states", "states"])
@pytest.mark.parametrize("groups", [GROUPS, ALL_WINDOWED], ids=["some", "all"])
def test_a_long_sequence_keeps_the_blocks_of_its_window_alone(groups: KvGroups, kept: int | None) -> None:
    cache, one = Cache(groups.blocks(1600), groups, kept), sequence([1] * 1600)
    most = 0
    while one.pending:
        assert cache.step(one, min(STEP, one.pending))
        most = max(most, cache.pool.used)

    assert most <= groups.blocks(1600) == groups.whole * 50 + groups.windowed * groups.held
    assert cache.pool.used == groups.whole * 50 + groups.windowed * (50 - groups.first_seen(1600))


def test_a_prefix_is_found_where_its_window_is_known() -> None:
    """The blocks that the first sequence dropped first are needed first: prefixes that end there are not found."""
    cache, one = Cache(5 * 20 + 3), sequence([*range(50)] * 12)
    while one.pending:
        assert cache.step(one, min(STEP, one.pending))
    cache.pool.release(one)

    other = sequence([7] * 330)
    while other.pending:
        assert cache.step(other, min(STEP, other.pending))
    cache.pool.release(other)

    assert known(cache.pool, [*range(50)] * 4) == 0
    assert known(cache.pool, [*range(50)] * 12) == 576


@pytest.mark.parametrize("groups", [GROUPS, ALL_WINDOWED], ids=["some", "all"])
def test_a_sequence_goes_on_where_states_and_their_window_are_known(groups: KvGroups) -> None:
    """Steps end with blocks 2, 4 and so on, where states are copied; the last one takes the first one's slot."""
    cache, one = Cache(groups.blocks(640) + 40, groups, 8), sequence([*range(50)] * 12)
    while one.pending:
        assert cache.step(one, min(64, one.pending))
    cache.pool.release(one)
    prompts = [[*range(50)] * 12, [*range(50)] * 10, [*range(50)] * 2]
    assert [known(cache.pool, prompt) for prompt in prompts] == [576, 448, 0]

    cache.pool._units.forget(window_of(one.digests[17]))
    assert [known(cache.pool, prompt) for prompt in prompts] == [512, 448, 0]
    again = sequence(prompts[0])
    assert cache.pool.adopt(again) == 512
    while again.pending:
        assert cache.step(again, cache.pool.cut(again, min(64, again.pending)))
    cache.pool.release(again)
    assert known(cache.pool, prompts[0]) == 576


def test_a_prefix_of_windows_alone_is_found_where_the_last_one_is_known() -> None:
    """No block before the window is needed; those that a sequence dropped are evicted first."""
    cache, one = Cache(20, ALL_WINDOWED), sequence([*range(50)] * 12)
    while one.pending:
        assert cache.step(one, min(STEP, one.pending))
    cache.pool.release(one)

    other = sequence([7] * 330)
    while other.pending:
        assert cache.step(other, min(STEP, other.pending))
    cache.pool.release(other)

    assert known(cache.pool, [*range(50)] * 4) == 0
    assert known(cache.pool, [*range(50)] * 12) == 576
    again = sequence([*range(50)] * 12)
    assert cache.pool.adopt(again) == 576
    assert [block > 0 for block in again.blocks].count(True) >= 3
    while again.pending:
        assert cache.step(again, min(STEP, again.pending))


def test_groups_are_made_where_a_window_leaves_blocks_behind() -> None:
    assert KvGroups.of([0], 512, 131072) == ONE_GROUP
    assert KvGroups.of([0, 1024, 1024], 512, 1600) == ONE_GROUP
    groups = KvGroups.of([0, 1024, 1024], 512, 131072)
    assert (groups.whole, groups.windowed, groups.reach) == (1, 2, 1024)
    assert groups.blocks(131072) == 4096 + 2 * groups.held
    assert groups.longest(groups.blocks(131072), 262144) == 131072
    assert groups.longest(groups.blocks(320), 262144) == 320
    assert groups.sequences(2 * groups.blocks(131072), 131072) == 2.0


def test_layers_that_all_have_a_window_are_one_windowed_group() -> None:
    assert KvGroups.of([1024], 512, 1600) == ONE_GROUP
    groups = KvGroups.of([1024], 512, 131072)
    assert (groups.whole, groups.windowed, groups.reach) == (0, 1, 1024)
    assert groups.blocks(131072) == groups.held == (1024 + 64 + 512) // 32 + 1
    assert groups.longest(groups.held, 131072) == 131072
    assert groups.longest(10, 131072) == 320
    assert groups.sequences(2 * groups.held, 131072) == 2.0
