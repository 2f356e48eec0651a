"""What a network does to datagrams, and what the members notice of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from antiphon.wire.lanes import Lane
from tests.integration.transports.stage import (
    DEADLINE_SECONDS,
    KINDS,
    MIB,
    SOCKETS,
    UDP,
    Hall,
    body,
    hall,
    run,
)


@pytest.mark.parametrize("kind", UDP)
def test_what_the_network_loses_is_repaired(kind: str) -> None:
    async def story() -> None:
        # What is missing is asked for as long as the test may take: a busy machine stands still for seconds.
        async with hall(kind, give_up_ms=1_000 * int(DEADLINE_SECONDS)) as members:
            members.rules("seed=5; drop=0.3 duplicate=0.3 reorder=0.3")
            said = [body(number, 1 + (number * 7_919) % 20_000) for number in range(60)] + [body(99, 3 * MIB)]
            for frame in said:
                members.members[1].multicast(Lane.DATA, [frame])
                members.members[1].flush()
                members.members[3].send(2, [frame])
            for receiver, sender in ((2, 1), (3, 1), (2, 3)):
                await members.until(
                    lambda receiver=receiver, sender=sender: (
                        len(members.frames(receiver, sender)) >= len(said)
                    )
                )
                assert Counter(members.frames(receiver, sender)) == Counter(said)
            counters = members.members[2].counters()
            assert counters[1].gave_up == counters[3].gave_up == 0
            assert counters[1].repairs_asked > 0
            assert counters[1].replays > 0
            assert members.members[3].counters()[2].repairs_given > 0

    run(story())


@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_where_nothing_is_repaired_what_arrives_is_whole(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("seed=5; drop=0.3 reorder=0.3")
            said = [body(number, 1 + (number * 7_919) % 20_000) for number in range(60)]
            for frame in said:
                members.members[1].send(2, [frame])
                members.members[1].flush()
            members.rules("")
            members.members[1].send(2, [b"the end"])
            await members.until(lambda: b"the end" in members.frames(2, 1))
            heard = Counter(members.frames(2, 1))
            assert not heard - Counter([*said, b"the end"])
            assert len(heard) > 1

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_what_is_given_up_is_counted_and_life_goes_on(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, give_up_ms=300) as members:
            members.rules("1>2 cut")
            for number in range(5):
                members.members[1].multicast(Lane.DATA, [b"lost %d" % number])
                members.members[1].flush()
            await members.until(lambda: len(members.frames(3, 1)) == 5)
            # Member 3 goes on talking, and time passes for member 1, until it keeps nothing any more.
            store = members.members[1]._link._streams[Lane.DATA].store  # type: ignore[attr-defined]
            while store:
                members.members[3].send(2, [b"tick"])
                ticks = len(members.frames(2, 3))
                await members.until(lambda ticks=ticks: len(members.frames(2, 3)) > ticks)
            members.rules("")
            members.members[1].multicast(Lane.DATA, [b"found"])
            await members.until(lambda: b"found" in members.frames(2, 1))
            while not members.members[2].counters()[1].gave_up:
                members.members[1].send(2, [b"tick"])
                ticks = len(members.frames(2, 1))
                await members.until(lambda ticks=ticks: len(members.frames(2, 1)) > ticks)
            assert members.members[2].counters()[1].gave_up == 5
            assert b"lost 0" not in members.frames(2, 1)

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_cuts_and_heals(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("1-2 cut")
            members.members[1].multicast(Lane.CONTROL, [b"during"])
            members.members[2].send(1, [b"during"])
            await members.until(lambda: members.frames(3, 1) == [b"during"])
            members.members[3].send(2, [b"after that"])
            await members.until(lambda: members.frames(2, 3) == [b"after that"])
            assert members.frames(2, 1) == members.frames(1, 2) == []
            members.rules("")
            members.members[1].send(2, [b"healed"])
            members.members[2].send(1, [b"healed"])
            await members.until(lambda: b"healed" in members.frames(2, 1))
            await members.until(lambda: b"healed" in members.frames(1, 2))
            if kind in UDP:
                await members.until(lambda: b"during" in members.frames(2, 1))
                await members.until(lambda: b"during" in members.frames(1, 2))

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_can_be_cut_one_way(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("1>2 cut")
            members.members[1].send(2, [b"not heard"])
            members.members[2].send(1, [b"heard"])
            await members.until(lambda: members.frames(1, 2) == [b"heard"])
            assert members.frames(2, 1) == []

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_the_fault_file_is_obeyed_while_a_member_runs(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "faults"

    async def story() -> None:
        opened = Hall(kind, 2)
        try:
            await opened.start(1)
            await opened.start(2, fault_file=path)
            await opened.acquainted()
            path.write_text("1>2 cut")
            while not opened.layers[2].rules.rules:  # noqa: ASYNC110
                await asyncio.sleep(0)
            opened.members[1].send(2, [b"cut"])
            opened.members[2].send(1, [b"barrier"])
            await opened.until(lambda: opened.frames(1, 2) == [b"barrier"])
            assert opened.frames(2, 1) == []
            path.unlink()
            while opened.layers[2].rules.rules:  # noqa: ASYNC110
                await asyncio.sleep(0)
            opened.members[1].send(2, [b"healed"])
            await opened.until(lambda: b"healed" in opened.frames(2, 1))
        finally:
            await opened.close()

    run(story())
