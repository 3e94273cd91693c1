"""The block pool and its prefix cache: what is shared, kept, evicted, forgotten."""

from __future__ import annotations

from forearm.engine.admission import Admission, Terms
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, blocks_for
from forearm.engine.sequence import Sequence
from forearm.wire import SamplingParams, Submit

ADMISSION = Admission(Terms(vocab_size=100, max_model_len=4096))


def sequence(tokens: list[int], salt: str | None = None) -> Sequence:
    submit = Submit(request_id="r", prompt_token_ids=tokens, params=SamplingParams(), cache_salt=salt)
    return ADMISSION.request(0, submit, 0.0).sequences[0]


def compute(pool: BlockPool, one: Sequence) -> None:
    """All that is pending, in one go."""
    start = one.computed
    assert pool.grow(one, one.pending)
    one.computed = len(one.tokens)
    pool.publish(one, start)


def known(pool: BlockPool, tokens: list[int], salt: str | None = None) -> int:
    """Tokens of this prompt that would not have to be computed."""
    probe = sequence(tokens, salt)
    adopted = pool.adopt(probe)
    pool.release(probe)
    return adopted


def test_prefixes_can_be_forgotten_while_some_are_in_use() -> None:
    pool = BlockPool(8)
    idle, open_one = sequence([1] * 65), sequence([2] * 65)
    compute(pool, idle)
    compute(pool, open_one)
    pool.release(idle)
    assert (known(pool, [1] * 65), known(pool, [2] * 65)) == (64, 64)

    pool.forget_prefixes()

    assert (known(pool, [1] * 65), known(pool, [2] * 65)) == (0, 0)
    assert pool.used == 3
    open_one.tokens.extend([2] * 32)
    compute(pool, open_one)
    pool.release(open_one)
    assert pool.available == 8


def test_a_sequence_holds_no_block_more_than_it_needs() -> None:
    pool = BlockPool(8)
    one = sequence([1] * 65)

    assert pool.grow(one, 32)
    assert len(one.blocks) == 1
    assert pool.grow(one, 65)
    assert len(one.blocks) == blocks_for(65) == 3


def test_growing_beyond_the_pool_changes_nothing() -> None:
    pool = BlockPool(2)
    one = sequence([1] * 65)

    assert not pool.grow(one, 65)

    assert len(one.blocks) == 0
    assert pool.available == 2


def test_released_blocks_are_found_again_until_their_room_is_needed() -> None:
    pool = BlockPool(4)
    first = sequence([1] * 64)
    compute(pool, first)
    pool.release(first)

    assert pool.available == 4
    assert known(pool, [1] * 65) == 64
    compute(pool, sequence([2] * 128))
    assert known(pool, [1] * 65) == 0


def test_the_least_recently_used_goes_first_and_of_a_chain_its_end() -> None:
    pool = BlockPool(4)
    for token in (1, 2):
        one = sequence([token] * 64)
        compute(pool, one)
        pool.release(one)
    assert known(pool, [1] * 65) == 64  # used last, so that 2 is older now

    compute(pool, sequence([3] * 32))

    assert known(pool, [1] * 65) == 64
    assert known(pool, [2] * 65) == 32


def test_a_block_in_use_is_never_evicted() -> None:
    pool = BlockPool(3)
    held = sequence([1] * 64)
    compute(pool, held)

    for token in range(2, 10):
        other = sequence([token] * 32)
        compute(pool, other)
        pool.release(other)

    assert known(pool, [1] * 65) == 64


def test_a_digest_covers_all_that_stands_before_its_block() -> None:
    pool = BlockPool(8)
    one = sequence([1] * 32 + [2] * 32)
    compute(pool, one)
    pool.release(one)

    assert known(pool, [2] * 33) == 0
    assert known(pool, [3] * 32 + [2] * 33) == 0
    assert known(pool, [1] * 32 + [2] * 33) == 64


def test_equal_blocks_computed_at_once_become_one() -> None:
    pool = BlockPool(8)
    one, two = sequence([1] * 64), sequence([1] * 64)
    assert pool.grow(one, 64)
    assert pool.grow(two, 64)
    assert pool.used == 4

    for each in (one, two):
        each.computed = 64
        pool.publish(each, 0)

    assert one.blocks == two.blocks
    assert pool.used == 2
    pool.release(one)
    assert pool.used == 2
    pool.release(two)
    assert pool.used == 0


def test_salts_keep_prompts_apart() -> None:
    pool = BlockPool(8)
    one = sequence([1] * 64, "mine")
    compute(pool, one)
    pool.release(one)

    assert known(pool, [1] * 65, "mine") == 64
    assert known(pool, [1] * 65) == known(pool, [1] * 65, "yours") == 0


def test_forgotten_blocks_are_free_unless_somebody_uses_them() -> None:
    pool = BlockPool(8)
    one, other = sequence([1] * 70), sequence([1] * 70)
    compute(pool, one)
    pool.adopt(other)
    pool.release(one)

    pool.forget(one)

    assert (pool.used, known(pool, [1] * 70)) == (2, 0)
    pool.release(other)
    again = sequence([2] * 70)
    compute(pool, again)
    assert (pool.used, set(again.blocks)) == (3, {0, 1, 2})


def test_unused_forgotten_blocks_are_free_again() -> None:
    pool = BlockPool(8)
    one = sequence([1] * 70)
    compute(pool, one)
    pool.release(one)

    pool.forget(one)

    again = sequence([2] * 256)
    compute(pool, again)
    assert list(again.blocks) == list(range(8))


def test_discarded_blocks_are_not_found_again_even_if_they_are_shared() -> None:
    pool = BlockPool(8)
    one = sequence([1] * 64)
    compute(pool, one)
    sharer = sequence([1] * 65)
    pool.adopt(sharer)

    pool.discard(one)

    assert known(pool, [1] * 65) == 0
    assert pool.used == 2
    pool.release(sharer)
    assert pool.available == 8


def test_adoption_goes_on_in_the_middle_of_a_prompt_at_the_edge_of_a_block() -> None:
    pool = BlockPool(8)
    behind, ahead = sequence([1] * 100), sequence([1] * 100)
    assert pool.grow(behind, BLOCK_TOKENS)
    behind.computed = BLOCK_TOKENS
    pool.publish(behind, 0)
    compute(pool, ahead)

    assert pool.adopt(behind) == 64
    assert behind.computed == 96
    assert pool.adopt(behind) == 0
