"""What leaves a node: on which lane, together with what, what client managers hear first, and what waits."""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.cluster.topology import LANES, Role
from antiphon.ids import Mid
from antiphon.outlet import LATE_NS, LOOK_NS, SPARE_NS, Outlet
from antiphon.transport.interface import Peer
from antiphon.wire.lanes import Lane

US = 3
REPLICAS = (4, 5)
COMMIT = m.Commit(1, (), 7)
APPLIED = m.Applied(1, 7)
HEARTBEAT = m.Heartbeat(1, 2, 3, 4, 5, True)
SUBMIT = m.CommitSubmit(1, 7, (), 7, 1)
NACK = m.ReportNack(1, Mid(1, 1, 1), m.NackReason.NOT_OPEN, 0)
DELIVER = m.Deliver(1, 1, (), ())

Said = list[tuple[int | Lane, m.BusMessage]]


class Desk:
    """The outlet of a replica with two others and a few client managers, and a clock that stands still."""

    def __init__(self, *client_managers: int, witness: int = 0) -> None:
        peers = {node: Peer("", 0, LANES[Role.MESSAGE_MANAGER]) for node in (US, *REPLICAS)}
        peers |= {node: Peer("", 0, LANES[Role.CLIENT_MANAGER]) for node in client_managers}
        if witness:
            peers[witness] = Peer("", 0, LANES[Role.WITNESS])
        self.now_ns = 0
        self.is_spare = False
        self.packed: list[m.BusMessage] = []
        self.outlet = Outlet(self._pack, 1_000, node=US, peers=peers, is_spare=lambda _: self.is_spare)
        self.multicast = self.outlet.multicast
        self.send = self.outlet.send

    def _pack(self, message: m.BusMessage) -> m.BusMessage:
        self.packed.append(message)
        return message

    def end_step(self) -> Said:
        return self.outlet.flush(self.now_ns)

    def wait(self, ns: int) -> Said:
        self.now_ns += ns
        return self.outlet.tick(self.now_ns)


def data_of(number: int, size: int = 10) -> m.Data:
    return m.Data(Mid(1, 2, number), 4, 1, b"d" * 16, bytes([number]) * size)


# --- lanes and frames ----------------------------------------------------------------------------------


def test_each_message_takes_its_lane() -> None:
    outlet = Outlet(lambda message: message, 1_000)
    for message in (data_of(1), HEARTBEAT, DELIVER, COMMIT):
        outlet.multicast(message)
    outlet.send(3, SUBMIT)
    assert outlet.flush(0) == [
        (Lane.CONTROL, HEARTBEAT),
        (Lane.DELIVERIES, DELIVER),
        (Lane.CONTROL, COMMIT),
        (3, SUBMIT),
        (Lane.DATA, data_of(1)),
    ]
    assert outlet.late_at_ns is None, "a client manager sends nothing late"


def test_a_message_to_several_is_packed_once() -> None:
    desk = Desk(1, 2)
    desk.send(4, NACK)
    desk.send(5, NACK)
    desk.multicast(COMMIT)
    desk.end_step()
    desk.wait(LATE_NS)
    assert desk.packed == [NACK, COMMIT]


def test_envelopes_of_one_step_leave_in_one_frame_when_it_is_over() -> None:
    desk = Desk(1)
    envelopes = tuple(data_of(number, 100) for number in (1, 2, 3))
    for envelope in envelopes:
        desk.multicast(envelope)
    assert desk.end_step() == [(Lane.DATA, m.Envelopes(envelopes))]
    assert desk.end_step() == [], "what was sent is sent once"


def test_no_more_envelopes_are_gathered_than_travel_in_one_piece() -> None:
    desk = Desk(1)
    envelopes = [data_of(n, size) for n, size in enumerate([300, 300, 100, 2_000, 10, 10], start=1)]
    for envelope in envelopes:
        desk.multicast(envelope)
    (_, first), (_, large), (_, rest) = desk.end_step()
    assert isinstance(first, m.Envelopes) and isinstance(rest, m.Envelopes)
    assert [*first.items, large, *rest.items] == envelopes


# --- what may be late ----------------------------------------------------------------------------------


