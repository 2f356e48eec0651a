"""The port between the channels of a node and its transport, with a transport that only notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from antiphon.bus import messages as m
from antiphon.bus.codec import VERSION, Header, decode, encode
from antiphon.bus.effects import Alarm, Effect, Multicast, Received, Reconfigured, Send
from antiphon.bus.group import GroupConfig
from antiphon.cluster.topology import LANES, Role
from antiphon.ids import Mid
from antiphon.node import InChannel
from antiphon.runtime.bus_port import BusPort, CarryOut
from antiphon.transport.interface import ArrivedFrame, Peer, Transport, TransportSettings
from antiphon.transport.memory import MemoryNetwork, MemoryTransport
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

CONFIG = GroupConfig.of("a", (1, 2, 3))
RUN = b"this run of ours"
OTHER_RUN = b"a run of another"
DISK = b"the disk of ours"
HEARTBEAT = m.Heartbeat(1, 2, 3, 4, 5, True)
DATA = m.Data(Mid(1, 2, 3), 4, 1, b"d" * 16, b"payload")
ACK = m.HeartbeatAck(1, 4)


class NotingTransport:
    def __init__(self) -> None:
        self.sent: list[tuple[int | Lane, Sequence[Buffer]]] = []
        self.periodic: list[int | Lane] = []
        self.flushes = 0
        self.flushed = asyncio.Event()
        self.whole_bytes = 1_000
        self.deliver: Any = None

    def send(self, to: int | Lane, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        self.sent.append((to, buffers))
        if is_periodic:
            self.periodic.append(to)

    multicast = send

    def flush(self) -> None:
        self.flushes += 1
        self.flushed.set()


class Desk:
    """A port, and whoever is on its two sides."""

    def __init__(self) -> None:
        self.transport = NotingTransport()
        self.taken: list[list[InChannel]] = []
        self.others: list[Effect] = []
        header = Header("a", 1, 1, RUN, DISK)
        self._more = asyncio.Event()
        self.port = BusPort(cast(Transport, self.transport), header, self._take, self.others.append)
        self.carry_out: CarryOut = self.port.carry_out

    def _take(self, events: list[InChannel]) -> None:
        self.taken.append(events)
        self._more.set()

    async def taken_more(self) -> None:
        self._more.clear()
        await self._more.wait()

    def arrive(self, *frames: bytes, sender: int = 2, run_id: bytes = OTHER_RUN) -> None:
        self.transport.deliver([ArrivedFrame(sender, run_id, memoryview(frame)) for frame in frames])


def said_by(sender: int, message: m.BusMessage, *, group: str = "a", run_id: bytes = OTHER_RUN) -> bytes:
    return encode(message, group, 1, sender, run_id, DISK)


def test_each_message_takes_its_lane() -> None:
    desk = Desk()
    deliver = m.Deliver(1, 1, (), ())
    for message in (DATA, HEARTBEAT, deliver):
        desk.carry_out(Multicast(message))
    desk.carry_out(Send(3, ACK))
    desk.port.flush()
    assert [to for to, _ in desk.transport.sent] == [Lane.CONTROL, Lane.DELIVERIES, 3, Lane.DATA]
    assert desk.transport.periodic == [Lane.CONTROL, 3]
    for (_, parts), message in zip(desk.transport.sent, (HEARTBEAT, deliver, ACK, DATA), strict=True):
        header, decoded = decode(b"".join(parts))
        assert decoded == message
        assert (header.group, header.sender, header.run_id, header.disk_id) == ("a", 1, RUN, DISK)


def test_a_message_to_several_is_encoded_once_and_payloads_are_not_copied() -> None:
    desk = Desk()
    desk.carry_out(Send(2, DATA))
    desk.carry_out(Send(3, DATA))
    desk.port.flush()
    (_, first), (_, second) = desk.transport.sent
    assert first is second
    assert any(part is DATA.payload for part in first)


def data_of(number: int, size: int) -> m.Data:
    return m.Data(Mid(1, 2, number), 4, 1, b"d" * 16, bytes([number]) * size)


def test_envelopes_that_came_together_are_told_together() -> None:
    desk = Desk()
    envelopes = m.Envelopes((data_of(1, 5), data_of(2, 0)))
    desk.arrive(said_by(2, envelopes))
    assert desk.taken == [[InChannel("a", Received(2, envelopes, DISK))]]


def test_what_is_not_for_the_network_goes_its_own_way() -> None:
    desk = Desk()
    alarm = Alarm("the disk is on fire")
    desk.carry_out(alarm)
    assert desk.others == [alarm] and desk.transport.sent == []


def test_what_came_in_one_wake_up_reaches_the_node_in_one_call() -> None:
    desk = Desk()
    desk.arrive(said_by(2, HEARTBEAT), said_by(2, ACK))
    desk.arrive(said_by(2, DATA))
    assert desk.taken == [
        [InChannel("a", Received(2, HEARTBEAT, DISK)), InChannel("a", Received(2, ACK, DISK))],
        [InChannel("a", Received(2, DATA, DISK))],
    ]


SUBMIT = m.CommitSubmit(1, 2, (), 2)
COMMIT = m.Commit(1, (), 2)
APPLIED = m.Applied(0, 2)


def taken_by(desk: Desk) -> list[list[m.BusMessage]]:
    return [[event.what.message for event in events] for events in desk.taken]


def test_what_came_late_with_a_submit_is_taken_with_the_next_frames() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.arrive(*[said_by(2, one) for one in (COMMIT, APPLIED, SUBMIT)])
        assert taken_by(desk) == [[SUBMIT]], "the disk comes first"
        desk.arrive(said_by(2, COMMIT), said_by(2, SUBMIT), said_by(2, ACK))
        assert taken_by(desk)[1:] == [[COMMIT, APPLIED, SUBMIT, ACK]]
        desk.arrive(said_by(2, APPLIED))
        assert taken_by(desk)[2:] == [[COMMIT, APPLIED]], "and without a submit at once"

    asyncio.run(scene())


def test_what_came_late_with_a_submit_does_not_wait_for_ever() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.arrive(said_by(2, COMMIT), said_by(2, SUBMIT))
        async with asyncio.timeout(30):
            while len(desk.taken) < 2:
                await desk.taken_more()
        assert taken_by(desk) == [[SUBMIT], [COMMIT]]

    asyncio.run(scene())


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no message at all, but rather long for something that means nothing",
        said_by(2, HEARTBEAT)[:-1],
        said_by(2, HEARTBEAT) + b"!",
        said_by(2, HEARTBEAT, group="b"),
        said_by(3, HEARTBEAT),
        said_by(2, HEARTBEAT, run_id=RUN),
        said_by(2, HEARTBEAT).replace(bytes([0x71, 0xA9, VERSION]), bytes([0x71, 0xA9, VERSION + 1])),
    ],
    ids=["nothing", "noise", "short", "long", "group", "sender", "run", "version"],
)
def test_a_frame_that_is_not_in_order_is_counted_and_the_others_are_taken(frame: bytes) -> None:
    desk = Desk()
    # Also when the member is well known.
    desk.arrive(said_by(2, ACK))
    desk.arrive(frame, said_by(2, HEARTBEAT))
    assert desk.taken[1:] == [[InChannel("a", Received(2, HEARTBEAT, DISK))]]
    assert desk.port.refused == 1
    desk.arrive(frame)
    assert len(desk.taken) == 2, "a wake-up that brought nothing is not told"


def test_after_a_change_of_the_configuration_headers_name_the_new_one() -> None:
    desk = Desk()
    desk.carry_out(Multicast(DATA))
    desk.carry_out(Reconfigured(replace(CONFIG, config_id=7)))
    desk.carry_out(Send(2, ACK))
    desk.port.flush()
    headers = [decode(b"".join(parts))[0] for _, parts in desk.transport.sent]
    assert [header.config_id for header in headers] == [1, 7] and desk.others == []


def test_what_leaves_late_leaves_by_a_timer() -> None:
    async def story() -> None:
        transport = NotingTransport()
        peers = {1: Peer("", 0, LANES[Role.MESSAGE_MANAGER]), 2: Peer("", 0, LANES[Role.MESSAGE_MANAGER])}
        port = BusPort(
            cast(Transport, transport),
            Header("a", 1, 1, RUN, DISK),
            lambda events: None,
            lambda effect: None,
            peers=peers,
        )
        for number in (1, 2):
            port.carry_out(Multicast(m.Applied(1, number)))
            port.flush()
            transport.flushed.clear()
            async with asyncio.timeout(10):
                await transport.flushed.wait()
            to, parts = transport.sent[-1]
            assert to is Lane.DATA and decode(b"".join(parts))[1] == m.Applied(1, number)
            assert transport.flushes == number

    asyncio.run(story())


def test_two_nodes_hear_each_other_through_a_transport() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        peers = {node: Peer("memory", node) for node in (1, 2)}
        heard: asyncio.Queue[list[InChannel]] = asyncio.Queue()
        ports: list[BusPort] = []
        for node, run_id in ((1, RUN), (2, OTHER_RUN)):
            settings = TransportSettings(node=node, cluster_id=b"c" * 16, run_id=run_id, peers=peers)
            transport = MemoryTransport(network, settings)
            await transport.start()
            header = Header("a", 1, node, run_id, DISK)
            ports.append(BusPort(transport, header, heard.put_nowait, lambda effect: None))
        ports[0].carry_out(Multicast(DATA))
        ports[0].flush()
        ports[1].carry_out(Send(1, ACK))
        ports[1].flush()
        async with asyncio.timeout(10):
            told = [await heard.get(), await heard.get()]
        assert told == [[InChannel("a", Received(1, DATA, DISK))], [InChannel("a", Received(2, ACK, DISK))]]

    asyncio.run(story())
