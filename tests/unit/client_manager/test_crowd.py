"""A crowd: clients that are confirmed together share their next envelope, if they come in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.client_manager.envelopes import Gatherer
from antiphon.client_manager.session import Ordered, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.wire.commands import CommandKind

PUBLISH = int(CommandKind.PUBLISH)
MS = 1_000_000
SIZE = 100


class Clients:
    """Clients that each send one command at a time."""

    def __init__(self) -> None:
        self.gatherer = Gatherer("a", ClientManagerSettings(turn_bytes=100 * SIZE))
        self.now_ns = 1_000 * MS
        self._number = 0

    def send(self, commands: int, *, after_ms: float = 0, size: int = SIZE) -> list[SubmitEnvelope]:
        self.now_ns += int(after_ms * MS)
        for _ in range(commands):
            self._number += 1
            ordered = Ordered(SessionLane("a", None), PUBLISH, self._number, 1, size)
            self.gatherer.put(ordered, bytes(size))
        return self.gatherer.gather(self.now_ns)

    def confirm(self, envelope: SubmitEnvelope, *, after_ms: float = 0) -> list[SubmitEnvelope]:
        self.now_ns += int(after_ms * MS)
        self.gatherer.confirmed(envelope.tag)
        return self.gatherer.gather(self.now_ns) if self.gatherer.has_waiting else []


def counts(envelopes: list[SubmitEnvelope]) -> list[int]:
    return [envelope.count for envelope in envelopes]


def test_a_crowd_comes_back_as_one_envelope() -> None:
    clients = Clients()
    (first,) = clients.send(8)
    assert clients.confirm(first, after_ms=2) == []
    assert clients.send(3) == []
    assert clients.gatherer.waits_until_ns == clients.now_ns + 2 * MS, "as long as the envelope before took"
    assert clients.send(4, after_ms=1) == []
    assert counts(clients.send(1, after_ms=0.5)) == [8]
    assert clients.gatherer.waits_until_ns is None


def test_groups_of_a_crowd_become_one() -> None:
    clients = Clients()
    (one,) = clients.send(5)
    (other,) = clients.send(5)
    assert clients.confirm(one, after_ms=2) == []
    assert clients.send(5) == [], "the other group is under way"
    assert clients.confirm(other) == []
    assert counts(clients.send(5, after_ms=0.1)) == [10]


def test_few_clients_never_wait_for_each_other() -> None:
    clients = Clients()
    (one,) = clients.send(3)
    clients.confirm(one, after_ms=2)
    assert counts(clients.send(1)) == [1]
    assert counts(clients.send(1)) == [1]


def test_nobody_waits_longer_than_the_envelope_before_took() -> None:
    clients = Clients()
    (first,) = clients.send(8)
    clients.confirm(first, after_ms=2)
    assert clients.send(5) == []
    assert clients.send(0, after_ms=1.9) == []
    assert counts(clients.send(0, after_ms=0.1)) == [5]


def test_nobody_waits_longer_than_the_limit() -> None:
    clients = Clients()
    (first,) = clients.send(8)
    clients.confirm(first, after_ms=50)
    assert clients.send(5) == []
    assert counts(clients.send(0, after_ms=5)) == [5]


def test_after_each_wait_in_vain_more_envelopes_do_not_wait() -> None:
    clients = Clients()
    (envelope,) = clients.send(8)
    waits = []
    for turn in range(64):
        clients.confirm(envelope, after_ms=2)
        left = clients.send(8 if turn % 2 else 4)
        waits.append(not left)
        (envelope,) = left or clients.send(0, after_ms=2)
    assert [turn for turn, waited in enumerate(waits) if waited] == [0, 2, 6, 12, 22, 40]


def test_a_crowd_that_comes_again_is_waited_for_again() -> None:
    clients = Clients()
    (envelope,) = clients.send(8)
    clients.confirm(envelope, after_ms=2)
    clients.send(7)
    (envelope,) = clients.send(0, after_ms=2)
    clients.confirm(envelope, after_ms=2)
    (envelope,) = clients.send(8)
    for _ in range(5):
        clients.confirm(envelope, after_ms=2)
        assert clients.send(3) == []
        (envelope,) = clients.send(5)
        assert envelope.count == 8


def test_a_crowd_that_has_gone_is_not_waited_for() -> None:
    clients = Clients()
    (first,) = clients.send(8)
    clients.confirm(first, after_ms=2)
    assert counts(clients.send(1, after_ms=1_000)) == [1]


def test_much_does_not_wait_and_does_not_hold_up_a_crowd() -> None:
    clients = Clients()
    (first,) = clients.send(8)
    clients.confirm(first, after_ms=2)
    assert counts(clients.send(1, size=100 * SIZE)) == [1]
    assert clients.send(1) == []
    assert counts(clients.send(7)) == [8], "a large envelope that is under way does not count"


def test_commands_that_cannot_leave_ask_for_no_time() -> None:
    clients = Clients()
    (first,) = clients.send(8)
    clients.confirm(first, after_ms=2)
    assert clients.send(3) == []
    clients.gatherer.set_blocked(is_blocked=True)
    assert clients.send(0, after_ms=5) == []
    assert clients.gatherer.waits_until_ns is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 12)),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("confirm"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(0, 200)),
    ),
    max_size=60,
)


@given(STEPS)
def test_commands_wait_only_for_an_envelope_or_for_a_bounded_time(steps: list[tuple[str, int]]) -> None:
    clients = Clients()
    gatherer = clients.gatherer
    under_way: list[SubmitEnvelope] = []
    committed: list[SubmitEnvelope] = []
    for word, value in steps:
        if word == "send":
            under_way += clients.send(value)
        elif word == "commit" and under_way:
            envelope = under_way.pop(value % len(under_way))
            gatherer.committed(envelope.tag)
            committed.append(envelope)
        elif word == "confirm" and committed:
            under_way += clients.confirm(committed.pop(value % len(committed)))
        elif word == "wait":
            under_way += clients.send(0, after_ms=value / 20)
        if gatherer.has_waiting:
            under_way += gatherer.gather(clients.now_ns)
        if gatherer.has_waiting and not under_way:
            until_ns = gatherer.waits_until_ns
            assert until_ns is not None and clients.now_ns < until_ns <= clients.now_ns + 5 * MS
