"""From order records to the log, and from data records to what still waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from antiphon.bus.checkpoint_server import CheckpointState, KeptCheckpoint
from antiphon.bus.effects import DataRecord
from antiphon.bus.entries import OpenDetail, StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger, folded
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.records import BaseMoved, EntriesAppended, EpochStarted, OrderBody, encode_order
from antiphon.bus.recovery import RecoveredReplica, choose, recover
from antiphon.errors import Damaged, FormatMismatch, Unreadable
from antiphon.ids import Mid, make_epoch
from antiphon.journal.checkpoints import Checkpoint, CheckpointHead
from antiphon.journal.ports import Location, identity_of
from antiphon.journal.recovery import DataAt, Recovered
from tests.stage import MemoryPayloads, data_of, entry_of

OLD, NEW = make_epoch(1, 1), make_epoch(2, 1)


def tick(number: int, epoch: int = OLD, count: int = 1) -> Entry:
    return Entry(number, count, EntryKind.TICK, Mid(1, epoch, number), 0, NO_DIGEST)


def ticks(first: int, last: int, epoch: int = OLD) -> tuple[Entry, ...]:
    return tuple(tick(number, epoch) for number in range(first, last + 1))


def found(
    *order: OrderBody,
    data: Sequence[DataAt] = (),
    checkpoint: CheckpointState | None = None,
    older_checkpoint: CheckpointState | None = None,
    promised: int = 0,
) -> Recovered:
    state, older = [
        None if one is None else Checkpoint(one.n, one.digest, one.encode(), ())
        for one in (checkpoint, older_checkpoint)
    ]
    return Recovered(
        disk_id=bytes(16),
        node_id=1,
        cluster="test",
        run=1,
        was_clean=False,
        promised=promised,
        epoch_claimed=OLD,
        order=[encode_order(body) for body in order],
        data=list(data),
        checkpoint=state,
        older_checkpoint=older,
        checkpoint_problems=[],
        repairs=[],
        truncated=[],
    )


def log_of(recovered: RecoveredReplica) -> tuple[Entry, ...]:
    return recovered.log.between(recovered.log.base, recovered.log.last)


def at(n: int, ledger: Ledger | None = None) -> CheckpointState:
    return CheckpointState(n, (ledger or Ledger()).encode(), b"m" * 16, b"state")


def test_an_empty_disk_is_an_empty_log() -> None:
    recovered = recover(found(), MemoryPayloads())
    assert (recovered.base, recovered.log.last, recovered.applied) == (0, 0, 0)
    assert recovered.manager_state is None


def test_appended_entries_come_back_in_order() -> None:
    recovered = recover(
        found(
            EpochStarted(OLD, 0, ()),
            EntriesAppended(OLD, 0, ticks(1, 2)),
            EntriesAppended(OLD, 2, ticks(3, 3)),
        ),
        MemoryPayloads(),
    )
    assert log_of(recovered) == ticks(1, 3)
    assert recovered.log_epoch == OLD


def test_a_new_epoch_cuts_and_replaces() -> None:
    recovered = recover(
        found(EntriesAppended(OLD, 0, ticks(1, 5)), EpochStarted(NEW, 3, ticks(4, 4, NEW))),
        MemoryPayloads(),
    )
    assert log_of(recovered) == (*ticks(1, 3), *ticks(4, 4, NEW))
    assert recovered.log_epoch == NEW


def test_the_promise_is_at_least_the_epoch_of_the_log() -> None:
    recovered = recover(found(EpochStarted(NEW, 0, ()), promised=OLD), MemoryPayloads())
    assert recovered.promised == NEW


def test_what_lies_below_the_base_is_gone() -> None:
    recovered = recover(
        found(
            EntriesAppended(OLD, 0, ticks(1, 5)),
            BaseMoved(3, OLD, Ledger().encode(), bytes(16)),
            checkpoint=at(3),
        ),
        MemoryPayloads(),
    )
    assert (recovered.base, log_of(recovered)) == (3, ticks(4, 5))


def test_records_below_the_base_may_be_missing() -> None:
    base = BaseMoved(6, OLD, Ledger().encode(), bytes(16))
    recovered = recover(found(EntriesAppended(OLD, 4, ticks(5, 8)), base, checkpoint=at(6)), MemoryPayloads())
    assert log_of(recovered) == ticks(7, 8)


def test_leftovers_of_an_old_epoch_in_a_kept_segment_do_no_harm() -> None:
    """Old entries up to 9 were cut at 2 by records that have been released; a leftover even cuts the base."""
    base = BaseMoved(6, NEW, Ledger().encode(), bytes(16))
    recovered = recover(
        found(
            EntriesAppended(OLD, 0, (*ticks(1, 4), tick(5, count=4))),
            EntriesAppended(NEW, 5, ticks(6, 8, NEW)),
            base,
            checkpoint=at(6),
        ),
        MemoryPayloads(),
    )
    assert log_of(recovered) == ticks(7, 8, NEW)


def test_everything_may_be_released_but_the_base_itself() -> None:
    base = BaseMoved(6, NEW, Ledger().encode(), bytes(16))
    recovered = recover(found(base, checkpoint=at(6)), MemoryPayloads())
    assert (recovered.base, recovered.log.last, recovered.log_epoch) == (6, 6, NEW)


def test_a_hole_above_the_base_makes_no_log() -> None:
    with pytest.raises(Unreadable, match="records before number 5 are missing"):
        recover(
            found(EntriesAppended(OLD, 0, ticks(1, 2)), EntriesAppended(OLD, 4, ticks(5, 5))),
            MemoryPayloads(),
        )


def test_a_base_without_a_checkpoint_is_damage() -> None:
    base = BaseMoved(6, OLD, Ledger().encode(), bytes(16))
    with pytest.raises(Damaged, match="no checkpoint covers"):
        recover(found(base), MemoryPayloads())
    with pytest.raises(Damaged, match="no checkpoint covers"):
        recover(found(base, checkpoint=at(5)), MemoryPayloads())


def test_a_record_that_verifies_and_cannot_be_read_is_no_damage() -> None:
    broken = found()
    broken.order.append(b"\xff")
    with pytest.raises(Unreadable, match=r"cannot be read: .* nothing was changed"):
        recover(broken, MemoryPayloads())


class Source:
    """Checkpoints that lie on a disk, the newest first."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.problems: list[str] = []

    @property
    def found(self) -> Recovered:
        states = [at(n) for n in self.numbers[:2]]
        on_disk = found(
            checkpoint=states[0] if states else None,
            older_checkpoint=states[1] if len(states) > 1 else None,
        )
        return replace(on_disk, checkpoint_problems=self.problems)

    def pass_over(self, n: int, why: str) -> None:
        self.numbers.remove(n)
        self.problems.append(f"checkpoint {n} cannot be used: {why}")


