"""A node that does not lead: what it makes of commits and payloads, whichever comes first; and a witness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.effects import Append, Apply, DataRecord, Effect, Received, ReleaseSpace, Send, Synced
from antiphon.bus.entries import OpenDetail, StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.bus.recovery import RecoveredReplica
from antiphon.bus.replica import Replica
from antiphon.ids import Mid, make_epoch
from antiphon.journal.recovery import DataAt
from antiphon.sim.checkers.bounds import containers
from tests.stage import MemoryPayloads, data_of, entry_of

EPOCH = make_epoch(1, 1)


def own(number: int, kind: EntryKind, detail: bytes = b"") -> Entry:
    return Entry(number, 1, kind, Mid(1, EPOCH, number), 0, NO_DIGEST, detail)


CLAIM = own(1, EntryKind.PRIMARY_CLAIM)
OPENED = own(2, EntryKind.PRODUCER_OPEN, OpenDetail(1, b"a" * 16).encode())
ONE, TWO, THREE = (data_of(Mid(1, 2, pseq)) for pseq in (1, 2, 3))
ORDER = (CLAIM, OPENED, entry_of(ONE, 3), entry_of(TWO, 4), entry_of(THREE, 5))


class Backup:
    """The replica of node 3; node 1 leads."""

    def __init__(self, *stored: m.Data, **settings: Any) -> None:
        """An earlier run has `stored` these envelopes."""
        self.config = GroupConfig.of("main", (1, 2, 3), **settings)
        self.payloads = MemoryPayloads()
        found: list[DataAt] = []
        for mid, ts, count, digest, payload in stored:
            self.payloads.write(DataRecord(mid, ts, count, digest, payload))
            found.append(DataAt(mid, ts, count, digest, self.payloads.unplaced[mid]))
        recovered = replace(RecoveredReplica.empty(), envelopes=tuple(found))
        self.replica = Replica(
            self.config, 3, b"run of a backup.", self.payloads, JournalCounter(), recovered
        )
        self.now_ns = 0
        self.written = 0
        self.applied: list[int] = []
        self.step()

    def step(self, *events: Any) -> list[Effect]:
        effects = self.replica.step(self.now_ns, list(events))
        for effect in effects:
            if isinstance(effect, Append):
                self.written = effect.index
                if isinstance(effect.record, DataRecord):
                    self.payloads.write(effect.record)
            elif isinstance(effect, Apply):
                self.applied.append(effect.entry.first)
        return effects

    def hear(self, *messages: m.BusMessage) -> list[Effect]:
        return self.step(*(Received(1, message) for message in messages))

    def sync(self) -> list[Effect]:
        return self.step(Synced(self.written))

    def asks(self, kind: type) -> Send:
        """The next question of this kind."""
        while True:
            deadline = self.replica.next_deadline_ns()
            assert deadline is not None
            self.now_ns = max(deadline, self.now_ns)
            beat = m.Heartbeat(EPOCH, 5, 0, 1, 5, True)
            for effect in self.hear(beat):
                if isinstance(effect, Send) and isinstance(effect.message, kind):
                    return effect


def test_a_payload_that_arrives_together_with_its_commit_is_kept() -> None:
    backup = Backup()
    effects = backup.hear(m.Commit(EPOCH, ORDER[:3], 3), ONE)
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, m.Published)]
    assert backup.applied == [1, 2]
    backup.sync()
    assert backup.applied == [1, 2, 3]


def test_a_payload_that_arrives_after_its_commit_is_applied_when_it_is_durable() -> None:
    backup = Backup()
    backup.hear(m.Commit(EPOCH, ORDER[:3], 3))
    backup.hear(ONE)
    assert backup.applied == [1, 2]
    backup.sync()
    assert backup.applied == [1, 2, 3]


def test_who_is_far_behind_gets_order_and_payloads_in_one_trip() -> None:
    backup = Backup(fetch_entries_max=2)
    assert backup.asks(m.FetchRange).to == 2, "node 1 leads and has enough to do"
    backup.hear(m.FetchRangeReply(ORDER, (ONE, TWO, THREE), 5, 0))
    assert backup.applied == [1, 2]
    backup.sync()
    assert backup.applied == [1, 2, 3, 4, 5]


def test_what_a_trip_did_not_bring_is_fetched_by_itself() -> None:
    backup = Backup(fetch_entries_max=2)
    backup.asks(m.FetchRange)
    backup.hear(m.FetchRangeReply(ORDER, (ONE, THREE), 5, 0))
    backup.sync()
    assert backup.applied == [1, 2, 3]
    assert backup.asks(m.FetchData).message == m.FetchData((TWO.mid,), (4,))
    backup.hear(m.FetchDataReply((TWO,), ()))
    backup.sync()
    assert backup.applied == [1, 2, 3, 4, 5]


def test_a_producer_elsewhere_is_told_its_row() -> None:
    backup = Backup()
    backup.hear(m.Commit(EPOCH, ORDER, 5))
    (answer,) = backup.hear(m.ProducerStateGet(1))
    assert answer == Send(1, m.ProducerState(1, 5, 2, 3, 5, 0, 0, b"a" * 16))


def test_a_witness_knows_the_order_and_waits_for_nothing() -> None:
    backup = Backup(data_servers=(1, 2), candidates=(1, 2), checkpoint_servers=(1, 2))
    backup.hear(m.Commit(EPOCH, ORDER, 5), ONE)
    assert backup.applied == []
    assert backup.replica.committed_upto == backup.replica.applied == 5
    assert backup.payloads.records == [], "what it is sent by mistake it does not keep"
    assert backup.replica.primary == 1


WITNESS_ROLES: dict[str, Any] = dict.fromkeys(("data_servers", "candidates", "checkpoint_servers"), (1, 2))
WITNESS = GroupConfig.of("main", (1, 2, 3), config_id=2, **WITNESS_ROLES)


def marked(number: int) -> tuple[Entry, Entry]:
    """A mark, and that its checkpoint is stable."""
    stable = StableDetail(number, NO_DIGEST, (1, 2)).encode()
    return own(number, EntryKind.CHECKPOINT_MARK), own(number + 1, EntryKind.CHECKPOINT_STABLE, stable)


def follow(backup: Backup, entries: tuple[Entry, ...]) -> list[int]:
    """These are committed behind everything before; returns the bases of the log since then."""
    first, last = entries[0].first, entries[-1].last
    if first == 1:
        effects = backup.hear(m.EpochStart(EPOCH, 1, entries, 0))
    else:
        config_id = backup.replica.config.config_id
        effects = backup.hear(m.CommitSubmit(EPOCH, first - 1, entries, first - 1, config_id))
    effects += backup.sync() + backup.hear(m.Commit(EPOCH, entries, last))
    effects += backup.hear(m.Heartbeat(EPOCH, last, 0, 1, last, True)) + backup.sync()
    return [effect.base for effect in effects if isinstance(effect, ReleaseSpace)]


def test_a_witness_gives_up_what_it_stored_as_a_data_server_when_the_base_has_passed_it() -> None:
    """Nobody takes it there: for ever it kept its segment, and all segments behind that."""
    backup = Backup(ONE, THREE, **WITNESS_ROLES)
    assert follow(backup, (*ORDER[:3], *marked(4))) == []
    assert backup.payloads.location_of(3) is not None, "the journal sees that checkpoints would free it"
    assert follow(backup, marked(6)) == [4]
    assert backup.payloads.unplaced.keys() == {THREE.mid}, "that one may still get a number"
    assert follow(backup, (entry_of(TWO, 8), entry_of(THREE, 9), *marked(10))) == [6]
    assert backup.payloads.location_of(9) is not None and not backup.payloads.unplaced
    assert follow(backup, marked(12)) == [10]


def test_a_witness_gives_up_what_it_stored_as_a_data_server_when_it_can_get_no_number() -> None:
    backup = Backup(ONE, **WITNESS_ROLES)
    follow(backup, (CLAIM, OPENED))
    assert backup.payloads.unplaced.keys() == {ONE.mid}
    follow(backup, (own(3, EntryKind.PRODUCER_OPEN, OpenDetail(1, b"b" * 16).encode()),))
    assert backup.payloads.unplaced.keys() == set(), "its run is over"

    backup = Backup(ONE, lifetime=4, **WITNESS_ROLES)
    follow(backup, (CLAIM, OPENED, *marked(3)))
    assert backup.payloads.unplaced.keys() == {ONE.mid}
    follow(backup, tuple(own(number, EntryKind.TICK) for number in range(5, 9)))
    assert backup.payloads.unplaced.keys() == set(), "its time is over"


def test_a_data_server_that_becomes_a_witness_gives_up_also_what_was_not_durable_then() -> None:
    backup = Backup()
    config = own(3, EntryKind.CONFIG, WITNESS.encode())
    backup.hear(ONE, TWO)
    backup.hear(
        m.EpochStart(EPOCH, 1, (CLAIM, OPENED, config), 0), m.Commit(EPOCH, (CLAIM, OPENED, config), 3)
    )
    assert backup.replica.config.config_id == 2 and backup.payloads.unplaced.keys() == {ONE.mid, TWO.mid}
    backup.sync()
    assert follow(backup, (entry_of(ONE, 4), entry_of(TWO, 5), *marked(6))) == []
    assert follow(backup, marked(8)) == [6]
    assert backup.payloads.unplaced.keys() == set()
    assert [one for one in containers(backup.replica) if one.name == "DataServer._due" and one.size] == []