def test_client_managers_hear_at_once_and_replicas_before_the_next_word_to_one_of_them() -> None:
    desk = Desk(1, 2)
    desk.multicast(COMMIT)
    desk.multicast(APPLIED)
    assert desk.end_step() == [(Lane.DELIVERIES, COMMIT), (Lane.DELIVERIES, APPLIED)]
    desk.send(1, HEARTBEAT)
    assert desk.end_step() == [(1, HEARTBEAT)]
    desk.send(4, NACK)
    assert desk.end_step() == [(Lane.DATA, COMMIT), (Lane.DATA, APPLIED), (4, NACK)]
    desk.send(5, NACK)
    assert desk.end_step() == [(5, NACK)]


def test_nothing_that_is_sent_to_all_comes_before_it() -> None:
    desk = Desk(1, 2)
    desk.multicast(COMMIT)
    desk.multicast(HEARTBEAT)
    assert desk.end_step() == [(Lane.DELIVERIES, COMMIT), (Lane.DATA, COMMIT), (Lane.CONTROL, HEARTBEAT)]


def test_when_nothing_else_is_sent_replicas_hear_it_a_little_later() -> None:
    desk = Desk(1, 2)
    desk.multicast(COMMIT)
    desk.end_step()
    assert desk.outlet.late_at_ns == LATE_NS
    desk.now_ns += 1
    desk.multicast(APPLIED)
    desk.end_step()
    assert desk.outlet.late_at_ns == LATE_NS, "the first one must not wait longer"
    assert desk.wait(LATE_NS - 2) == []
    assert desk.wait(1) == [(Lane.DATA, COMMIT), (Lane.DATA, APPLIED)]
    assert desk.outlet.late_at_ns is None
    desk.multicast(COMMIT)
    desk.multicast(HEARTBEAT)
    desk.end_step()
    assert desk.outlet.late_at_ns is None
    assert desk.wait(LATE_NS) == []


def test_what_is_submitted_to_all_replicas_is_sent_once_at_the_end_of_the_step() -> None:
    desk = Desk(1)
    desk.multicast(COMMIT)
    desk.send(4, SUBMIT)
    desk.send(5, SUBMIT)
    assert desk.end_step() == [(1, COMMIT), (Lane.DATA, COMMIT), (Lane.DATA, SUBMIT)]
    assert desk.end_step() == []


def test_what_is_submitted_to_some_is_sent_to_them() -> None:
    desk = Desk(1)
    other = m.CommitSubmit(1, 3, (), 3, 1)
    desk.send(5, SUBMIT)
    desk.send(4, other)
    assert desk.end_step() == [(5, SUBMIT), (4, other)]


def test_a_witness_hears_no_envelopes_and_so_all_others_are_told_one_by_one() -> None:
    desk = Desk(1, witness=6)
    desk.multicast(COMMIT)
    assert desk.end_step() == [(1, COMMIT)]
    for to in (*REPLICAS, 6):
        desk.send(to, SUBMIT)
    said = [(4, COMMIT), (5, COMMIT), (6, COMMIT), (4, SUBMIT), (5, SUBMIT), (6, SUBMIT)]
    assert desk.end_step() == said


def test_without_client_managers_only_the_others_hear_it() -> None:
    desk = Desk()
    desk.multicast(COMMIT)
    assert desk.end_step() == []
    desk.multicast(HEARTBEAT)
    assert desk.end_step() == [(Lane.DATA, COMMIT), (Lane.CONTROL, HEARTBEAT)]


# --- what arrives --------------------------------------------------------------------------------------


def test_a_replica_for_which_nobody_waits_leaves_what_arrives_lying_for_a_while() -> None:
    desk = Desk(1)
    desk.end_step()
    assert desk.outlet.gather_ns == 0
    desk.is_spare = True
    desk.end_step()
    assert desk.outlet.gather_ns == 0, "it looks now and then"
    desk.now_ns += LOOK_NS
    desk.end_step()
    assert desk.outlet.gather_ns == SPARE_NS
    desk.is_spare = False
    desk.now_ns += LOOK_NS
    desk.end_step()
    assert desk.outlet.gather_ns == 0