def reading(*readable: int) -> Callable[[CheckpointState], int]:
    def read(state: CheckpointState) -> int:
        if state.n not in readable:
            raise Unreadable(f"no {state.n}")
        return state.n

    return read


@pytest.mark.parametrize("has_peers", [True, False])
@pytest.mark.parametrize(("readable", "chosen"), [((40, 30, 20), 40), ((30, 20), 30), ((20,), 20)])
def test_the_newest_checkpoint_that_reads_is_chosen(
    readable: tuple[int, ...], chosen: int, has_peers: bool
) -> None:
    source = Source(40, 30, 20)
    assert choose(source, 20, reading(*readable), has_peers=has_peers) == chosen
    assert source.numbers[0] == chosen
    assert len(source.problems) == (40 - chosen) // 10


def test_a_checkpoint_below_the_base_is_no_beginning() -> None:
    assert choose(Source(40, 20), 30, reading(20), has_peers=True) is None
    with pytest.raises(Unreadable, match="no checkpoint can be used"):
        choose(Source(40, 20), 30, reading(20), has_peers=False)
    with pytest.raises(Damaged, match="the log begins after 30, and no checkpoint covers"):
        choose(Source(20), 30, reading(20), has_peers=False)


def test_without_a_checkpoint_a_log_from_the_beginning_is_enough() -> None:
    for has_peers in (True, False):
        assert choose(Source(40, 20), 0, reading(), has_peers=has_peers) is None
        assert choose(Source(), 0, reading(), has_peers=has_peers) is None


