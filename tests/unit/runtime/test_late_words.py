"""What client managers hear at once, and replicas with the next word that they get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from antiphon.bus import messages as m
from antiphon.bus.codec import decode
from antiphon.bus.effects import Multicast, Send
from antiphon.bus.group import GroupConfig
from antiphon.cluster.topology import LANES, Role
from antiphon.ids import Mid
from antiphon.runtime.bus_port import BusPort
from antiphon.runtime.late_words import LATE_SECONDS, LateWords
from antiphon.transport.interface import Peer, Transport
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

RUN = b"this run of ours"
DISK = b"the disk of ours"
US = 3
REPLICAS = (4, 5)
COMMIT = m.Commit(1, (), 7)
APPLIED = m.Applied(1, 7)
HEARTBEAT = m.Heartbeat(1, 2, 3, 4, 5, True)
SUBMIT = m.CommitSubmit(1, 7, (), 7, 1)
NACK = m.ReportNack(1, Mid(1, 1, 1), m.NackReason.NOT_OPEN, 0)

Said = list[tuple[int | Lane, m.BusMessage]]


class Desk:
    """The port of a replica with two others, a few client managers, and a clock that stands still."""

    def __init__(self, *client_managers: int, witness: int = 0) -> None:
        self.said: Said = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.flushes_itself = True
        self.flushes = 0
        self.whole_bytes = 1_000
        self.deliver: object = None
        peers = {node: Peer("", 0, LANES[Role.MESSAGE_MANAGER]) for node in (US, *REPLICAS)}
        peers |= {node: Peer("", 0, LANES[Role.CLIENT_MANAGER]) for node in client_managers}
        if witness:
            peers[witness] = Peer("", 0, LANES[Role.WITNESS])
        transport = cast(Transport, self)
        late = LateWords(transport, peers, US, lambda *timer: self.timers.append(timer))
        port = BusPort(transport, US, RUN, lambda events: None, late)
        config = GroupConfig.of("a", (US, *REPLICAS, *client_managers))
        self.carry_out = port.join(config, DISK, lambda effect: None)
        self.end_step = port.flush

    def send(self, to: int, buffers: Sequence[Buffer]) -> None:
        self.said.append((to, decode(b"".join(buffers))[1]))

    def multicast(self, lane: Lane, buffers: Sequence[Buffer]) -> None:
        self.said.append((lane, decode(b"".join(buffers))[1]))

    def flush(self) -> None:
        self.flushes += 1

    def take_said(self) -> Said:
        said, self.said = self.said, []
        return said


def test_client_managers_hear_at_once_and_replicas_before_the_next_word_to_one_of_them() -> None:
    desk = Desk(1, 2)
    desk.carry_out(Multicast(COMMIT))
    desk.carry_out(Multicast(APPLIED))
    assert desk.take_said() == [(Lane.DELIVERIES, COMMIT), (Lane.DELIVERIES, APPLIED)]
    desk.carry_out(Send(1, HEARTBEAT))
    assert desk.take_said() == [(1, HEARTBEAT)]
    desk.carry_out(Send(4, NACK))
    assert desk.take_said() == [(Lane.DATA, COMMIT), (Lane.DATA, APPLIED), (4, NACK)]
    desk.carry_out(Send(5, NACK))
    assert desk.take_said() == [(5, NACK)]


def test_nothing_that_is_said_to_all_comes_before_it() -> None:
    desk = Desk(1, 2)
    desk.carry_out(Multicast(COMMIT))
    desk.carry_out(Multicast(HEARTBEAT))
    assert desk.take_said() == [(Lane.DELIVERIES, COMMIT), (Lane.DATA, COMMIT), (Lane.CONTROL, HEARTBEAT)]


def test_when_nothing_else_is_said_replicas_hear_it_a_little_later() -> None:
    desk = Desk(1, 2)
    desk.carry_out(Multicast(COMMIT))
    desk.carry_out(Multicast(APPLIED))
    ((delay, strike),) = desk.timers
    assert delay == LATE_SECONDS
    desk.take_said()
    strike()
    assert desk.take_said() == [(Lane.DATA, COMMIT), (Lane.DATA, APPLIED)]
    assert desk.flushes == 1
    desk.carry_out(Multicast(COMMIT))
    assert len(desk.timers) == 2
    desk.carry_out(Multicast(HEARTBEAT))
    desk.take_said()
    desk.timers[1][1]()
    assert desk.take_said() == []
    assert desk.flushes == 1, "it was woken for nothing, and woke others"


def test_what_is_submitted_to_all_replicas_is_said_once_at_the_end_of_the_step() -> None:
    desk = Desk(1)
    desk.carry_out(Multicast(COMMIT))
    assert desk.take_said() == [(1, COMMIT)]
    desk.carry_out(Send(4, SUBMIT))
    desk.carry_out(Send(5, SUBMIT))
    assert desk.take_said() == []
    desk.end_step()
    assert desk.take_said() == [(Lane.DATA, COMMIT), (Lane.DATA, SUBMIT)]
    desk.end_step()
    assert desk.take_said() == []


def test_what_is_submitted_to_some_is_said_to_them() -> None:
    desk = Desk(1)
    other = m.CommitSubmit(1, 3, (), 3, 1)
    desk.carry_out(Send(5, SUBMIT))
    desk.carry_out(Send(4, other))
    desk.end_step()
    assert desk.take_said() == [(5, SUBMIT), (4, other)]


def test_a_witness_hears_no_envelopes_and_so_all_others_are_told_one_by_one() -> None:
    desk = Desk(1, witness=6)
    desk.carry_out(Multicast(COMMIT))
    desk.take_said()
    for to in (*REPLICAS, 6):
        desk.carry_out(Send(to, SUBMIT))
    desk.end_step()
    assert desk.take_said() == [(4, COMMIT), (5, COMMIT), (6, COMMIT), (4, SUBMIT), (5, SUBMIT), (6, SUBMIT)]


def test_a_lone_client_manager_is_told_together_with_what_is_for_it_alone() -> None:
    desk = Desk(1)
    desk.carry_out(Multicast(COMMIT))
    desk.carry_out(Send(1, HEARTBEAT))
    assert desk.take_said() == [(1, COMMIT), (1, HEARTBEAT)]


def test_without_client_managers_only_the_others_hear_it() -> None:
    desk = Desk()
    desk.carry_out(Multicast(COMMIT))
    assert desk.take_said() == []
    desk.carry_out(Multicast(HEARTBEAT))
    assert desk.take_said() == [(Lane.DATA, COMMIT), (Lane.CONTROL, HEARTBEAT)]
