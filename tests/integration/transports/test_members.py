"""Members come, go, come back in another run, or do not read what they are told."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from antiphon.errors import NodeError
from antiphon.transport.tcp import TcpTransport
from antiphon.transport.udp import UdpTransport
from antiphon.wire.lanes import Lane
from tests.integration.transports.stage import KINDS, MIB, SOCKETS, Hall, body, hall, run


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_comes_back_in_a_new_run(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            former = members.settings[2].run_id
            await members.restart(2)
            await members.acquainted()
            members.members[1].send(2, [b"welcome back"])
            members.members[2].multicast(Lane.DATA, [b"here I am"])
            await members.until(lambda: members.frames(2, 1) == [b"welcome back"])
            for node in (1, 3):
                await members.until(lambda node=node: members.frames(node, 2) == [b"here I am"])
                runs = {one.run_id for one in members.heard[node] if one.frame == b"here I am"}
                assert runs == {members.settings[2].run_id} != {former}

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_not_there_holds_up_nobody(kind: str) -> None:
    async def story() -> None:
        opened = Hall(kind, 3)
        try:
            await opened.start(1)
            await opened.start(2)
            await opened.acquainted()
            for number in range(100):
                opened.members[1].multicast(Lane.DATA, [b"%d" % number])
                opened.members[1].send(3, [b"to nobody"])
            await opened.until(lambda: len(opened.frames(2, 1)) == 100)
            await opened.start(3)
            await opened.acquainted()
            opened.members[1].multicast(Lane.DATA, [b"for the late one, too"])
            await opened.until(lambda: b"for the late one, too" in opened.frames(3, 1))
        finally:
            await opened.close()

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_a_place_that_is_taken_is_said_to_be(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            cls = TcpTransport if kind == "tcp" else UdpTransport
            with pytest.raises(NodeError, match="cannot listen"):
                await cls(replace(members.settings[1], run_id=os.urandom(16))).start()

    run(story())


def test_a_tcp_connection_that_breaks_is_made_again() -> None:
    async def story() -> None:
        async with hall("tcp", 2) as members:
            one = members.members[1]
            assert isinstance(one, TcpTransport)
            one._bound[2].transport.abort()
            await members.acquainted()
            members.members[1].send(2, [b"there"])
            members.members[2].send(1, [b"and back"])
            await members.until(lambda: members.frames(2, 1) and members.frames(1, 2))

    run(story())


def test_a_tcp_member_that_does_not_read_loses_what_is_too_much() -> None:
    async def story() -> None:
        async with hall("tcp", queue_bytes_max=MIB) as members:
            two = members.members[2]
            assert isinstance(two, TcpTransport)
            two._bound[1].transport.pause_reading()
            before = members.members[1].counters()[3].dropped
            for number in range(40):
                members.members[1].multicast(Lane.DATA, [body(number, MIB)])
                members.members[1].flush()
                await members.until(lambda number=number: len(members.frames(3, 1)) == number + 1)
            assert members.members[1].counters()[2].dropped > 0
            assert members.members[1].counters()[3].dropped == before
            two._bound[1].transport.resume_reading()
            while b"at last" not in members.frames(2, 1):
                members.members[1].send(2, [b"at last"])
                heard = len(members.heard[2]) + len(members.heard[3])
                members.members[1].send(3, [b"tick"])
                await members.until(lambda heard=heard: len(members.heard[2]) + len(members.heard[3]) > heard)

    run(story())
