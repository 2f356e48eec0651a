"""The journal against a list: whatever is written, synced, torn or rotten, the list is what comes back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.errors import Damaged, StorageFailed
from antiphon.ids import Mid
from antiphon.journal.format import payload_digest
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.memory_disk import MemoryDisk, Syncing
from tests.journals import DISK_ID, SMALL, lose_nothing, payload_of

seeds = st.integers(0, 2**32 - 1)
DATA_BYTES = [0, 1, 7, 100, 3_000, 4_000, 4_096, 20_000, 70_000]
ENDS = ["power cut", "torn pages", "kill", "clean", "during a chore", "again and again"]
# Around what fits one block, and what needs three.
ORDER_BYTES = [0, 1, 200, 3_974, 3_976, 3_977, 9_000]


class JournalMachine(RuleBasedStateMachine):
    """Somebody writes; the power goes at any moment; the disk keeps what it likes of the unsynced pages."""

    @initialize()
    def begin(self) -> None:
        self.disk = MemoryDisk()
        Journal.format(self.disk, SMALL, DISK_ID, 1, "test")
        self.order: list[bytes] = []
        # How many of the data each of them is bound to.
        self.bonds: list[int] = []
        # How many of the data were there at its flush, if that flush wrote a bound record: the blocks of a
        # flush are bound together.
        self.flushed_with: list[int] = []
        self.data: list[tuple[Mid, bytes]] = []
        self.promised = [0]
        self.made = 0
        self.base = 0
        self.data_forgotten = 0
        self.released_order = 0
        self._open()
        self._forget_what_was_unsure()

    def _open(self) -> None:
        self.journal, self.recovered = Journal.open(self.disk, SMALL)
        self.index = 0
        # After opening, the superblock says that all is synced.
        self.marked_at = self.journal.end_position
        # Index -> how much of each list it covers.
        self.covered: dict[int, tuple[int, int, int]] = {}
        self.tickets: deque[SyncTicket] = deque()
        self.syncing: tuple[SyncTicket, Syncing] | None = None

    def _forget_what_was_unsure(self) -> None:
        self.sure = (len(self.order), len(self.data), len(self.promised))

    def _next_index(self) -> int:
        self.index += 1
        self.covered[self.index] = (len(self.order), len(self.data), len(self.promised))
        return self.index

    # --- writing ---

    @rule(size=st.sampled_from(DATA_BYTES))
    def append_data(self, size: int) -> None:
        self.made += 1
        mid, payload = Mid(7, 3, self.made), payload_of(self.made, size)
        self.data.append((mid, payload))
        digest = payload_digest(mid, self.made, 1, payload)
        location = self.journal.append_data(self._next_index(), mid, self.made, 1, digest, payload)
        assert bytes(self.journal.read(location)) == payload

    @rule(size=st.sampled_from(ORDER_BYTES), pinned=st.booleans(), bound=st.booleans())
    def append_order(self, size: int, pinned: bool, bound: bool) -> None:
        self.made += 1
        self.order.append(payload_of(self.made, size))
        self.bonds.append(len(self.data) if bound else 0)
        highest = self.released_order + len(self.order)
        self.journal.append_order(self._next_index(), self.order[-1], highest, pinned=pinned, bound=bound)

    @rule()
    def promise(self) -> None:
        self.promised.append(self.promised[-1] + 1)
        self.journal.append_superblock(self._next_index(), self.promised[-1], 0)

    @rule()
    def flush(self) -> None:
        self._is_flushed()
        self._keep(self.journal.flush())

    @rule()
    def mark(self) -> None:
        self._is_flushed()
        self._keep(self.journal.mark())

    def _is_flushed(self) -> None:
        bonds = self.bonds[len(self.flushed_with) :]
        self.flushed_with += [len(self.data) if any(bonds) else 0] * len(bonds)

    def _keep(self, ticket: SyncTicket | None) -> None:
        if ticket is not None:
            self.tickets.append(ticket)

    @precondition(lambda self: self.tickets and self.syncing is None)
    @rule(together=st.integers(1, 3))
    def sync_begins(self, together: int) -> None:
        ticket = self.tickets.popleft()
        while self.tickets and together > 1:
            ticket = ticket.merge(self.tickets.popleft())
            together -= 1
        self.syncing = (ticket, self.disk.begin_sync(ticket.files))

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def sync_ends(self) -> None:
        assert self.syncing is not None
        ticket, syncing = self.syncing
        self.syncing = None
        self.disk.finish_sync(syncing)
        self.journal.synced(ticket)
        if ticket.upto_index:
            self.sure = max(self.sure, self.covered[ticket.upto_index])

    @rule(seed=seeds, steps=st.integers(1, 60))
    def a_busy_while(self, seed: int, steps: int) -> None:
        """Hypothesis likes short stories; a full segment needs a longer one."""
        chance = random.Random(seed)
        for _ in range(steps):
            match chance.randrange(8):
                case 0 | 1:
                    self.append_data(chance.choice(DATA_BYTES))
                case 2 | 3:
                    self.append_order(
                        chance.choice(ORDER_BYTES), chance.random() < 0.1, chance.random() < 0.5
                    )
                case 4:
                    self.flush()
                case 5 if self.syncing is None and self.tickets:
                    self.sync_begins(chance.randint(1, 3))
                case 6 if self.syncing is not None:
                    self.sync_ends()
                case 7:
                    chance.choice([self.promise, self.mark, self.chores_are_done])()

    @rule()
    def everything_is_synced(self) -> None:
        self.flush()
        while self.tickets or self.syncing:
            if self.syncing is None:
                self.sync_begins(3)
            self.sync_ends()
            self.flush()

    @property
    def is_marked(self) -> bool:
        """Everything is synced, and the disk says so."""
        return self.marked_at == self.journal.end_position and not self.journal.has_gathered

    @rule()
    def everything_is_synced_and_marked(self) -> None:
        self.everything_is_synced()
        self.mark()
        self.everything_is_synced()
        self.marked_at = self.journal.end_position

    @rule()
    def chores_are_done(self) -> None:
        self.journal.prepare_spare()

    @rule(part=st.floats(0, 1))
    def a_checkpoint_covers(self, part: float) -> None:
        """Release a beginning of what is surely durable."""
        base = int(self.sure[0] * part)
        count = int(self.sure[1] * part)
        for mid, _ in self.data[:count]:
            self.journal.payloads.discard(mid)
        self.base = max(self.base, base + self.released_order)
        self.data_forgotten = max(self.data_forgotten, count)
        self.journal.release(self.base, ())

    # --- ends ---

    @rule(seed=seeds, how=st.sampled_from(ENDS))
    def it_ends(self, seed: int, how: str) -> None:
        if how == "clean":
            self.everything_is_synced()
            self.journal.close()
            self._forget_what_was_unsure()
        chance = random.Random(seed)
        if how == "during a chore":
            self._interrupt(self.journal.prepare_spare, chance)
        choose = lose_nothing if how == "kill" else chance.randrange
        self.disk.crash(choose, tear=how in ("torn pages", "clean"))
        if how == "again and again":
            for _ in range(3):
                self._interrupt(lambda: Journal.open(self.disk, SMALL), chance)
                self.disk.crash(chance.randrange, tear=True)
        self._come_back()
        if how == "clean":
            assert self.recovered.was_clean
            assert not self.recovered.repairs and not self.recovered.truncated

    def _interrupt(self, work: Callable[[], object], chance: random.Random) -> None:
        """The power goes in the middle of it, at one of the moments when it waits for the disk."""
        self.disk.syncs_until_failure = chance.randrange(5)
        try:
            work()
        except StorageFailed:
            pass

    @rule(seed=seeds)
    def a_byte_rots(self, seed: int) -> None:
        """On a copy of the disk: one rotten byte is mended or named. Only the data of the very last sync,
        of which nothing on the disk says yet that it happened, may look like an unfinished write, and then
        the order that is bound to them does."""
        chance = random.Random(seed)
        disk = self.disk.copy()
        names = disk.list_files()
        name = chance.choice(names)
        disk.flip(name, chance.randrange(disk.size(name)), 1 << chance.randrange(8))
        try:
            journal, recovered = Journal.open(disk, SMALL)
        except Damaged as damage:
            assert damage.file == name
            return
        order, data = _found(journal, recovered.order, recovered.data)
        if self.is_marked:
            self._check_order(order)
            self._check_data(data)
            return
        assert _is_slice_of(data, self.data)
        data_end = self._end_of(data)
        bound = [at for at, count in enumerate(self.flushed_with) if count > data_end]
        self._check_order(order, min([self.sure[0], *bound]))

    def _come_back(self) -> None:
        self._open()
        order, data = _found(self.journal, self.recovered.order, self.recovered.data)
        order_start = self._check_order(order)
        data_start = self._check_data(data)
        bonds = self.bonds[order_start : order_start + len(order)]
        assert max(bonds, default=0) <= data_start + len(data), "order came back without its data"
        assert self.recovered.promised in self.promised[self.sure[2] - 1 :]
        # Go on with what is there; that is durable now.
        self.released_order = self.released_order + order_start
        self.order, self.data = order, data
        self.bonds = [max(0, count - data_start) for count in bonds]
        # What came back is durable, and counts without a bond.
        self.flushed_with = [0] * len(order)
        self.data_forgotten = max(0, self.data_forgotten - data_start)
        self.promised = [self.recovered.promised]
        self._forget_what_was_unsure()

    def _check_order(self, found: list[bytes], least: int | None = None) -> int:
        """A slice of the list that lacks at most what the base covers and what was never synced."""
        for start in range(self.base - self.released_order + 1):
            if self.order[start : start + len(found)] == found:
                assert start + len(found) >= (self.sure[0] if least is None else least)
                return start
        raise AssertionError(f"{len(found)} order records came back that were not written like that")

    def _end_of(self, found: list[tuple[Mid, bytes]]) -> int:
        """How many of the data these are the end of; none if nothing was found."""
        if not found:
            return 0
        starts = range(len(self.data) - len(found) + 1)
        return max(start for start in starts if self.data[start : start + len(found)] == found) + len(found)

    def _check_data(self, found: list[tuple[Mid, bytes]]) -> int:
        for start in range(self.data_forgotten + 1):
            if self.data[start : start + len(found)] == found:
                assert start + len(found) >= self.sure[1]
                return start
        raise AssertionError(f"{len(found)} data records came back that were not written like that")

    @invariant()
    def what_is_written_can_be_read(self) -> None:
        for mid, payload in self.data[-3:]:
            location = self.journal.payloads.locate(mid)
            assert location is None or bytes(self.journal.read(location)) == payload


def _found(journal: Journal, order: list[bytes], data: list) -> tuple[list[bytes], list[tuple[Mid, bytes]]]:
    return order, [(item.mid, bytes(journal.read(item.location))) for item in data]


def _is_slice_of(found: list[tuple[Mid, bytes]], written: list[tuple[Mid, bytes]]) -> bool:
    return any(written[start : start + len(found)] == found for start in range(len(written) + 1))


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize("seed", range(60))
def test_what_was_synced_survives_a_long_story_of_crashes(seed: int) -> None:
    """The same machine, driven by a seed instead of by Hypothesis, which prefers short stories."""
    chance = random.Random(seed)
    machine = JournalMachine()
    machine.begin()
    for _ in range(8):
        machine.a_busy_while(chance.getrandbits(32), chance.randint(5, 80))
        machine.what_is_written_can_be_read()
        if chance.random() < 0.3:
            machine.a_checkpoint_covers(chance.random())
        if chance.random() < 0.3:
            machine.everything_is_synced_and_marked()
        machine.a_byte_rots(chance.getrandbits(32))
        machine.it_ends(chance.getrandbits(32), chance.choice(ENDS))
