"""Steps of a member: what is applied, when, and what it asks for."""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Append,
    Apply,
    DataRecord,
    Learned,
    PrimaryChanged,
    Received,
    RoleEffect,
    Send,
    Synced,
    TakeCheckpoint,
)
from antiphon.bus.entries import OpenDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.member import Member
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.bus.prefix import Prefix
from antiphon.ids import Mid, make_epoch
from tests.unit.bus.stage import MemoryPayloads, data_of, entry_of

EPOCH = make_epoch(1, 1)


def own(number: int, kind: EntryKind, detail: bytes = b"") -> Entry:
    return Entry(number, 1, kind, Mid(1, EPOCH, number), 0, NO_DIGEST, detail)


OPENED = own(1, EntryKind.PRODUCER_OPEN, OpenDetail(7, b"a" * 16).encode())
ONE = data_of(Mid(7, 1, 1), commands=2)
TWO = data_of(Mid(7, 1, 2))


class Pew:
    """The member of node 2 with its data server."""

    def __init__(self, nodes: tuple[int, ...] = (1, 2, 3, 7)) -> None:
        self.config = GroupConfig.of("main", nodes)
        known, ledger = Prefix(), Ledger()
        self.payloads = MemoryPayloads()
        self.data_server = DataServer(
            self.config, 2, self.payloads, JournalCounter(), known, ledger, CommitLog()
        )
        self.checkpoints = CheckpointServer(self.config, 2)
        self.member = Member(self.config, 2, known, ledger, self.data_server, self.checkpoints, Chance(1))
        self.now_ns = 0

    def step(self, *messages: m.BusMessage) -> list[RoleEffect]:
        return self.member.step(self.now_ns, [Received(1, message) for message in messages])

    def commit(self, *entries: Entry) -> list[RoleEffect]:
        return self.step(m.Commit(EPOCH, entries, entries[-1].last))

    def store(self, data: m.Data, *, durable: bool = True) -> None:
        for effect in self.data_server.step(self.now_ns, [Received(7, data)]):
            if isinstance(effect, Append) and isinstance(effect.record, DataRecord):
                self.payloads.write(effect.record)
                if durable:
                    self.data_server.step(self.now_ns, [Synced(effect.index)])

    def wait(self) -> list[RoleEffect]:
        deadline = self.member.next_deadline_ns()
        assert deadline is not None
        self.now_ns = deadline
        return self.member.step(self.now_ns, [])


def applied(effects: list[RoleEffect]) -> list[int]:
    return [effect.entry.first for effect in effects if isinstance(effect, Apply)]


def test_committed_entries_are_applied_in_order_with_their_payload_and_place() -> None:
    pew = Pew()
    pew.store(ONE)
    effects = pew.commit(OPENED, entry_of(ONE, 2))
    assert applied(effects) == [1, 2]
    apply = effects[1]
    assert isinstance(apply, Apply)
    assert apply.payload == ONE.payload and apply.location == pew.payloads.location_of(2)
    assert pew.member.applied == 3


def test_an_entry_waits_until_its_payload_is_durable_here() -> None:
    pew = Pew()
    pew.store(TWO)
    pew.store(ONE, durable=False)
    effects = pew.commit(OPENED, entry_of(ONE, 2), entry_of(TWO, 4))
    assert applied(effects) == [1], "and nothing behind it is applied before it"
    pew.data_server.step(0, [Synced(2)])
    assert applied(pew.step()) == [2, 4]


def test_a_gap_in_the_order_holds_up_what_is_behind_it() -> None:
    pew = Pew()
    pew.store(ONE)
    assert applied(pew.commit(entry_of(ONE, 2))) == []
    assert applied(pew.commit(OPENED)) == [1, 2]