def test_a_node_that_is_alone_is_refused_by_the_first_cause_with_all_of_them() -> None:
    with pytest.raises(Unreadable) as unreadable:
        choose(Source(40, 20), 20, reading(), has_peers=False)
    assert "checkpoint 40 cannot be used: no 40" in unreadable.value.text
    assert "checkpoint 20 cannot be used: no 20" in unreadable.value.text

    def damaged(state: CheckpointState) -> int:
        raise Damaged(f"segment-{state.n}", 4711, "it has rotted")

    with pytest.raises(Damaged) as damage:
        choose(Source(40, 20), 20, damaged, has_peers=False)
    assert (damage.value.file, damage.value.offset) == ("segment-40", 4711)
    source = Source()
    source.problems = ["checkpoint-9 cannot be used: it is too short"]
    with pytest.raises(Damaged) as damage:
        choose(source, 20, reading(), has_peers=False)
    assert damage.value.file == "checkpoint-9"


def test_another_version_is_refused_whatever_older_checkpoints_there_are() -> None:
    def mismatched(state: CheckpointState) -> int:
        raise FormatMismatch("another version wrote it")

    source = Source(40, 20)
    with pytest.raises(FormatMismatch):
        choose(source, 20, mismatched, has_peers=True)
    assert source.numbers == [40, 20]


def test_the_checkpoint_is_where_applying_goes_on() -> None:
    ledger = Ledger()
    ledger.term, ledger.primary = OLD, 1
    recovered = recover(
        found(EntriesAppended(OLD, 0, ticks(1, 5)), checkpoint=at(3, ledger)), MemoryPayloads()
    )
    assert (recovered.applied, recovered.base) == (3, 0)
    assert recovered.ledger.term == OLD
    assert recovered.manager_state == b"state" and recovered.manager_digest == b"m" * 16
    assert [kept.n for kept in recovered.checkpoints] == [3]


def test_envelopes_are_sorted_into_placed_waiting_and_gone() -> None:
    opened = Entry(
        1, 1, EntryKind.PRODUCER_OPEN, Mid(1, OLD, 1), 0, NO_DIGEST, OpenDetail(7, b"r" * 16).encode()
    )
    envelopes = [data_of(Mid(7, 1, pseq)) for pseq in (1, 2, 3, 4)]
    former = data_of(Mid(7, 0, 9))
    entries = (opened, *(entry_of(data, 2 + at) for at, data in enumerate(envelopes[:3])))
    ledger = Ledger()
    ledger.fold(entries[:3])
    payloads = MemoryPayloads()
    stored = []
    for offset, data in enumerate([former, *envelopes]):
        payloads.write(DataRecord(data.mid, data.ts, data.count, data.digest, data.payload))
        stored.append(
            DataAt(
                data.mid,
                data.ts,
                data.count,
                data.digest,
                Location(1, offset, len(data.payload), identity_of(data.digest)),
            )
        )
    recovered = recover(
        found(EntriesAppended(OLD, 0, entries), data=stored, checkpoint=at(3, ledger)), payloads
    )
    assert sorted(payloads.placed) == [2, 3], "the checkpoint covers them and the log still names them"
    assert [one.mid.pseq for one in recovered.envelopes] == [3, 4], "one numbered behind it, one waiting"
    assert not payloads.has(former.mid), "its run is over"


def test_a_checkpoint_of_another_node_counts_before_its_base_is_on_record() -> None:
    """The file is there whole, and the log ends far before it: what the log says proves nothing."""
    opened = Entry(
        1, 1, EntryKind.PRODUCER_OPEN, Mid(1, OLD, 1), 0, NO_DIGEST, OpenDetail(7, b"r" * 16).encode()
    )
    waiting = data_of(Mid(7, 1, 1))
    payloads = MemoryPayloads()
    payloads.write(DataRecord(waiting.mid, waiting.ts, waiting.count, waiting.digest, waiting.payload))
    stored = DataAt(
        waiting.mid, 0, 1, waiting.digest, Location(1, 0, len(waiting.payload), identity_of(waiting.digest))
    )
    ledger = Ledger()
    ledger.fold([opened])
    recovered = recover(
        found(
            EntriesAppended(OLD, 0, (opened, entry_of(waiting, 2))), data=[stored], checkpoint=at(50, ledger)
        ),
        payloads,
    )
    assert (recovered.applied, recovered.base, recovered.log.last) == (50, 0, 2)
    assert [one.mid for one in recovered.envelopes] == [waiting.mid], "its number was given up by the others"
    assert payloads.placed == {}


