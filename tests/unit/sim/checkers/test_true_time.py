"""The checkers of time see what they are there to see, in histories with one thing wrong."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus.messages import Entry
from antiphon.message_manager.state.destinations import topic
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import NOBODY, Session
from antiphon.sim.checkers.attachments import Attachments, Expiries
from antiphon.sim.checkers.model import Topics
from antiphon.sim.checkers.true_time import FASTEST, Lifetimes, LogTimePace
from antiphon.sim.image import Image
from antiphon.sim.world import MILLISECOND_NS, ClockSteps, NodeClock, Violation, World
from antiphon.wire.commands import LogTime
from tests.unit.message_manager.channel import SESSION, Channel, Client, of_node

NODE = 1
TERM = 5
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
EXPIRY_MS = 100


# -- how fast log time goes -------------------------------------------------------------------------


class Telling:
    """A primary that tells the time, whose clocks are right unless somebody says otherwise."""

    def __init__(self) -> None:
        self.world = World(1)
        self.checker = LogTimePace(self.world, interval_ms=50)
        self.checker.on_started(NODE, Image(), 0)
        self.told_ms = START_MS

    def pass_ms(self, ms: int) -> None:
        self.world.now_ns += ms * MILLISECOND_NS

    def apply(self, time_ms: int, node: int = NODE, number: int = 1) -> None:
        channel = Channel()
        channel.manager.state.log_time_ms = time_ms
        self.checker.on_folded(node, channel.log[-1][0]._replace(first=number), channel.manager.state)

    def tell(self, time_ms: int, wall_ms: int | None = None, term: int = TERM) -> None:
        wall_ms = START_MS + self.world.now_ns // MILLISECOND_NS if wall_ms is None else wall_ms
        self.checker.on_proposed(
            NODE, self.world.now_ns, wall_ms, of_node(LogTime(time_ms=time_ms, term=term))
        )


def test_a_time_that_goes_on_with_the_world_passes() -> None:
    telling = Telling()
    for ms in range(0, 500, 50):
        telling.tell(START_MS + ms)
        telling.pass_ms(50)


def test_a_step_of_the_wall_clock_that_is_followed_is_seen() -> None:
    telling = Telling()
    telling.tell(START_MS)
    telling.pass_ms(50)
    with pytest.raises(Violation, match="I27 log time: node 1 moves log time by 86400000 ms, where 64 ms"):
        telling.tell(START_MS + DAY_MS, START_MS + DAY_MS)


def test_a_time_that_stands_still_is_seen() -> None:
    telling = Telling()
    telling.tell(START_MS)
    telling.pass_ms(50)
    with pytest.raises(Violation, match="by 1 ms, less than its own clock shows"):
        telling.tell(START_MS + 1, START_MS - DAY_MS)


@pytest.mark.parametrize(("step_ms", "is_fine"), [(int(FASTEST * 50), True), (int(FASTEST * 50) + 10, False)])
def test_a_new_term_makes_up_what_it_missed_sixty_times_as_fast_and_no_faster(
    step_ms: int, is_fine: bool
) -> None:
    telling = Telling()
    telling.apply(START_MS)
    telling.pass_ms(50)
    if is_fine:
        telling.tell(START_MS + step_ms, START_MS + DAY_MS)
        telling.pass_ms(50)
        telling.tell(START_MS + 2 * step_ms, START_MS + DAY_MS)
    else:
        with pytest.raises(Violation, match="moves log time by"):
            telling.tell(START_MS + step_ms, START_MS + DAY_MS)


def test_a_first_mark_behind_what_was_applied_is_seen() -> None:
    telling = Telling()
    telling.apply(START_MS)
    with pytest.raises(Violation, match="go back"):
        telling.tell(START_MS - 1)


def test_the_time_since_a_checkpoint_was_taken_over_counts() -> None:
    telling = Telling()
    telling.apply(START_MS)
    telling.pass_ms(50)
    telling.apply(START_MS + 50, node=NODE + 1, number=7)
    telling.checker.on_restored(NODE, 7)
    telling.pass_ms(100)
    telling.apply(START_MS + 50, number=8)
    telling.tell(START_MS + 150)


def test_a_step_after_a_checkpoint_was_taken_over_is_seen() -> None:
    telling = Telling()
    telling.apply(START_MS)
    telling.pass_ms(50)
    telling.apply(START_MS + 50, node=NODE + 1, number=7)
    telling.checker.on_restored(NODE, 7)
    with pytest.raises(Violation, match="by 100 ms, where 4 ms"):
        telling.tell(START_MS + 150)


def test_a_mark_that_a_checkpoint_brings_once_more_is_no_younger() -> None:
    telling = Telling()
    telling.apply(START_MS)
    telling.apply(START_MS, node=NODE + 1, number=7)
    telling.pass_ms(100)
    telling.checker.on_restored(NODE, 7)
    telling.tell(START_MS + 100)


# -- topics, holds and parts ----------------------------------------------------------------------------


class Log:
    """A channel whose every entry is shown."""

    def __init__(self, settings: str = '{"retention":60}') -> None:
        self.world = World(1)
        self.topics = Topics(self.world)
        self.checker = Lifetimes(self.world, self.topics)
        self.channel, self.client = Channel(), Client()
        self._shown = 0
        self.show()
        self.channel.order(self.client.open())
        self.show()
        self.id = self.channel.create_topic("t", settings)
        self.show()

    @property
    def topic(self) -> Topic:
        found = self.channel.manager.state.directory.get(self.id)
        assert isinstance(found, Topic)
        return found

    def show(self) -> None:
        for entry, payload in self.channel.log[self._shown :]:
            view = None if payload is None else memoryview(payload)
            for checker in (self.topics, self.checker):
                checker.on_applied(NODE, entry, view)
            self.checker.on_folded(NODE, entry, self.channel.manager.state)
        self._shown = len(self.channel.log)

    def publish(self, *bodies: bytes) -> int:
        number = self.channel.order(self.client.publish(self.id, list(bodies)))
        self.show()
        return number

    def pass_ms(self, ms: int, *, true_ms: int | None = None) -> None:
        """Log time goes on; and so does the world, as fast unless it is told otherwise."""
        self.world.now_ns += (ms if true_ms is None else true_ms) * MILLISECOND_NS
        self.channel.pass_time(ms)
        self.show()


def test_a_topic_that_keeps_what_it_must_and_no_more_passes() -> None:
    log = Log()
    log.publish(b"a")
    log.pass_ms(1_000)
    log.publish(b"b")
    log.pass_ms(59_999)
    log.pass_ms(1)
    assert log.topic.live.count == 1
    log.pass_ms(60_000)
    assert log.topic.live.count == 0
    assert log.world.probes["time.message_went_by_age"] == 2


def test_a_message_that_goes_a_moment_too_early_is_seen() -> None:
    log = Log()
    log.publish(b"a")
    log.pass_ms(1_000)
    log.topic._move_horizon(log.topic.last)
    with pytest.raises(Violation, match=r"I28 lifetime: \d+ of topic:t is gone, 59999 ms old"):
        log.pass_ms(59_999)


def test_a_message_that_goes_before_its_age_was_told_is_seen() -> None:
    log = Log()
    number = log.publish(b"a")
    log.topic._move_horizon(number)
    with pytest.raises(Violation, match="is gone"):
        log.channel.create("q")
        log.show()


def test_what_goes_by_a_log_time_that_ran_ahead_of_the_world_is_seen() -> None:
    log = Log()
    log.publish(b"a")
    log.pass_ms(1_000)
    with pytest.raises(Violation, match=r"is gone after 100.0 ms; its limit is 60000 ms"):
        log.pass_ms(60_000, true_ms=100 - 1_000)


def test_what_is_kept_too_long_is_seen() -> None:
    log = Log('{"retention":600}')
    log.publish(b"a")
    log.pass_ms(1_000)
    for _ in range(2):
        log.pass_ms(65_000)
    log.topic.retention = log.topic.retention._replace(age_ms=60_000)
    log.channel.create("q")
    with pytest.raises(Violation, match="is kept, 130000 ms old"):
        log.show()
    # A mark may have moved on by the longest step that there was.
    log.topic.retention = log.topic.retention._replace(age_ms=599_000)
    log.channel.create("r")
    log.show()


def test_one_message_too_many_by_bytes_is_seen() -> None:
    log = Log('{"retention_bytes":1000}')
    for _ in range(5):
        log.publish(bytes(300))
    assert log.topic.live.count == 2 and log.world.probes["time.message_went_by_bytes"] == 3
    log.topic._move_horizon(log.topic.live.first)
    with pytest.raises(Violation, match="is gone"):
        log.pass_ms(1)


def test_one_message_too_few_by_bytes_is_seen() -> None:
    log = Log('{"retention_bytes":1000}')
    log.topic.retention = log.topic.retention._replace(bytes=1_500)
    for _ in range(3):
        log.publish(bytes(300))
    log.topic.retention = log.topic.retention._replace(bytes=1_000)
    with pytest.raises(Violation, match="is kept"):
        log.pass_ms(1)


def test_a_topic_that_had_many_ranges_may_keep_a_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "RANGES_FEW", 1)
    log = Log('{"retention_bytes":9000}')
    log.channel.order(log.client.hold("archive", 1, log.id, limit_ms=10 * DAY_MS))
    log.show()
    first = log.publish(bytes(4_000))
    log.pass_ms(1)
    for _ in range(2):
        log.publish(bytes(4_000))
    assert log.topic.horizon == first and len(log.topic.live) == 2, "the hold keeps the first message"
    log.publish(bytes(9_050 - log.topic.fresh_bytes - (log.topic.fresh_bytes // 2 - 4_000)))
    assert 9_000 < log.topic.fresh_bytes < 9_100
    log.channel.order(log.client.release("archive"))
    log.show()
    assert len(log.topic.live) == 1 and log.topic.live.count == 3


def test_what_a_hold_or_a_subscription_needs_may_be_as_old_as_it_is() -> None:
    log = Log()
    log.channel.order(log.client.hold("archive", 1, log.id, limit_ms=10 * DAY_MS))
    log.show()
    log.publish(b"a")
    log.pass_ms(1_000)
    log.pass_ms(DAY_MS)
    assert log.topic.live.count == 1


@pytest.mark.parametrize("true_ms", [None, 10])
def test_a_hold_that_ends_before_its_limit_by_the_time_of_the_world_is_seen(true_ms: int | None) -> None:
    log = Log()
    log.channel.order(log.client.hold("archive", 1, log.id, limit_ms=60_000))
    log.show()
    log.pass_ms(1_000, true_ms=0)
    if true_ms is None:
        log.pass_ms(60_001)
        assert log.world.probes["time.hold_expired"] == 1
    else:
        with pytest.raises(Violation, match=r"hold archive is gone after 10.0 ms; its limit is 60000 ms"):
            log.pass_ms(60_001, true_ms=true_ms)


def test_a_hold_that_is_released_may_go_at_once() -> None:
    log = Log()
    log.channel.order(log.client.hold("archive", 1, log.id, limit_ms=60_000))
    log.show()
    log.channel.order(log.client.release("archive"))
    log.show()


def test_an_open_part_that_ends_before_its_time_is_seen() -> None:
    log = Log()
    log.channel.order(log.client.tx_publish(log.id, [b"a"]))
    log.show()
    log.pass_ms(1_000, true_ms=0)
    with pytest.raises(Violation, match=r"part 1 of .* is gone after 20.0 ms"):
        log.pass_ms(301_000, true_ms=20)


# -- sessions ---------------------------------------------------------------------------------------


class Sessions:
    """One session whose client is attached at node 7, and goes."""

    def __init__(self) -> None:
        self.world = World(1)
        self.attachments = Attachments(self.world)
        self.checker = Expiries(self.world, self.attachments, EXPIRY_MS)
        self.channel, self.client = Channel(), Client()
        self.order(self.client.open())
        self.attachments.on_attached(7, SESSION, 1)

    @property
    def row(self) -> Session:
        row = self.channel.manager.state.sessions.get(SESSION)
        assert row is not None
        return row

    def order(self, *commands: bytes, **more: Any) -> None:
        self.channel.order(*commands, **more)
        self.show()

    def show(self) -> None:
        entry: Entry
        entry, payload = self.channel.log[-1]
        self.checker.on_applied(NODE, entry, None if payload is None else memoryview(payload))
        self.checker.on_folded(NODE, entry, self.channel.manager.state)

    def pass_ms(self, ms: int) -> None:
        self.world.now_ns += ms * MILLISECOND_NS

    def expire(self) -> None:
        self.order(self.channel.expiry(generation=self.row.generation))

    def open(self) -> list[str]:
        return self.checker.what_is_open(self.channel.manager.state)


def test_a_session_may_expire_when_its_client_was_gone_for_long_enough() -> None:
    sessions = Sessions()
    sessions.pass_ms(1_000)
    assert sessions.open() == []
    sessions.attachments.on_left(7, SESSION, 1)
    assert sessions.open() == [f"session {SESSION:#x} has no client"]
    sessions.pass_ms(EXPIRY_MS)
    sessions.expire()
    assert sessions.open() == [] and sessions.world.probes["session.expired"] == 1


def test_a_session_that_expires_too_early_is_seen() -> None:
    sessions = Sessions()
    sessions.pass_ms(1_000)
    sessions.attachments.on_left(7, SESSION, 1)
    sessions.pass_ms(EXPIRY_MS // 2)
    with pytest.raises(Violation, match=r"I29 session: .* expires after 50.0 ms"):
        sessions.expire()


def test_a_session_that_expires_while_its_client_is_attached_is_seen() -> None:
    sessions = Sessions()
    sessions.pass_ms(1_000)
    with pytest.raises(Violation, match="while its client is attached at node 7"):
        sessions.expire()


def test_a_session_that_expires_though_its_client_came_back_is_seen() -> None:
    sessions = Sessions()
    sessions.attachments.on_left(7, SESSION, 1)
    sessions.pass_ms(1_000)
    sessions.order(sessions.client.resume(2))
    sessions.attachments.on_attached(8, SESSION, 2)
    with pytest.raises(Violation, match="while its client is attached at node 8"):
        sessions.expire()


def test_one_whose_client_came_back_and_went_again_has_its_whole_time_once_more() -> None:
    sessions = Sessions()
    sessions.attachments.on_left(7, SESSION, 1)
    sessions.pass_ms(1_000)
    sessions.order(sessions.client.resume(2))
    with pytest.raises(Violation, match=r"expires after 0.0 ms"):
        sessions.expire()


def test_a_client_that_left_before_its_session_was_opened_was_never_there() -> None:
    sessions = Sessions()
    sessions.attachments.on_left(7, SESSION, 1)
    sessions.order(sessions.client.resume(2))
    sessions.pass_ms(EXPIRY_MS)
    # The client manager of the session dies, long after its client has left.
    sessions.channel.fence(1, sessions.channel.manager.term)
    sessions.show()
    sessions.expire()
    assert sessions.world.probes["session.expired"] == 1


def test_a_client_manager_that_was_taken_for_dead_for_as_long_loses_the_session() -> None:
    sessions = Sessions()
    sessions.row.owner = NOBODY
    sessions.order(of_node(LogTime(time_ms=START_MS, term=sessions.channel.manager.term)))
    sessions.pass_ms(EXPIRY_MS)
    sessions.expire()
    assert sessions.world.probes["session.expired"] == 1


# -- clocks -----------------------------------------------------------------------------------------


def test_wall_clocks_are_set_by_days_and_own_clocks_go_on() -> None:
    world = World(1)
    clock = NodeClock(world, world.random("clock"))
    own_ns, wall_ms = clock.now_ns(), clock.wall_ms()
    seen = set()

    def look() -> None:
        seen.add((clock.wall_ms() - wall_ms - world.now_ns // MILLISECOND_NS) // DAY_MS)
        world.after(MILLISECOND_NS, look)

    ClockSteps(world, [clock]).plan(50 * MILLISECOND_NS, always=True)
    look()
    world.run(400 * MILLISECOND_NS)
    assert seen - {0} and clock.now_ns() == own_ns + world.now_ns