def test_commits_of_any_epoch_count_since_committed_is_a_stable_fact() -> None:
    pew = Pew()
    pew.store(ONE)
    pew.step(m.Commit(make_epoch(9, 3), (OPENED,), 1))
    assert applied(pew.step(m.Commit(EPOCH, (entry_of(ONE, 2),), 3))) == [2]


def test_what_is_heard_twice_is_applied_once() -> None:
    pew = Pew()
    pew.commit(OPENED)
    assert pew.commit(OPENED) == []


def test_a_gap_is_asked_for_after_a_while_and_less_and_less_often() -> None:
    pew = Pew()
    pew.step(m.Heartbeat(EPOCH, 5, 0, 1, 0, True))
    (ask,) = pew.wait()
    assert isinstance(ask, Send) and ask.message == m.FetchId(1, pew.config.fetch_entries_max)
    assert ask.to in pew.config.commit_servers
    first_wait = pew.now_ns
    pew.wait()
    second_wait = pew.now_ns - first_wait
    pew.wait()
    assert pew.now_ns - first_wait - second_wait > second_wait
    assert applied(pew.step(m.FetchIdReply((OPENED,), 1, 0))) == [1]


def test_a_gap_that_closes_by_itself_is_not_asked_for() -> None:
    pew = Pew()
    pew.step(m.Heartbeat(EPOCH, 1, 0, 1, 0, True))
    pew.commit(OPENED)
    assert pew.member.next_deadline_ns() is None


def test_a_missing_payload_is_asked_for_at_another_data_server() -> None:
    pew = Pew()
    pew.commit(OPENED, entry_of(ONE, 2))
    (ask,) = pew.wait()
    assert isinstance(ask, Send) and ask.to != 2
    assert ask.message == m.FetchData((ONE.mid,), (2,))


def test_the_delays_are_the_same_in_every_replay() -> None:
    def deadlines() -> list[int]:
        pew = Pew()
        pew.step(m.Heartbeat(EPOCH, 5, 0, 1, 0, True))
        found = []
        for _ in range(5):
            pew.wait()
            found.append(pew.now_ns)
        return found

    assert deadlines() == deadlines()


def test_a_claim_changes_the_primary_when_it_is_applied() -> None:
    pew = Pew()
    effects = pew.commit(own(1, EntryKind.PRIMARY_CLAIM))
    assert effects[:2] == [
        Apply(own(1, EntryKind.PRIMARY_CLAIM), None, None),
        PrimaryChanged(EPOCH, 1),
    ]


def test_a_checkpoint_is_taken_right_behind_its_mark() -> None:
    pew = Pew()
    pew.store(ONE)
    mark, later = own(2, EntryKind.CHECKPOINT_MARK), own(3, EntryKind.TICK)
    effects = pew.commit(OPENED, mark, later)
    assert [effect for effect in effects if not isinstance(effect, Learned)] == [
        Apply(OPENED, None, None),
        Apply(mark, None, None),
        TakeCheckpoint(2),
        Apply(later, None, None),
    ]


def test_the_roles_of_the_node_learn_what_is_notable_and_what_could_not_be_applied() -> None:
    pew = Pew()
    pew.store(TWO)
    mark = own(4, EntryKind.CHECKPOINT_MARK)
    effects = pew.commit(OPENED, entry_of(ONE, 2), mark, entry_of(TWO, 5))
    (learned,) = (effect for effect in effects if isinstance(effect, Learned))
    assert learned.entries == (entry_of(ONE, 2), mark, entry_of(TWO, 5))
    assert learned.notable == (OPENED, mark)
    ((n, ledger),) = learned.marks
    assert n == 4 and Ledger.decode(ledger).rows[7].last_pseq == 1, "the ledger as it stood at the mark"


def test_a_commit_of_data_alone_that_is_applied_at_once_is_no_news_to_anybody() -> None:
    pew = Pew()
    pew.store(ONE)
    pew.commit(OPENED)
    (only,) = pew.commit(entry_of(ONE, 2))
    assert isinstance(only, Apply)