def test_what_is_committed_and_not_named_by_our_log_is_kept_for_others() -> None:
    """The order went on without our commit server, and our checkpoint is not known to be stable."""
    opened = Entry(
        1, 1, EntryKind.PRODUCER_OPEN, Mid(1, OLD, 1), 0, NO_DIGEST, OpenDetail(7, b"r" * 16).encode()
    )
    data = data_of(Mid(7, 1, 1))
    payloads = MemoryPayloads()
    payloads.write(DataRecord(data.mid, data.ts, data.count, data.digest, data.payload))
    stored = DataAt(data.mid, 0, 1, data.digest, Location(1, 0, len(data.payload), identity_of(data.digest)))
    ledger = Ledger()
    ledger.fold([opened, entry_of(data, 2)])
    lagging = EntriesAppended(OLD, 0, (opened,))
    recovered = recover(found(lagging, data=[stored], checkpoint=at(2, ledger)), payloads)
    assert [one.mid for one in recovered.envelopes] == [data.mid] and payloads.has(data.mid)
    base = BaseMoved(2, OLD, ledger.encode(), bytes(16))
    recovered = recover(found(lagging, base, data=[stored], checkpoint=at(2, ledger)), payloads)
    assert recovered.envelopes == () and not payloads.has(data.mid), "the base has passed it"


def test_a_log_of_another_order_below_the_checkpoint_proves_nothing() -> None:
    ledger = Ledger()
    ledger.term, ledger.primary = NEW, 2
    cut = (*ticks(1, 3), tick(4, count=4), *ticks(8, 9))
    recovered = recover(found(EntriesAppended(OLD, 0, cut), checkpoint=at(5, ledger)), MemoryPayloads())
    assert (recovered.applied, recovered.log.last) == (5, 9)


def test_a_checkpoint_of_another_node_may_end_inside_an_entry_with_its_envelope() -> None:
    data = data_of(Mid(1, 2, 1), commands=3)
    entry = entry_of(data, 2)
    record = EntriesAppended(OLD, 0, (tick(1), entry), ((1, data.payload),))
    recovered = recover(found(record, checkpoint=at(3)), MemoryPayloads())
    assert log_of(recovered) == (tick(1), entry)
    assert recovered.embedded == (data,)


@pytest.mark.parametrize(
    ("base", "left"),
    [
        pytest.param(20, (), id="beyond the log"),
        pytest.param(5, (), id="within an entry"),
        pytest.param(7, ticks(8, 9), id="at the end of an entry"),
    ],
)
def test_a_base_from_another_node_leaves_what_follows_it(base: int, left: tuple[Entry, ...]) -> None:
    log = (*ticks(1, 3), tick(4, count=4), *ticks(8, 9))
    moved = BaseMoved(base, OLD, Ledger().encode(), bytes(16))
    recovered = recover(found(EntriesAppended(OLD, 0, log), moved, checkpoint=at(base)), MemoryPayloads())
    assert recovered.base == base
    assert log_of(recovered) == left
    behind = EntriesAppended(OLD, base, ticks(base + 1, base + 1))
    if not left:
        again = recover(
            found(EntriesAppended(OLD, 0, log), moved, behind, checkpoint=at(base)), MemoryPayloads()
        )
        assert log_of(again) == behind.entries, "the log goes on from there"


