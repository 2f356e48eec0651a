"""No message, hold or part goes before its time, by the time of the world, which no node knows; and each
goes.

    - a primary moves log time at most as fast as docs/design/log-time.md says, whatever its wall clock shows,
      and at least as fast as its own clock
    - a topic drops a message that no subscription needs when it is older than the retention by log time, or
      when more than the bytes of the retention are newer, and not one message earlier or later
    - a hold that is not released lasts for its limit, and so does a staged or open part

By log time this is exact; by the time of the world, up to the speed of log time. An age counts from the first
mark of time that is applied behind the thing, which may have been proposed before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.bus.messages import Entry, EntryKind
from antiphon.message_manager.delivery.log_clock import CATCH_UP_RATE, DIFFERENCE_MS_MAX, SLACK_SHARE
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations import topic as topics
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.transactions import OPEN_MS_MAX
from antiphon.sim.checkers.model import Topics
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import CLOCK_RATE_MAX, MILLISECOND_NS, World
from antiphon.wire.commands import CommandKind, LogTime, iterate_commands, read_command

FASTEST = CATCH_UP_RATE * CLOCK_RATE_MAX
"""Log time goes at most so many times as fast as the time of the world."""

_LOG_TIME = int(CommandKind.LOG_TIME)
_ROUNDING_MS = 1


class Said(NamedTuple):
    """A proposed mark: when by the world, when by the node's clock, and the time that it tells."""

    at_ns: int
    own_ns: int
    time_ms: int


class LogTimePace(Checker):
    """The speed at which primaries move log time."""

    promise = "I27 log time"

    def __init__(self, world: World, interval_ms: int) -> None:
        super().__init__(world)
        self._slack_ms = interval_ms / SLACK_SHARE + _ROUNDING_MS
        # The log time after each number, which a checkpoint brings to a node without its entries.
        self._times_ms = {0: 0}
        # The log time that each node has applied or taken over in its present life, and since when.
        self._applied_ms: dict[int, int] = {}
        self._since_ns: dict[int, int] = {}
        # By node and term: the last mark, and whether it met the wall clock.
        self._said: dict[tuple[int, int], Said] = {}
        self._has_met: set[tuple[int, int]] = set()

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._applied_ms.pop(node, None)
        self._know(node, self._times_ms[checkpoint])

    def on_restored(self, node: int, n: int) -> None:
        self._know(node, self._times_ms[n])
        # A primary goes on from the log time of the state that it took over, as if its term began.
        self._said = {key: said for key, said in self._said.items() if key[0] != node}
        self._has_met = {key for key in self._has_met if key[0] != node}

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        self._times_ms[entry.last] = state.log_time_ms
        self._know(node, state.log_time_ms)

    def _know(self, node: int, time_ms: int) -> None:
        """The time since a mark counts from the moment at which the node knew it first."""
        if time_ms != self._applied_ms.get(node):
            self._applied_ms[node], self._since_ns[node] = time_ms, self.world.now_ns

    def on_proposed(self, node: int, now_ns: int, wall_ms: int, command: bytes) -> None:
        header, body = read_command(command)
        if header.kind != _LOG_TIME:
            return
        told = LogTime.decode(body)
        key, at_ns = (node, told.term), self.world.now_ns
        before = self._said.get(key)
        if before is None:
            self._check_first(node, told.time_ms)
        else:
            moved_ms = told.time_ms - before.time_ms
            fastest = CLOCK_RATE_MAX if key in self._has_met else FASTEST
            self._check(node, moved_ms, (at_ns - before.at_ns) * fastest)
            if moved_ms < (now_ns - before.own_ns) // MILLISECOND_NS - _ROUNDING_MS:
                self.fail(f"node {node} lets log time go on by {moved_ms} ms, less than its own clock shows")
        self._said[key] = Said(at_ns, now_ns, told.time_ms)
        if wall_ms <= told.time_ms <= wall_ms + DIFFERENCE_MS_MAX:
            self._has_met.add(key)
        if abs(told.time_ms - wall_ms) > DIFFERENCE_MS_MAX:
            self.world.probe("time.wall_clock_not_followed")

    def _check_first(self, node: int, time_ms: int) -> None:
        """The first mark of a term goes on from the node's applied log time; that of a channel may be any."""
        applied_ms = self._applied_ms.get(node, 0)
        if not applied_ms:
            return
        if time_ms < applied_ms:
            self.fail(f"node {node} lets log time go back from {applied_ms} to {time_ms}")
        self._check(node, time_ms - applied_ms, (self.world.now_ns - self._since_ns[node]) * FASTEST)

    def _check(self, node: int, moved_ms: int, allowed_ns: float) -> None:
        allowed_ms = allowed_ns / MILLISECOND_NS + self._slack_ms
        if moved_ms > allowed_ms:
            self.fail(f"node {node} moves log time by {moved_ms} ms, where {allowed_ms:.0f} ms are allowed")


