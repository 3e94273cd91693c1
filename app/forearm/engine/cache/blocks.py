"""The block pool: sequences grow into it, share full blocks, and give them back."""

from __future__ import annotations

from array import array

from forearm.engine.cache.digests import digest_of, next_digest, window_of
from forearm.engine.cache.kept_states import kept_ends, system_end
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP, KvGroups, blocks_for
from forearm.engine.cache.prefix_cache import StateSlots
from forearm.engine.cache.units import Units
from forearm.engine.sequence import Sequence, Slice

# The least tokens that a copy of states saves beyond the one before it, if a step is cut for it: the rest of a prompt
# then takes a step of its own, which reads all weights again.
CUT_TOKENS = 64


class BlockPool:
    """The KV blocks of 32 tokens, which sequences use.

    A model whose layers keep states also has slots for them. A running sequence holds one as long as it holds blocks;
    copies in others let later sequences go on at the end of a block. Steps end where a copy is to be made: at the last
    blocks of a chat's system prompt and of the whole prompt, and where a prompt leaves the cached blocks that it began
    with, as later ones may do there, too (Pan et al. 2025, Marconi, arXiv:2411.19379). While a free slot is left, the
    other ends of a prompt's steps get a copy. A decoding sequence has one at the end of its last full block.

    A sequence has a block in each group of layers (KvGroups) for 32 tokens: one unit of its whole groups and one of its
    windowed groups, where there are some. It drops a windowed unit when no later token sees it. It can go on after a
    prefix only if the windowed units that are seen from there are known. Where there are states, too, those that are
    seen from their copies alone become known: no sequence goes on elsewhere.

    drafted  by block: the number of its positions for which a draft model has keys and values
    states   None: the model's layers keep none
    """

    def __init__(self, count: int, states: StateSlots | None = None, groups: KvGroups = ONE_GROUP) -> None:
        self.count = count
        self.groups = groups
        self.drafted = array("i", bytes(4 * count))
        self.states = states
        self._units = Units(count, states)

    @property
    def available(self) -> int:
        """Count the blocks that can be allocated now; idle ones lose their content."""
        return self._units.available

    @property
    def keeps_states(self) -> bool:
        """True if copies of states are kept, so that it is of use to know where a chat's system prompt ends."""
        return self.states is not None and self.states.kept > 0

    @property
    def used(self) -> int:
        return self.count - self.available

    def fits(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether there are blocks now for `tokens` more tokens of this sequence, in one step or several."""
        more, groups = blocks_for(sequence.computed + tokens) - len(sequence.blocks), self.groups
        return groups.whole * more + groups.windowed * min(more, groups.held) <= self.available

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate blocks for `tokens` more tokens than the sequence has computed, and its slot for states.

        Returns: False, with no change, if there are too few.
        """
        if not self.fits(sequence, tokens):
            return False
        if self.states is not None and sequence.state is None:
            sequence.state = self.states.take()
            if sequence.computed:
                self.states.restore(sequence.blocks[sequence.computed // BLOCK_TOKENS - 1], sequence.state)
        while len(sequence.blocks) < blocks_for(sequence.computed + tokens):
            whole, windowed = self._units.allocate(self.groups.whole), self._units.allocate(self.groups.windowed)
            self._append(sequence, whole + windowed)
            self.drafted[sequence.blocks[-1]] = 0
        return True

    def trim(self, sequence: Sequence) -> None:
        """Free the blocks beyond the computed tokens, which rejected drafts had, and the windowed units that no later
        token sees: in the tables they become block 0, which is not read.
        """
        while len(sequence.blocks) > blocks_for(sequence.computed):
            self._pop(sequence)
        if self.groups.windowed:
            self._pass(sequence, len(sequence.blocks))

    def release(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence, and its slot. The last blocks become idle first, so that the end of a hash
        chain is evicted before its beginning, without which it could not be found.
        """
        while sequence.blocks:
            self._pop(sequence)
        sequence.computed = sequence.passed = 0
        for slot in (sequence.state, sequence.saved):
            if self.states is not None and slot is not None:
                self.states.give_back(slot)
        sequence.state = sequence.saved = sequence.passing = None
        sequence.kept = sequence.shared = sequence.verified = 0

    def save(self, sequence: Sequence) -> bool:
        """Keep what is needed to take back drafts: a copy of the states. Returns: False if no slot is free for it."""
        if self.states is None:
            return True
        assert sequence.state is not None
        sequence.saved = self.states.save(sequence.state)
        return sequence.saved is not None

    def settle(self, piece: Slice, accepted: int) -> None:
        """Count the tokens of a slice whose states were saved as computed, and its first `accepted` drafts. If others
        were wrong, states go back to the slice's start, and the accepted tokens are computed again with the next one.
        """
        sequence = piece.sequence
        sequence.computed = piece.end + accepted
        assert self.states is not None
        assert sequence.state is not None
        assert sequence.saved is not None
        if accepted < len(piece.drafts):
            sequence.verified, sequence.computed = sequence.computed, piece.start
            sequence.state, sequence.saved = sequence.saved, sequence.state
        self.states.give_back(sequence.saved)
        sequence.saved = None

    def discard(self, sequence: Sequence) -> None:
        """Free all blocks and remove them from the prefix cache, because their content may be wrong."""
        self.forget(sequence)
        self.release(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Remove the sequence's blocks from the prefix cache. Unused ones become free; the first is allocated next."""
        for digest in reversed(sequence.digests):
            self._units.forget(window_of(digest))
            self._units.forget(digest)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. Sequences that use its blocks keep them."""
        self._units.forget_all()

    def adopt(self, sequence: Sequence) -> int:
        """Share known blocks of the prefix cache instead of computing them; returns the tokens this saves.

        The shared blocks follow the computed tokens, if these end with a full block. The last token is always computed,
        because its logits are wanted; so are prompt positions whose log-probabilities are wanted. The last shared block
        has a copy of states where layers keep some, and its window is known where layers have one.
        """
        before, first, groups = sequence.computed, len(sequence.blocks), self.groups
        known = first + self._known(sequence)
        end = self._going_on(sequence, known)
        sequence.computed += (end - first) * BLOCK_TOKENS
        seen = groups.first_seen(sequence.computed)
        for i in range(first, end):
            digest = sequence.digests[i]
            whole = self._units.share(digest) if groups.whole else ()
            windowed = self._units.share(window_of(digest)) if groups.windowed and i >= seen else (0,) * groups.windowed
            self._append(sequence, whole + windowed)
        self._pass(sequence, first)
        if known > first:
            sequence.shared = known * BLOCK_TOKENS
        if end > first:
            sequence.kept = sequence.computed
            if self.states is not None and sequence.state is not None:  # a waiting one gets it with its slot
                self.states.restore(sequence.blocks[-1], sequence.state)
        return sequence.computed - before

    def cut(self, sequence: Sequence, count: int) -> int:
        """Return how many of the next `count` tokens to compute, so that the step ends where states are to be kept."""
        if self.states is None or not self.states.kept or not sequence.request.root:
            return count
        start, end = sequence.computed, sequence.computed + count
        for at in kept_ends(sequence):
            if start < at < end and at - sequence.kept >= CUT_TOKENS:
                return at - start
        aligned = end // BLOCK_TOKENS * BLOCK_TOKENS
        return aligned - start if end < len(sequence.tokens) and aligned > start else count

    def comes_soon(self, sequence: Sequence, coming: set[bytes]) -> bool:
        """Return whether other sequences compute what this one, which waits, could adopt after this step.

        coming: the digests that `coming_digests` returned for them.
        """
        digest = next_digest(sequence)
        if self.states is None or self._find(digest) is None:
            return digest in coming
        # What it lacks is a copy of states.
        return any(
            at - sequence.kept >= CUT_TOKENS and digest_of(sequence, at // BLOCK_TOKENS - 1) in coming
            for at in (sequence.shared, system_end(sequence))
        )

    def coming_digests(self, sequence: Sequence, tokens: int) -> list[bytes]:
        """Return the digests of the blocks that become full when `tokens` more tokens are computed, and of the blocks
        at whose ends its states are kept for other sequences, in this step or a later one.
        """
        if not sequence.request.root:
            return []
        first, end = sequence.computed // BLOCK_TOKENS, (sequence.computed + tokens) // BLOCK_TOKENS
        found = [digest_of(sequence, i) for i in range(first, end)]
        if self.states is not None:
            ends = (at for at in (sequence.shared, system_end(sequence)) if at > sequence.computed)
            found += [digest_of(sequence, at // BLOCK_TOKENS - 1) for at in ends]
        return found

    def publish(self, sequence: Sequence, start: int) -> None:
        """Add the blocks that became full since `start` tokens were computed to the prefix cache.

        If another sequence has computed the same block meanwhile, its block replaces this one: their contents are
        equal bit for bit.
        """
        if not sequence.request.root:
            return
        first, full = start // BLOCK_TOKENS, sequence.computed // BLOCK_TOKENS
        for i in range(first, full):
            digest = digest_of(sequence, i)
            if self.groups.whole:
                self._put(sequence, i, 0, self._units.publish(digest, sequence.blocks[i]))
        if self.states is None:
            self._publish_windowed(sequence, first)
        elif start < sequence.computed == full * BLOCK_TOKENS:
            self._copy_states(sequence, self.states)

    def _copy_states(self, sequence: Sequence, states: StateSlots) -> None:
        """Copy the states at the end of the last full block, if the policy wants them there, and publish its window."""
        assert sequence.state is not None
        block = (at := sequence.computed) // BLOCK_TOKENS - 1
        decodes = len(sequence.prompt) <= at < len(sequence.tokens)
        evict = decodes or (at in kept_ends(sequence) and at - sequence.kept >= CUT_TOKENS)
        copied = self._is_copied(sequence, block)
        if not copied and not states.has_room(evict=evict):
            return
        self._publish_windowed(sequence, self.groups.first_seen(at))
        sequence.kept = at
        if copied:
            states.touch(sequence.blocks[block])
            return
        if decodes and sequence.passing is not None:
            states.drop(self._find(sequence.digests[sequence.passing]))
        states.keep(sequence.blocks[block], sequence.state)
        sequence.passing = block if decodes else None

    def _publish_windowed(self, sequence: Sequence, first: int) -> None:
        """Add the windowed units of the full blocks from number `first` on to the prefix cache."""
        group = self.groups.whole
        for i in range(first, sequence.computed // BLOCK_TOKENS if self.groups.windowed else 0):
            unit = self._units.publish(window_of(sequence.digests[i]), sequence.tables[group][i])
            self._put(sequence, i, group, unit)

    def _find(self, digest: bytes) -> int | None:
        """Return the unit with this digest, by which copies of states are found; None: none is known."""
        return self._units.find(digest if self.groups.whole else window_of(digest))

    def _known(self, sequence: Sequence) -> int:
        """Count the next blocks that are known; of windows alone, which keep no others: those up to the last one."""
        count = known = 0
        while digest := next_digest(sequence, count):
            count += 1
            if self._find(digest) is not None:
                known = count
            elif self.groups.whole:
                break
        return known

    def _is_copied(self, sequence: Sequence, block: int) -> bool:
        """Return whether the prefix cache has a copy of states for the end of the sequence's block number `block`."""
        return self.states is not None and self._find(sequence.digests[block]) in self.states

    def _going_on(self, sequence: Sequence, end: int) -> int:
        """Return after how many blocks, at most `end`, the sequence can go on: a copy of states is there, and the
        windowed units that are seen from there are known.
        """
        first = len(sequence.blocks)
        while end > first:
            if self.states is not None and not self._is_copied(sequence, end - 1):
                end -= 1
                continue
            seen = self.groups.first_seen(end * BLOCK_TOKENS) if self.groups.windowed else end
            for i in range(end - 1, max(seen, first) - 1, -1):
                if self._units.find(window_of(sequence.digests[i])) is None:
                    end = i
                    break
            else:
                return end
        return first

    def _pass(self, sequence: Sequence, own: int) -> None:
        """Drop the windowed units, among the first `own` of the sequence, that no later token sees."""
        seen = self.groups.first_seen(sequence.computed) if self.groups.windowed else 0
        for i in range(sequence.passed, min(seen, own)):
            self._drop_windowed(sequence, i)
        sequence.passed = seen

    def _append(self, sequence: Sequence, blocks: tuple[int, ...]) -> None:
        """Append a block of each group to the tables."""
        while len(sequence.tables) < self.groups.count:
            sequence.tables.append(array("i"))
        for table, block in zip(sequence.tables, blocks, strict=True):
            table.append(block)

    def _put(self, sequence: Sequence, at: int, group: int, unit: int) -> None:
        """Replace the unit number `at` of the groups from `group` on."""
        if sequence.tables[group][at] != unit:
            for number, block in enumerate(self._units.blocks(unit)):
                sequence.tables[group + number][at] = block

    def _pop(self, sequence: Sequence) -> None:
        """Drop the last unit of the whole groups, and of the windowed groups unless the window has passed it."""
        last = len(sequence.blocks) - 1
        if self.groups.windowed and last >= sequence.passed:
            self._drop_windowed(sequence, last)
        if self.groups.whole:
            self._units.drop(sequence.blocks[last])
        for table in sequence.tables:
            table.pop()

    def _drop_windowed(self, sequence: Sequence, at: int) -> None:
        tables = sequence.tables[self.groups.whole :]
        self._units.drop(tables[0][at])
        for table in tables:
            table[at] = 0
