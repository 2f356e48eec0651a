"""Real processes whose wall clock is wrong for a while; their own clocks go on.

libfaketime stands between Python and the wall clock, and reads from a file how wrong that is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import antiphon
from antiphon.client.aio.ranges import RangeDestination, Ranges
from tests.bus_members import has_multicast
from tests.client_scenes import numbered, reading, run
from tests.cluster_processes import ClusterProcess
from tests.processes import Server
from tests.system_packages import require_package

HOUR_MS = 3_600_000
DAY_SECONDS = 86_400
LIBRARIES = ("libfaketime.so.1", "libfaketimeMT.so.1")
LOOK_SECONDS = 0.05


class WallClock:
    """The wall clock of processes that are started while this is in force."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        require_package("faketime", "faketime")
        found = [path for name in LIBRARIES for path in Path("/usr/lib").glob(f"*/faketime/{name}")]
        if not found:
            pytest.skip("faketime is installed, and its library is nowhere below /usr/lib")
        self._file = folder / "wall-clock"
        self.be_wrong_by(0)
        patch.setenv("LD_PRELOAD", str(found[0]))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(self._file))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        # One of them is for older versions.
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        patch.setenv("DONT_FAKE_MONOTONIC", "1")

    def be_wrong_by(self, days: int) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(f"{days:+d}d\n")
        os.replace(written, self._file)


@pytest.fixture
def wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(tmp_path, monkeypatch)


class Scene:
    """A topic that keeps ten messages for a day, one that keeps its messages for a second, and a hold."""

    def __init__(self, connection: antiphon.Connection, session: antiphon.Session, ranges: Ranges) -> None:
        self._connection, self._session, self._ranges = connection, session, ranges
        self._traffic = session.producer("queue:traffic")
        self._day: tuple[RangeDestination, ...] = ()
        self._moment: tuple[RangeDestination, ...] = ()

    async def begin(self) -> None:
        admin = self._connection.admin()
        await admin.create("topic:day", retention=DAY_SECONDS)
        await admin.create("topic:moment", retention=1)
        self._day = await self._ranges.destinations(["topic:day"])
        self._moment = await self._ranges.destinations(["topic:moment"])
        await self._ranges.hold("archive", {"a": 1}, self._day, limit=DAY_SECONDS)
        await self._session.producer("topic:day").send_many(numbered(10))
        await self.marks(2)

    async def log_time_ms(self) -> int:
        return (await self._ranges.heads(self._day))["a"].log_time_ms

    async def _look_later(self) -> None:
        # There is no news: it is the wait between two looks.
        await self._ranges.heads(self._day, {"a": 1 << 40}, wait=LOOK_SECONDS)

    async def marks(self, count: int) -> int:
        """Messages are ordered until time was told so often; what time it is then."""
        told_ms = await self.log_time_ms()
        while count:
            await self._traffic.send(b"traffic")
            await self._look_later()
            now_ms = await self.log_time_ms()
            count -= now_ms > told_ms
            told_ms = now_ms
        return told_ms

    async def is_whole(self) -> bool:
        """Is everything there that is to stay?"""
        rows = (await self._ranges.heads(self._day))["a"].rows
        return rows == 10 and [hold.name for hold in await self._ranges.holds()] == ["archive"]

    async def let_a_moment_go(self) -> None:
        """What is kept for a second goes."""
        await self._session.producer("topic:moment").send(b"gone soon")
        while (await self._ranges.heads(self._moment))["a"].rows:
            await self._look_later()

    async def difference_ms(self) -> int:
        """How far log time is ahead of the primary's wall clock."""
        (row,) = (await self._connection.admin().status())["channels"]
        ahead_ms: int = row["clock_difference_ms"]
        return ahead_ms


def test_a_wall_clock_that_is_wrong_for_a_second_lets_nothing_go_and_stops_nothing(
    tmp_path: Path, wall_clock: WallClock
) -> None:
    async def test() -> None:
        async with reading(server.url) as (connection, session, ranges):
            scene = Scene(connection, session, ranges)
            await scene.begin()
            began_ms, began_s = await scene.log_time_ms(), time.monotonic()
            assert abs(began_ms - time.time() * 1_000) < 60_000 and abs(await scene.difference_ms()) < 60_000

            wall_clock.be_wrong_by(400)
            wrong_ms = await scene.marks(3)
            assert await scene.is_whole()
            assert await scene.difference_ms() < -399 * DAY_SECONDS * 1_000
            wall_clock.be_wrong_by(0)
            right_ms = await scene.marks(3)
            assert await scene.is_whole() and abs(await scene.difference_ms()) < 60_000
            wall_clock.be_wrong_by(-400)
            await scene.marks(2)
            assert await scene.difference_ms() > 399 * DAY_SECONDS * 1_000
            # What has a limit goes on to end while the wall clock is behind.
            await scene.let_a_moment_go()
            assert await scene.is_whole()

            passed_ms = (time.monotonic() - began_s) * 1_000
            assert began_ms < wrong_ms < right_ms
            assert await scene.log_time_ms() - began_ms <= 1.1 * passed_ms + 2_000

    with Server(tmp_path / "data") as server:
        run(test())
        words = server.errors.read_text()
    assert words.count("ahead of log time, which does not follow it") == 1
    assert words.count("behind log time, which goes on without it") == 1


@pytest.mark.skipif(not has_multicast(), reason="this machine carries no multicast on its loopback")
@pytest.mark.timeout(300)
def test_a_new_primary_whose_wall_clock_is_wrong_makes_up_sixty_times_what_has_passed_at_most(
    tmp_path: Path, wall_clock: WallClock
) -> None:
    async def test(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        async with reading(cluster.url) as (connection, session, ranges):
            scene = Scene(connection, session, ranges)
            await scene.begin()
            began_ms, began_s = await scene.log_time_ms(), time.monotonic()
            wall_clock.be_wrong_by(400)
            old = await cluster.primary()
            cluster.kill(old)
            await cluster.another_primary(old)
            await scene.marks(2)
            assert await scene.is_whole()
            wall_clock.be_wrong_by(0)
            moved_ms = await scene.log_time_ms() - began_ms
            passed_ms = (time.monotonic() - began_s) * 1_000
            # The last mark that the old primary made may have been a second old.
            assert passed_ms < HOUR_MS / 60 and moved_ms <= 60 * (passed_ms + 2_000)
            # From now on log time is ahead, and goes on all the same.
            await scene.marks(2)
            assert await scene.difference_ms() > 0
            await scene.let_a_moment_go()
            assert await scene.is_whole()
        await cluster.restart(old)
        await cluster.synchronized()
        await cluster.equal()

    with ClusterProcess(tmp_path, client_managers=1, message_managers=3, has_faults=False) as cluster:
        run(test(cluster), 240)
