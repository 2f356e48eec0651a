"""What the kernel grants, refuses, and has no room for."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from antiphon.transport.interface import Transport
from antiphon.transport.udp import UdpTransport
from antiphon.wire.lanes import Lane
from tests.integration.transports.stage import MIB, UDP, body, hall, run


@pytest.mark.parametrize("kind", ["udp"])
def test_the_window_is_what_the_kernel_granted(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with hall(kind, 2, receive_buffer_bytes=100_000) as members:
            assert members.members[1].window_bytes == 100_000
        async with hall(kind, 2, receive_buffer_bytes=1 << 30) as members:
            assert members.members[1].window_bytes < 1 << 30
            assert "net.core.rmem_max" in caplog.text

    run(story())


@pytest.mark.parametrize("kind", ["udp"])
def test_datagrams_for_which_the_kernel_had_no_room_are_counted(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2, receive_buffer_bytes=20_000) as members:
            place = members.settings[2].peers[2]
            for _ in range(50):
                members.members[2].multicast(Lane.DATA, [b"our own echo is no loss"])
                members.members[2].flush()
            assert members.members[2].counters()[2].socket_drops == 0
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mallory:
                for _ in range(200):
                    mallory.sendto(b"x" * 1_000, (place.host, place.port))
            assert members.members[2].counters()[2].socket_drops > 0

    run(story())


class Stubborn:
    """A socket that refuses to send for a while."""

    def __init__(self, sock: socket.socket, *errors: OSError) -> None:
        self._sock = sock
        self._errors = list(errors)

    def sendmsg(self, *words: Any) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return self._sock.sendmsg(*words)

    def close(self) -> None:
        self._sock.close()


def make_stubborn(member: Transport, *errors: OSError) -> UdpTransport:
    assert isinstance(member, UdpTransport)
    member._sender = Stubborn(member._sender, *errors)  # type: ignore[assignment]
    return member


@pytest.mark.parametrize("kind", UDP)
def test_what_the_kernel_has_no_room_for_is_sent_a_moment_later(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            one = make_stubborn(members.members[1], *[BlockingIOError()] * 5)
            one.multicast(Lane.DATA, [body(1, 200_000)])
            await members.until(lambda: members.frames(2, 1) == [body(1, 200_000)])
            assert one.counters()[1].dropped == 0
            assert members.members[2].counters()[1].repairs_asked == 0

    run(story())


@pytest.mark.parametrize("kind", ["udp"])
def test_where_datagrams_cannot_go_together_they_go_one_by_one(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            one = make_stubborn(members.members[1], OSError(errno.EINVAL, "no such offload"))
            one.multicast(Lane.DATA, [body(1, 200_000)])
            await members.until(lambda: members.frames(2, 1) == [body(1, 200_000)])
            assert one.counters()[1].dropped == 0
            assert not one._is_segmenting

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_what_the_kernel_refuses_is_counted_and_repaired(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            one = make_stubborn(members.members[1], OSError(errno.EMSGSIZE, "too long"))
            one.multicast(Lane.DATA, [b"refused"])
            await members.until(lambda: members.frames(2, 1) == [b"refused"])
            assert one.counters()[1].dropped == 1
            assert one.counters()[2].repairs_given == 1

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_what_waits_for_the_network_is_bounded(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2, queue_bytes_max=MIB) as members:
            one = make_stubborn(members.members[1], *[BlockingIOError()] * 100)
            for number in range(30):
                one.multicast(Lane.DATA, [body(number, 100_000)])
                one.flush()
            dropped = one.counters()[1].dropped
            assert 15 < dropped < 25
            await members.until(lambda: len(members.frames(2, 1)) == 30 - dropped)

    run(story())