def test_what_is_known_to_be_stable_comes_back() -> None:
    detail = StableDetail(2, bytes(16), (1, 2)).encode()
    stable = Entry(4, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, OLD, 4), 0, NO_DIGEST, detail)
    log = EntriesAppended(OLD, 0, (*ticks(1, 3), stable, *ticks(5, 6)))
    older = at(2)
    assert recover(found(log, checkpoint=at(6), older_checkpoint=older), MemoryPayloads()).stable_n == 2
    assert recover(found(log, checkpoint=at(6)), MemoryPayloads()).stable_n == 0, "its file is gone"
    assert recover(found(log, checkpoint=at(3), older_checkpoint=older), MemoryPayloads()).stable_n == 0, (
        "not committed, for all we know"
    )


def test_the_newest_stable_checkpoint_comes_back_also_if_two_later_ones_are_there() -> None:
    details = [StableDetail(n, bytes(16), (1, 2)).encode() for n in (1, 2)]
    stables = [
        Entry(at, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, OLD, at), 0, NO_DIGEST, detail)
        for at, detail in zip((3, 4), details, strict=True)
    ]
    log = EntriesAppended(OLD, 0, (*ticks(1, 2), *stables, *ticks(5, 6)))
    on_disk = found(log, checkpoint=at(6), older_checkpoint=at(5))
    heads = tuple([CheckpointHead(n, b"%016d" % n, 7, ()) for n in (1, 2)])
    recovered = recover(replace(on_disk, earlier_checkpoints=heads), MemoryPayloads())
    assert recovered.stable_n == 2
    assert [kept.n for kept in recovered.checkpoints] == [1, 2, 5, 6]
    assert recovered.checkpoints[1] == KeptCheckpoint(2, b"%016d" % 2, 7)
    damaged = recover(replace(on_disk, earlier_checkpoints=heads[:1]), MemoryPayloads())
    assert damaged.stable_n == 1, "the one before it will do"
    below = BaseMoved(2, OLD, folded(Ledger().encode(), ticks(1, 2)), bytes(16))
    on_disk = found(log, below, checkpoint=at(6), older_checkpoint=at(5))
    recovered = recover(replace(on_disk, earlier_checkpoints=heads), MemoryPayloads())
    assert [kept.n for kept in recovered.checkpoints] == [2, 5, 6], "what the base has passed is over"


def test_a_witness_begins_at_its_base_and_has_no_state() -> None:
    ledger = Ledger()
    ledger.term, ledger.primary = OLD, 1
    base = BaseMoved(6, OLD, ledger.encode(), bytes(16))
    order = (EntriesAppended(OLD, 0, ticks(1, 8)), base)
    recovered = recover(found(*order), MemoryPayloads(), keeps_state=False)
    assert (recovered.applied, recovered.base, recovered.log.last) == (6, 6, 8)
    assert recovered.ledger.term == OLD and recovered.manager_state is None


def test_in_a_group_a_node_that_is_to_keep_state_and_has_none_begins_empty() -> None:
    """It was a witness, or its checkpoints are damaged: others have a state, and its log is no state."""
    base = BaseMoved(6, OLD, Ledger().encode(), bytes(16))
    order = (EpochStarted(OLD, 0, ticks(1, 8)), base)
    recovered = recover(found(*order), MemoryPayloads(), group=GroupConfig.of("main", (1, 2, 3)))
    assert (recovered.applied, recovered.base, recovered.log.last) == (0, 6, 8)
    assert recovered.manager_state is None and recovered.ledger.encode() == Ledger().encode()
    alone = GroupConfig.of(
        "main", (1, 2, 3), checkpoint_servers=(2, 3), data_servers=(2, 3), candidates=(2, 3)
    )
    assert recover(found(*order), MemoryPayloads(), group=alone).applied == 6, "a witness"


def test_the_log_may_begin_at_either_checkpoint() -> None:
    older = Ledger()
    older.term = 7
    recovered = recover(found(checkpoint=at(26), older_checkpoint=at(12, older)), MemoryPayloads())
    assert recovered.marks == {12: older.encode(), 26: Ledger().encode()}


def test_an_older_checkpoint_that_does_not_read_is_no_reason_not_to_start() -> None:
    broken = Checkpoint(12, bytes(16), at(12).encode(), ())
    on_disk = replace(found(checkpoint=at(26)), older_checkpoint=broken)
    assert list(recover(on_disk, MemoryPayloads()).marks) == [26]
