"""Gatherer: the commands of all sessions for one channel become envelopes, fairly.

Where it sits
    session  ->  GATHERER  ->  the channel's producer on the bus  ->  back, committed and applied

What it promises
    ENV1  Commands of one lane keep their order, within envelopes and between them.
    ENV2  Lanes take turns of `turn_bytes`; a lane whose next command did not fit is first next time. So a
          very large transfer delays another session by one turn, not by its own length.
    ENV3  At most `submitted_bytes_max` are submitted and not committed, or one envelope, and at most
          `unconfirmed_commands_max` not confirmed; a command that may have several outcomes counts as so
          many. Later commands wait and are gathered: the slower the disk,
          the larger the envelopes.
    ENV4  Meanwhile a small envelope is submitted only if it has as many commands as are under way already. So
          a few clients need not wait for each other, while the single commands of many leave in few
          envelopes.
    ENV5  While the channel is blocked no publication goes into an envelope, nor a later command of its
          session. Other sessions go on: acknowledgements may make room.
    ENV6  Commands that were confirmed together are followed by commands that share an envelope, if they come
          in time (`crowd.py`).

What it leaves to others
    The bus retries, numbers and makes durable; the manager bounds the waiting commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from antiphon.client_manager.admission import PUBLICATIONS
from antiphon.client_manager.crowd import Crowd
from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.client_manager.session import Ordered, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.wire.commands import ConfirmItem, Outcome, OutcomeCode
from antiphon.wire.primitives import Buffer

ENVELOPE_WEIGHT_MIN = 1_280
"""The cost of a small datagram in a socket buffer."""

_APPLIED = int(OutcomeCode.APPLIED)
_BY_ROW = (int(OutcomeCode.DUPLICATE), int(OutcomeCode.KNOWN))
"""Outcomes with a number for each row."""


class Gatherer:
    """The waiting and the submitted commands of a channel."""

    def __init__(self, channel: str, settings: ClientManagerSettings) -> None:
        self.channel = channel
        self.waiting_bytes = 0
        self.submitted_bytes = 0
        self._settings = settings
        self._turns: deque[SessionLane] = deque()
        # Lanes that begin with a publication, while the channel is blocked.
        self._held: list[SessionLane] = []
        self._is_blocked = False
        self._next_tag = 1
        # Commands that wait, those of them that came since the last look, and those that are submitted and
        # not yet committed, or not yet confirmed.
        self._waiting = 0
        self._come = 0
        self._under_way = 0
        self._unconfirmed = 0
        self._commands: dict[int, list[Ordered]] = {}  # not yet confirmed, by tag
        self._outcomes: dict[int, int] = {}  # that these may have
        self._weights: dict[int, tuple[int, int]] = {}  # not yet committed, by tag: bytes, commands
        self._crowd = Crowd(settings)
        # How many small envelopes are not yet committed.
        self._small_under_way = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._turns)

    @property
    def waits_until_ns(self) -> int | None:
        """When `gather` must be called at the latest: commands wait for others (ENV6)."""
        return self._crowd.waits_until_ns if self._turns else None

    def put(self, ordered: Ordered, data: Buffer) -> None:
        lane = ordered[0]
        lane.waiting.append((ordered, data))
        lane.received += 1
        self.waiting_bytes += ordered[4]
        self._waiting += 1
        self._come += 1
        if not lane.is_in_turn:
            lane.is_in_turn = True
            self._turns.append(lane)

    def set_blocked(self, is_blocked: bool) -> None:
        """Block or unblock publications (ENV5)."""
        self._is_blocked = is_blocked
        if not is_blocked and self._held:
            self._turns.extend(self._held)
            self._held.clear()

    def gather(self, now_ns: int) -> list[SubmitEnvelope]:
        """As many envelopes as may be submitted now."""
        envelopes: list[SubmitEnvelope] = []
        self._crowd.come(self._come)
        self._come = 0
        is_small = self.waiting_bytes < self._settings.turn_bytes
        if is_small and (
            self._waiting < self._under_way
            or self._crowd.must_wait(now_ns, is_under_way=self._small_under_way > 0)
        ):
            # Too small (ENV4, ENV6).
            return envelopes
        self._crowd.leave(now_ns, is_small=is_small)
        most = self._settings.unconfirmed_commands_max
        while self._turns and self._unconfirmed < most:
            room = self._room()
            if room == 0:
                break
            buffers, commands, outcomes, count, size = self._fill(room, most - self._unconfirmed)
            if not commands:
                break
            tag = self._next_tag
            self._next_tag += 1
            weight = max(size, ENVELOPE_WEIGHT_MIN)
            self._commands[tag] = commands
            self._outcomes[tag] = outcomes
            self._weights[tag] = (weight, len(commands))
            self._small_under_way += weight < self._settings.turn_bytes
            self.submitted_bytes += weight
            self.waiting_bytes -= size
            self._under_way += len(commands)
            self._unconfirmed += outcomes
            self._waiting -= len(commands)
            envelopes.append(SubmitEnvelope(self.channel, tag, b"".join(buffers), count))
        return envelopes

    def _room(self) -> int:
        """The bytes of the next envelope; 0 when it must wait."""
        settings = self._settings
        if not self.submitted_bytes:
            return settings.envelope_bytes
        room = settings.submitted_bytes_max - self.submitted_bytes
        # A tiny envelope would use up a sliver of room although much is waiting, and each costs a commit.
        if room < max(ENVELOPE_WEIGHT_MIN, min(self.waiting_bytes, settings.turn_bytes)):
            return 0
        return min(room, settings.envelope_bytes)

    def _fill(self, room: int, outcomes_max: int) -> tuple[list[Buffer], list[Ordered], int, int, int]:
        turns = self._turns
        settings = self._settings
        turn_bytes, count_max = settings.turn_bytes, settings.envelope_count_max
        outcomes_max = min(outcomes_max, settings.envelope_commands_max)
        may_exceed = not self.submitted_bytes
        is_alone = not self._unconfirmed
        buffers: list[Buffer] = []
        commands: list[Ordered] = []
        count = size = outcomes = 0
        is_full = False
        while turns and not is_full:
            lane = turns.popleft()
            waiting = lane.waiting
            turn_ends = size + turn_bytes
            while waiting and size < turn_ends:
                ordered, data = waiting[0]
                if self._is_blocked and ordered.kind in PUBLICATIONS:
                    break
                fits = size + ordered.size <= room and count + ordered.count <= count_max
                # A command that fits no envelope travels alone, as soon as nothing else is on the way.
                is_full = not fits and (len(commands) > 0 or not may_exceed)
                if outcomes + ordered.outcomes > outcomes_max:
                    is_full = is_full or len(commands) > 0 or not is_alone
                if is_full:
                    break
                waiting.popleft()
                buffers.append(data)
                commands.append(ordered)
                count += ordered.count
                size += ordered.size
                outcomes += ordered.outcomes
            if not waiting:
                lane.is_in_turn = False
            elif self._is_blocked and waiting[0][0].kind in PUBLICATIONS:
                self._held.append(lane)
            elif is_full:
                turns.appendleft(lane)
            else:
                turns.append(lane)
        return buffers, commands, outcomes, count, size

    def committed(self, tag: int) -> None:
        """The envelope has its numbers: there is room for more. A repetition changes nothing."""
        weight, commands = self._weights.pop(tag, (0, 0))
        if not commands:
            return
        self.submitted_bytes -= weight
        self._under_way -= commands
        self._small_under_way -= weight < self._settings.turn_bytes

    def commands(self, tag: int) -> Sequence[Ordered]:
        return self._commands.get(tag, ())

    def unconfirmed(self, lane: SessionLane) -> Iterator[Ordered]:
        """The commands of a lane that wait or are submitted."""
        if not lane.is_confirmed:
            for commands in self._commands.values():
                yield from (ordered for ordered in commands if ordered.lane is lane)
            yield from (ordered for ordered, _ in lane.waiting)

    def confirmed(self, tag: int) -> list[Ordered]:
        """The envelope is applied: its commands, in order; none for a repetition."""
        self.committed(tag)
        commands = self._commands.pop(tag, [])
        self._unconfirmed -= self._outcomes.pop(tag, 0)
        self._crowd.confirmed(len(commands))
        return commands


def items_of(ordered: Ordered, sequence: int, outcomes: Sequence[Outcome]) -> Iterator[ConfirmItem]:
    """The outcomes of one command, in its session's numbers.

    `sequence` is the place of its first number, `outcomes` those within its numbers, in order. A publish that
    was partly sent before has an outcome for that part; the rest was applied.
    """
    stop = sequence + ordered.count
    shift = ordered.number - sequence
    for first, count, code, original, text in outcomes:
        assert sequence <= first and first + count <= stop, "an outcome lies outside of its command"
        if sequence < first:
            yield ConfirmItem(sequence + shift, first - sequence, _APPLIED, sequence)
        yield ConfirmItem(first + shift, count, code, original or first, text)
        sequence = first + count
    if sequence < stop:
        yield ConfirmItem(sequence + shift, stop - sequence, _APPLIED, sequence)


def outcomes_by_command(
    commands: Sequence[Ordered], first: int, exceptions: Sequence[Outcome]
) -> Iterator[tuple[Ordered, int, list[Outcome]]]:
    """Each command of an envelope with its place and its exceptions, cut at the command's ends."""
    left = deque(sorted(exceptions))
    sequence = first
    for ordered in commands:
        stop = sequence + ordered.count
        outcomes: list[Outcome] = []
        while left and left[0].first < stop:
            outcome = left.popleft()
            here = stop - outcome.first
            if outcome.count > here:
                original = outcome.original + here if outcome.code in _BY_ROW else outcome.original
                left.appendleft(outcome._replace(first=stop, count=outcome.count - here, original=original))
                outcome = outcome._replace(count=here)
            outcomes.append(outcome)
        yield ordered, sequence, outcomes
        sequence = stop
    assert not left, "an outcome lies outside of its envelope"
