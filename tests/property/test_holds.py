"""Laws of holds: nothing that a holder needs is gone, everything else goes, and all replicas agree.

A run is a list of drawn steps. Holders, destinations and numbers are few, so that steps meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.delivery import dispatcher
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.acknowledgements import read_acknowledged
from antiphon.ranges import Ranges
from antiphon.wire.commands import OutcomeCode
from tests.property.restored import RestoredChannel
from tests.property.test_locks import LockedHall
from tests.property.test_message_manager import Step, delivery_steps, few
from tests.unit.message_manager.channel import AT_ONCE, Client

NAMES = ("spark", "archive", "audit")
# Two queues, a topic that keeps nothing for its own sake, and one that keeps a little for a second.
CONSUMED, SHORT = '{"retention":"consumed"}', '{"retention":1,"retention_bytes":900}'
WHICH: tuple[tuple[int, ...], ...] = ((), (0,), (1, 2), (2, 3), (0, 1, 2, 3))

FAR = 1 << 40
# How far behind the end a position lies; some lie beyond it, a little or as far as there are numbers.
backs = st.one_of(st.integers(-2, 30), st.integers(-2, 30), st.sampled_from((1 << 63, (1 << 64) - 1)))

# How many numbers were not heard of yet when a word was said: most have heard of all.
lags = st.one_of(st.just(0), st.just(0), st.integers(1, 25))

steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), few, st.integers(1, 6)),
        st.tuples(st.just("publish"), few, st.integers(1, 6)),
        st.tuples(st.just("ack"), few, st.integers(1, 40), st.integers(1, 12)),
        st.tuples(st.just("ack"), few, st.integers(1, 40), st.integers(1, 12)),
        st.tuples(st.just("hold"), few, backs, st.integers(0, 4), st.integers(200, 3_000), lags),
        st.tuples(st.just("hold"), few, backs, st.integers(0, 4), st.integers(200, 3_000), lags),
        st.tuples(st.just("release"), few, lags),
        st.tuples(st.just("time"), st.integers(100, 900)),
        st.tuples(st.just("delete"), few),
        st.tuples(st.just("claim")),
        st.tuples(st.just("move"), few),
        st.tuples(st.just("restart")),
    ),
    # Hypothesis prefers short lists; nothing much happens in a short story.
    min_size=15,
    max_size=50,
)


@dataclass
class Held:
    """A hold as its holder sees it; `since_ms` is None until time is told."""

    position: int
    destinations: set[int]
    is_of_all: bool
    limit_ms: int
    began: int
    since_ms: int | None = None


class Story:
    """Writes a log from drawn steps, and keeps in plain sets what must be there."""

    def __init__(self) -> None:
        self.channel = RestoredChannel()
        self.client = Client()
        self.channel.order(self.client.open())
        self.ids = [0, 0, 0, 0]
        self.holds: dict[str, Held] = {}
        # The number by which a hold was last ended.
        self.ended = 0
        # By destination: what a queue has for its consumers, and what is kept of the rest.
        self.live: dict[int, set[int]] = {}
        self.kept: dict[int, set[int]] = {}
        self.last: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        # What acknowledgements somebody asks for: number of the command -> what it acknowledged.
        self.acks: dict[int, set[int]] = {}
        for at in range(4):
            self._make(at)

    def tell(self, drawn: list[Step]) -> None:
        for step in drawn:
            getattr(self, f"_{step[0]}")(*step[1:])
            self.check()

    # -- the model ---------------------------------------------------------------

    def held_from(self, id: int) -> int | None:
        covering = [h.position for h in self.holds.values() if h.is_of_all or id in h.destinations]
        return min(covering, default=None)

    def let_go(self) -> None:
        """Keep what is held and nothing else; a topic's trimmed messages are lost to whoever reads on."""
        for id, kept in self.kept.items():
            floor = self.held_from(id)
            gone = {number for number in kept if floor is None or number < floor}
            kept -= gone
            if gone and id == self.ids[2]:
                self.lost[id] = max(self.lost[id], *gone)
        floors = [h.position for name, h in self.holds.items() if name == "audit"]
        self.acks = {number: one for number, one in self.acks.items() if floors and number >= min(floors)}

    def check(self) -> None:
        self.let_go()
        state = self.channel.manager.state
        for at, id in enumerate(self.ids):
            destination = state.directory.get(id)
            assert destination is not None
            stored = set(destination.stored.numbers())
            assert destination.last_stored == self.last[id]
            if at < 2:
                assert set(destination.live.numbers()) == self.live[id]
                assert stored == self.live[id] | self.kept[id]
                assert destination.lost_through == 0
            elif at == 2:
                assert stored == self.kept[id]
                assert destination.lost_through == self.lost[id]
            else:
                # It keeps more than what is held, for a while.
                floor = self.held_from(id)
                self.kept[id] = {number for number in stored if floor is not None and number >= floor}
                assert self.kept[id] >= {n for n in self.lost_of_short if floor is not None and n >= floor}
                self.lost_of_short = self.kept[id]
                assert destination.lost_through not in stored
            assert destination.bytes == destination.index.weigh(destination.stored)
        assert {name: row.began for name, row in state.holds.rows.items()} == {
            name: hold.began for name, hold in self.holds.items()
        }
        assert state.holds.ended == self.ended
        self.check_acks()

    def check_acks(self) -> None:
        log, payloads = self.channel.manager.state.holds.acknowledgements, self.channel.payloads
        found: dict[int, set[int]] = {}
        for number, place, told in log.between(1, self.channel.next):
            if place is not None:
                payload = payloads.read(place.location)
                told = read_acknowledged(payload[place.offset : place.offset + place.length])
            found[number] = {n for one in told for n in one.numbers.numbers()}
        assert found == self.acks

    # -- steps -------------------------------------------------------------------

    def _make(self, at: int) -> None:
        name = f"d{at}"
        if at < 2:
            id = self.channel.create(name)
        else:
            id = self.channel.create_topic(name, CONSUMED if at == 2 else SHORT)
        self.ids[at] = id
        self.live[id], self.kept[id], self.last[id], self.lost[id] = set(), set(), 0, 0
        if at == 3:
            self.lost_of_short: set[int] = set()

    def _publish(self, where: int, count: int) -> None:
        id = self.ids[where]
        first = self.channel.order(self.client.publish(id, [bytes(30)] * count))
        numbers = set(range(first, first + count))
        self.last[id] = first + count - 1
        (self.live if where < 2 else self.kept)[id] |= numbers

    def _ack(self, where: int, back: int, count: int) -> None:
        id = self.ids[where % 2]
        first = max(1, self.channel.next - back)
        done = self.live[id] & set(range(first, first + count))
        number = self.channel.order(self.client.ack(id, (first, first + count)))
        self.live[id] -= done
        self.kept[id] |= done
        audit = self.holds.get("audit")
        if done and audit is not None and (audit.is_of_all or id in audit.destinations):
            self.acks[number] = done

    def _hold(self, who: int, back: int, which: int, limit_ms: int, lag: int = 0) -> None:
        name = NAMES[who % 3]
        own_number, heard = self.channel.next, max(0, self.channel.heard - lag)
        position = back if back > FAR else max(1, own_number - back)
        ids = [self.ids[at] for at in WHICH[which]]
        command = self.client.hold(name, position, *ids, limit_ms=limit_ms, acks=name == "audit", heard=heard)
        outcome = self.channel.outcome(command)
        known = self.holds.get(name)
        floor = self.ended if known is None else known.began
        if heard < floor:
            assert outcome is not None
            assert (outcome.code, outcome.original) == (OutcomeCode.OUTDATED, floor)
            return
        if position > own_number:
            assert outcome is not None and outcome.code == OutcomeCode.REFUSED
            return
        assert outcome is None
        if known is None or position >= known.position:
            began = own_number if known is None else known.began
            self.holds[name] = Held(position, set(ids), not ids, limit_ms, began)
        else:
            known.since_ms, known.limit_ms = None, limit_ms

    def _release(self, who: int, lag: int = 0) -> None:
        name, own_number = NAMES[who % 3], self.channel.next
        heard = max(0, self.channel.heard - lag)
        outcome = self.channel.outcome(self.client.release(name, heard))
        known = self.holds.get(name)
        if known is not None and heard < known.began:
            assert outcome is not None
            assert (outcome.code, outcome.original) == (OutcomeCode.OUTDATED, known.began)
            return
        assert outcome is None
        self.ended = own_number
        self.holds.pop(name, None)

    def _time(self, ms: int) -> None:
        self.channel.pass_time(ms)
        for name, hold in list(self.holds.items()):
            if hold.since_ms is None:
                hold.since_ms = self.channel.wall_ms
            elif self.channel.wall_ms > hold.since_ms + hold.limit_ms:
                self.ended = self.channel.heard
                del self.holds[name]

    def _delete(self, where: int) -> None:
        gone = self.ids[where]
        self.channel.order(self.client.delete(gone))
        for name, hold in list(self.holds.items()):
            hold.destinations.discard(gone)
            if not hold.is_of_all and not hold.destinations:
                self.ended = self.channel.heard
                del self.holds[name]
        for model in (self.live, self.kept, self.last, self.lost):
            del model[gone]
        self.let_go()
        self._make(where)

    def _claim(self) -> None:
        self.channel.claim(1)

    def _move(self, which: int) -> None:
        self.channel.move(which)

    def _restart(self) -> None:
        """From a checkpoint, which is the same before and after."""
        n = self.channel.mark()
        taken = self.channel.manager.capture(n)
        restored = MessageManager("main", 1, self.channel.payloads, AT_ONCE)
        restored.restore(taken[1])
        assert restored.capture(n) == taken
        assert restored.live_bytes_by_segment() == self.channel.manager.live_bytes_by_segment()
        self.channel.manager = restored
        self.channel.claim(1)