@dataclass(slots=True)
class _Stored:
    """A message of a topic: when it came, the bytes before it, and the first mark behind it."""

    born_ns: int
    before_bytes: int
    told_ms: int = -1
    told_ns: int = 0
    is_gone: bool = False


@dataclass(slots=True)
class _TopicAges:
    rows: dict[int, _Stored] = field(default_factory=dict)
    bytes: int = 0
    # How many ranges the topic had after the last entry, and whether it had many when something was last
    # published: then the topic drops several messages at once, and only when the next one comes.
    ranges: int = 0
    is_coarse: bool = False


class _Lasting(NamedTuple):
    """A thing with a limit: its last command, its limit from then on, and whether a mark followed that
    command."""

    heard_ns: int
    limit_ms: int
    is_told: bool


class Lifetimes(Checker):
    """Messages, holds and parts go when their time has come, and not before."""

    promise = "I28 lifetime"

    def __init__(self, world: World, topics: Topics | None = None) -> None:
        super().__init__(world)
        self._model = topics
        self._folded = 0
        self._kinds: dict[int, list[int]] = {}
        # By term and time: when each mark was proposed.
        self._proposed_ns: dict[tuple[int, int], int] = {}
        self._topics: dict[int, _TopicAges] = {}
        self._log_ms = 0
        self._step_ms_max = 0
        self._lasting: dict[str, _Lasting] = {}

    def on_proposed(self, node: int, now_ns: int, wall_ms: int, command: bytes) -> None:
        header, body = read_command(command)
        if header.kind == _LOG_TIME:
            told = LogTime.decode(body)
            self._proposed_ns.setdefault((told.term, told.time_ms), self.world.now_ns)

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded:
            return
        # The numbers of each kind of command.
        self._kinds = {}
        sequence = entry.first
        for header, _, _ in iterate_commands(payload) if payload is not None else ():
            self._kinds.setdefault(header.kind, []).append(sequence)
            sequence += header.count

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        if entry.last <= self._folded:
            return
        self._folded = entry.last
        told_at = self._kinds.get(_LOG_TIME, []) if state.log_time_ms > self._log_ms else []
        if told_at:
            if self._log_ms:
                self._step_ms_max = max(self._step_ms_max, state.log_time_ms - self._log_ms)
            self._log_ms = state.log_time_ms
        if self._model is not None:
            for topic in state.directory.topics:
                self._look_at_topic(topic, state, told_at[-1] if told_at else 0)
        self._look_at_lasting(entry, state)

    def _look_at_topic(self, topic: Topic, state: ChannelState, told_at: int) -> None:
        assert self._model is not None, "topics are looked at with a model of them"
        known = self._topics.setdefault(topic.id, _TopicAges())
        now_ns = self.world.now_ns
        former, known.ranges = known.ranges, len(topic.live)
        for number, size in self._model.sizes[topic.id].items():
            if number not in known.rows:
                known.rows[number] = _Stored(now_ns, known.bytes)
                known.bytes += size
                known.is_coarse = max(former, known.ranges) > topics.RANGES_FEW
        proposed_ns = self._proposed_ns.get((state.term, self._log_ms), now_ns)
        for number, row in known.rows.items():
            if row.is_gone:
                continue
            if row.told_ms < 0 and number < told_at:
                row.told_ms, row.told_ns = self._log_ms, min(row.born_ns, proposed_ns)
            if number in topic.live:
                self._check_kept(topic, state, number, known)
            else:
                row.is_gone = True
                self._check_gone(topic, number, known)

    def _check_gone(self, topic: Topic, number: int, known: _TopicAges) -> None:
        age_ms, most_bytes = topic.retention
        row = known.rows[number]
        if not age_ms:
            return
        if known.bytes - row.before_bytes > most_bytes:
            self.world.probe("time.message_went_by_bytes")
            return
        if row.told_ms < 0 or self._log_ms - row.told_ms < age_ms:
            self.fail(
                f"{number} of {topic.name} is gone, {self._log_ms - row.told_ms} ms old by log time, with "
                f"{known.bytes - row.before_bytes} bytes from it on; {topic.settings} keeps it"
            )
        self.world.probe("time.message_went_by_age")
        self._check_true(f"{number} of {topic.name}", row.told_ns, age_ms)

    def _check_true(self, what: str, since_ns: int, limit_ms: int) -> None:
        passed_ns = self.world.now_ns - since_ns
        if passed_ns * FASTEST < limit_ms * MILLISECOND_NS:
            self.fail(f"{what} is gone after {passed_ns / MILLISECOND_NS:.1f} ms; its limit is {limit_ms} ms")

    def _check_kept(self, topic: Topic, state: ChannelState, number: int, known: _TopicAges) -> None:
        age_ms, most_bytes = topic.retention
        row = known.rows[number]
        spare_bytes = topic.fresh_bytes // topics.TRIM_SHARE if known.is_coarse else 0
        too_much = known.bytes - row.before_bytes > most_bytes + spare_bytes
        # A mark of a topic may move on with those that follow it, for a while.
        late_ms = age_ms // topics.MARKS_MAX + self._step_ms_max + _ROUNDING_MS
        too_old = row.told_ms >= 0 and self._log_ms - row.told_ms > age_ms + late_ms
        if (too_much or too_old or not age_ms) and not self._is_needed(topic, state, number):
            self.fail(
                f"{number} of {topic.name} is kept, {self._log_ms - row.told_ms} ms old by log time, with "
                f"{known.bytes - row.before_bytes} bytes from it on; {topic.settings} lets it go"
            )

    def _is_needed(self, topic: Topic, state: ChannelState, number: int) -> bool:
        assert self._model is not None, "topics are looked at with a model of them"
        held = (row.position <= number for row in state.holds.rows.values() if row.covers(topic.id))
        return any(held) or self._model.may_be_wanted(topic.id, number)

    def _look_at_lasting(self, entry: Entry, state: ChannelState) -> None:
        lasting: dict[str, _Lasting] = {}
        heard_ns = self._proposed_ns.get((state.term, self._log_ms), self.world.now_ns)
        for name, hold in state.holds.rows.items():
            self._keep(lasting, f"hold {name}", hold.renewed_ms, hold.limit_ms, heard_ns)
        for session, part in state.transactions.open.items():
            what = f"part {part.transaction} of {session:#x}"
            self._keep(lasting, what, part.since_ms, OPEN_MS_MAX, heard_ns)
        for id, staged in state.transactions.staged.items():
            self._keep(lasting, f"staged part {id:#x}", staged.since_ms, staged.seconds * 1_000, heard_ns)
        # Other commands in an entry may have ended something.
        is_time_alone = entry.kind is EntryKind.DATA and set(self._kinds) == {_LOG_TIME}
        for what, known in self._lasting.items() if is_time_alone else ():
            if what not in lasting:
                self.world.probe(f"time.{what.split()[0]}_expired")
                self._check_true(what, known.heard_ns, known.limit_ms)
        self._lasting = lasting

    def _keep(
        self, lasting: dict[str, _Lasting], what: str, since_ms: int, limit_ms: int, told_ns: int
    ) -> None:
        """Note the thing. Its time begins with the mark that is applied behind its last command."""
        before = self._lasting.get(what)
        is_told = since_ms >= 0
        if before is None or (before.is_told and not is_told):
            lasting[what] = _Lasting(self.world.now_ns, limit_ms, is_told)
        elif is_told and not before.is_told:
            lasting[what] = _Lasting(min(before.heard_ns, told_ns), limit_ms, is_told)
        else:
            lasting[what] = _Lasting(before.heard_ns, limit_ms, is_told)
