"""One suite over all transports: frames arrive whole, on every lane, and many in one call."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.bus.codec import Header, decode, encode_parts
from antiphon.bus.messages import Data
from antiphon.ids import Mid
from antiphon.wire.lanes import Lane
from tests.integration.transports.stage import DEADLINE_SECONDS, KINDS, SIZES, SOCKETS, body, hall, run


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_all_sizes_arrive_whole(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            said = [body(number, size) for number, size in enumerate(SIZES)]
            for frame in said:
                members.members[1].send(2, [frame[:100], memoryview(frame)[100:]])
                members.members[3].multicast(Lane.DATA, [frame])
            await members.until(lambda: len(members.frames(2, 1)) == len(said))
            await members.until(lambda: len(members.frames(2, 3)) == len(said))
            await members.until(lambda: len(members.frames(1, 3)) == len(said))
            assert sorted(members.frames(2, 1)) == sorted(said)
            assert sorted(members.frames(2, 3)) == sorted(members.frames(1, 3)) == sorted(said)

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_the_messages_of_the_bus_pass_as_their_codec_writes_them(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            data = Data(Mid(1, 2, 3), ts=4, count=1, digest=b"d" * 16, payload=body(1, 100_000))
            one = members.settings[1]
            parts = encode_parts(data, "a", 7, one.node, one.run_id, b"disk id" + bytes(9))
            assert len(parts) > 1
            members.members[1].multicast(Lane.DATA, parts)
            await members.until(lambda: members.frames(2, 1))
            header, message = decode(members.frames(2, 1)[0])
            assert header == Header("a", 7, one.node, one.run_id, b"disk id" + bytes(9))
            assert message == data

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_to_all_reaches_all_others_on_every_lane(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            for lane in Lane:
                members.members[2].multicast(lane, [lane.name.encode()])
            members.members[2].flush()
            names = sorted(lane.name.encode() for lane in Lane)
            for node in (1, 3):
                await members.until(lambda node=node: len(members.frames(node, 2)) == 3)
                assert sorted(members.frames(node, 2)) == names
                assert {one.run_id for one in members.heard[node] if one.sender == 2} == {
                    members.settings[2].run_id
                }
            assert members.frames(2, 2) == []

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_what_came_together_is_delivered_in_one_call(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            for number in range(40):
                members.members[1].send(2, [b"%d" % number])
            await members.until(lambda: len(members.frames(2, 1)) == 40)
            assert max(members.calls[2]) == 40
            if kind != "memory":
                # They also travelled together.
                assert members.members[1].counters()[2].frames_sent >= 40
                assert members.members[1].counters()[2].datagrams_sent < 40

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_a_uvloop_serves_as_well(kind: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def story() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), hall(kind) as members:
            said = [body(number, size) for number, size in enumerate(SIZES)]
            for frame in said:
                members.members[1].multicast(Lane.CONTROL, [frame])
            await members.until(lambda: len(members.frames(3, 1)) == len(said))
            assert sorted(members.frames(3, 1)) == sorted(said)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