@given(steps)
def test_what_is_held_is_there_and_everything_else_goes(drawn: list[Step]) -> None:
    story = Story()
    story.tell(drawn)
    for name in NAMES:
        story.tell([("release", NAMES.index(name))])
    story.tell([("time", 500), ("time", 2_000)])
    for where in (0, 1):
        story.tell([("ack", where, story.channel.next, story.channel.next)])
    assert story.channel.manager.live_bytes_by_segment() == {}


@given(steps)
def test_every_replica_agrees_however_often_it_began_anew(drawn: list[Step]) -> None:
    story = Story()
    story.tell(drawn)
    n = story.channel.mark()
    assert story.channel.replica().capture(n)[0] == story.channel.manager.capture(n)[0]


def test_a_story_with_everything_in_it_keeps_something_of_every_kind() -> None:
    """Keeps the strategy honest."""
    story = Story()
    story.tell([("publish", where, 5) for where in range(4)])
    story.tell([("hold", 0, 12, 0, 3_000), ("hold", 2, 12, 4, 3_000)])
    story.tell([("publish", where, 5) for where in range(4)])
    story.tell([("ack", 0, 40, 60), ("ack", 1, 15, 4), ("restart",), ("time", 900), ("time", 900)])
    assert all(story.kept[id] for id in story.ids) and len(story.acks) == 2
    assert story.lost[story.ids[2]]


