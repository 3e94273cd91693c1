"""The block pool of a model with windows in some or all layers: what sequences read is what was written for them."""

from __future__ import annotations

import random

import pytest
from tests.unit.engine.test_blocks import known, sequence

from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP, KvGroups, blocks_for
from forearm.engine.sequence import Sequence

STEP = 70
GROUPS = KvGroups(whole=2, windowed=3, reach=100, held=blocks_for(100 + 64 + STEP) + 1)
ALL_WINDOWED = KvGroups(whole=0, windowed=1, reach=100, held=GROUPS.held)


class Cache:
    """A pool, and what was written to each block last: its group, and the tokens up to each of its positions."""

    def __init__(self, count: int, groups: KvGroups = GROUPS) -> None:
        self.pool = BlockPool(count, groups=groups)
        self.written: dict[int, tuple[int, list[tuple[int, ...]]]] = {}

    def step(self, one: Sequence, tokens: int) -> bool:
        """Compute tokens as a step does. Returns: whether there was room. Raises: AssertionError for a wrong read."""
        start = one.computed
        if not self.pool.grow(one, tokens):
            return False
        for position in range(start, start + tokens):
            self._write(one, position)
        one.computed += tokens
        self._read(one, start)
        self.pool.publish(one, start)
        self._read(one, one.computed)
        self.pool.trim(one)
        return True

    def _write(self, one: Sequence, position: int) -> None:
        number, at = divmod(position, BLOCK_TOKENS)
        for group, table in enumerate(one.tables):
            if at == 0:
                self.written[table[number]] = (group, [])
            whose, rows = self.written[table[number]]
            assert whose == group
            assert len(rows) == at, "a block is written from its beginning, by one sequence"
            rows.append(tuple(one.tokens[: position + 1]))

    def _read(self, one: Sequence, position: int) -> None:
        """Read what a query at `position` or later, below the computed tokens, sees."""
        for group, table in enumerate(one.tables):
            first = 0 if group < self.pool.groups.whole else max(0, position - self.pool.groups.reach + 1)
            for key in range(first, one.computed):
                whose, rows = self.written[table[key // BLOCK_TOKENS]]
                assert whose == group
                assert rows[key % BLOCK_TOKENS] == tuple(one.tokens[: key + 1])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("groups", "count"), [(GROUPS, 130), (ALL_WINDOWED, 20)], ids=["some", "all"])
def test_sequences_read_their_own_tokens_and_no_block_is_lost(groups: KvGroups, count: int, seed: int) -> None:
    """Sequences with common beginnings come, grow, are preempted and end, in a cache that is mostly short of blocks."""
    dice = random.Random(seed)
    cache, running = Cache(count, groups), list[Sequence]()
    prompts = [[dice.randrange(3) for _ in range(dice.choice((40, 300, 500)))] for _ in range(3)]
    adopted = refused = 0
    for _ in range(250):
        act = dice.random()
        if act < 0.25 or not running:
            prompt = dice.choice(prompts)
            one = sequence([*prompt[: dice.randrange(1, len(prompt))], 9, dice.randrange(50)])
            adopted += cache.pool.adopt(one)
            running.append(one)
        elif act < 0.8:
            one = dice.choice(running)
            if not one.pending:
                one.append(dice.randrange(50))
            if one.pending > BLOCK_TOKENS:
                adopted += cache.pool.adopt(one)
            refused += not cache.step(one, dice.randrange(1, min(STEP, one.pending) + 1))
        elif act < 0.9:
            cache.pool.release(dice.choice(running))
        elif act < 0.97:
            one = running.pop(dice.randrange(len(running)))
            if dice.random() < 0.2:
                cache.pool.discard(one)
            cache.pool.release(one)
        else:
            cache.pool.forget_prefixes()
    assert adopted
    assert refused

    for one in running:
        cache.pool.release(one)
    assert cache.pool.available == count


@pytest.mark.parametrize("groups", [GROUPS, ALL_WINDOWED], ids=["some", "all"])
def test_a_long_sequence_keeps_the_blocks_of_its_window_alone(groups: KvGroups) -> None:
    cache, one = Cache(groups.blocks(1600), groups), sequence([1] * 1600)
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