# -- a queue that somebody has for himself ---------------------------------------------------------------

taken_steps = st.lists(
    st.one_of(
        *delivery_steps,
        st.tuples(st.just("take"), few),
        st.tuples(st.just("take"), few),
        st.tuples(st.just("pass"), st.integers(1, 10)),
        st.tuples(st.just("free")),
        st.tuples(st.just("prepare"), st.integers(0, 30), st.integers(1, 8), st.integers(1, 3)),
        st.tuples(st.just("finish"), few, st.booleans()),
    ),
    min_size=25,
    max_size=60,
)


class TakenHall(LockedHall):
    """Consumers of one queue, which a holder takes for himself now and then."""

    def __init__(self) -> None:
        self.position: int | None = None
        super().__init__()

    @property
    def _all_locked(self) -> set[int]:
        return super()._all_locked if self.position is None else set(self._live())

    def _take_for_himself(self, position: int) -> int:
        outcome = self.channel.outcome(
            self.client.hold("spark", position, self.queue, consumes=True, heard=self.channel.heard)
        )
        return OutcomeCode.APPLIED if outcome is None else outcome.code

    def _take(self, which: int, count: int | None = None, is_latest_first: bool = False) -> list[int]:
        """Both a step of ours and what the hall does with a consumer's messages."""
        if count is not None:
            return super()._take(which, count, is_latest_first)
        if self.position is None:
            live = self._live()
            position = live[which] if len(live) > which else self.channel.next
            code = self._take_for_himself(position)
            is_locked = any(self.locked.values())
            assert code == (OutcomeCode.REFUSED if is_locked else OutcomeCode.APPLIED)
            if not is_locked:
                self.position = position
        return []

    def _pass(self, count: int) -> None:
        """The holder is done with some messages."""
        if self.position is None:
            return
        passed = [number for number in self._live() if number >= self.position][:count]
        self.position = passed[-1] + 1 if passed else self.position
        assert self._take_for_himself(self.position) == OutcomeCode.APPLIED
        self._leave(set(passed))
        self.kept_back.difference_update(passed)

    def _free(self) -> None:
        self.channel.order(self.client.release("spark", self.channel.heard))
        self.position = None

    def _prepare(self, at: int, count: int, stride: int) -> None:
        if self.position is None:
            super()._prepare(at, count, stride)

    def drain(self) -> None:
        self._free()
        super().drain()


@given(taken_steps)
def test_who_has_a_queue_alone_loses_nothing_and_leaves_the_rest_to_its_consumers(drawn: list[Step]) -> None:
    TakenHall().live(drawn)


@given(taken_steps)
def test_he_does_so_when_little_of_the_backlog_is_looked_at_a_time(drawn: list[Step]) -> None:
    with mock.patch.object(dispatcher, "RANGES_READY", 2):
        TakenHall().live(drawn)


def test_the_hall_is_taken_wherever_a_message_can_be() -> None:
    """Keeps the strategy honest: held, coming back, ready, and published meanwhile."""
    hall = TakenHall()
    drawn: list[Step] = [
        ("detach", 0, 2),
        ("take", 1),
        ("publish", 6),
        ("ack", 0, 8, False),
        ("pass", 4),
        ("new_term",),
        ("attach", 0, 12, 600),
        ("order_returns",),
        ("pass", 3),
        ("free",),
        ("prepare", 0, 3, 1),
        ("take", 0),
        ("finish", 0, False),
        ("take", 0),
    ]
    for step in drawn:
        hall.act(step)
    assert len(hall.acknowledged) == 7 and hall.position is not None
    assert Ranges((n, n + 1) for n in hall._live()).count == hall.published - 7
    hall.drain()
