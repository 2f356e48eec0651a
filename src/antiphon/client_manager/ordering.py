"""Ordering: from a client's command to its envelope, and from the envelope's outcome to the client.

Where it sits
    connection  ->  ORDERING  ->  envelopes  ->  the bus, and the same way back

What it promises
    ORD1  A command is ordered only if its session is on this connection, in this generation, and if its
          number is the next: the channel receives what the session sent.
    ORD2  A session's first command in a channel stands behind the session's opening.
    ORD3  Confirmations of one session are put together over a step, and come before an answer that waited for
          them.
    ORD4  A client that is too far ahead of the channels is not read from until half of it is confirmed.
    ORD5  Of non-persistent messages a client is told in the same step that they are taken: they have their
          place in the session's order, and count as unconfirmed until they are applied.

What it leaves to others
    The fold knows whether there is a destination with the id that a command names: ids are a channel's own,
    and a client that comes from another client manager knows some that were never asked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from antiphon.bus.effects import EnvelopeCommitted, EnvelopeConfirmed, EnvelopeUncertain
from antiphon.client_manager.admission import PUBLICATIONS, check_command
from antiphon.client_manager.awaited import Awaited
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.client_manager.effects import PauseReading, ResumeReading
from antiphon.client_manager.envelopes import Gatherer, items_of, outcomes_by_command
from antiphon.client_manager.session import Consumer, Creation, LaneState, Ordered, Session, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    NODE_SESSION,
    CommandKind,
    ConfirmItem,
    OpenSession,
    Outcome,
    OutcomeCode,
    Payload,
    ResumeSession,
    encode_command,
    kind_of,
)
from antiphon.wire.frames import Command
from antiphon.wire.primitives import Buffer

if TYPE_CHECKING:
    from antiphon.client_manager.coordination import Transaction

_RETURN = int(CommandKind.RETURN)
_DELETE = int(CommandKind.DELETE)
_TX_COMMIT = int(CommandKind.TX_COMMIT)
_APPLIED = int(OutcomeCode.APPLIED)
_TAKEN = int(OutcomeCode.TAKEN)
_NEW = LaneState.NEW
_OPEN = LaneState.OPEN
# Past the constructor of a NamedTuple: there is one for every command.
_new: Final = tuple.__new__
_DONE = (_APPLIED, int(OutcomeCode.DUPLICATE))
_NO_SESSION = (int(OutcomeCode.SESSION_UNKNOWN), int(OutcomeCode.STALE))

_KEEP_VIEW_BYTES = 32 * 1024
"""A waiting command of this size may keep the bytes it arrived among; a smaller one is copied, or a few of
them could hold on to many times their own size."""

OwnSettled = Callable[[Ordered, int, Sequence[Outcome]], None]
DestinationGone = Callable[[str, int], None]
LaneRefused = Callable[[SessionLane, Outcome], None]


class Ordering:
    """The commands of all clients of one client manager, until they are confirmed."""

    def __init__(
        self,
        channels: Sequence[str],
        settings: ClientManagerSettings,
        outbox: Outbox,
        own_settled: OwnSettled,
        destination_gone: DestinationGone,
        go_on: Callable[[Awaited], None],
        said_wrong: Callable[[Consumer], None],
        lane_refused: LaneRefused,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._own_settled = own_settled
        self._destination_gone = destination_gone
        self._go_on = go_on
        self._said_wrong = said_wrong
        self._lane_refused = lane_refused
        self._gatherers = {channel: Gatherer(channel, settings) for channel in channels}
        # The highest number confirmed in each channel.
        self.confirmed_through = dict.fromkeys(channels, 0)
        self._to_confirm: list[SessionLane] = []
        self._paused: dict[int, Connection] = {}
        self._unconfirmed_bytes = 0
        self.has_stirred = False
        """Was anything settled on which the timed parts may have to act?"""

    def take(self, connection: Connection, frame: Command) -> None:
        data, channel, settings = frame.command, frame.channel, self._settings
        gatherer = self._gatherers.get(channel)
        if gatherer is None:
            raise ProtocolError(f"there is no channel {channel[:80]!r}")
        size = len(data)
        if size > settings.envelope_bytes_max:
            raise ProtocolError(f"a command of {size} bytes; at most {settings.envelope_bytes_max}")
        header, destination, subscription, ranges, outcomes, is_transient = check_command(data)
        kind, _, _, count, generation, number, _, who = header
        session = connection.sessions.get(who)
        if session is None and who in connection.left:
            # The session left from the server's side; the message about that crosses this command.
            return
        if session is None or generation != session.generation:
            raise ProtocolError(
                f"generation {generation} of session {who:032x} is not open on this connection"
            )
        lane = session.lanes.get(channel) or session.lane(channel)
        lane.take_numbers(number, count)
        if kind in PUBLICATIONS:
            if lane.published_bytes > settings.window_bytes:
                raise ProtocolError(f"more than the window of {settings.window_bytes} bytes is unconfirmed")
            lane.published_bytes += size
        if lane.state is _NEW:
            self.open_lane(lane)
        ordered = _new(
            Ordered, (lane, kind, number, count, size, destination, subscription, ranges, outcomes)
        )
        gatherer.put(ordered, data if size >= _KEEP_VIEW_BYTES else bytes(data))
        if is_transient:
            if not lane.items:
                self._to_confirm.append(lane)
            lane.tell(number, count, _TAKEN, 0)
        if kind == _RETURN and isinstance(ranges, Ranges):
            # The client has let go of them. When the return is confirmed, the client may have got them again;
            # and a new primary that was told they are held here would keep them from all consumers.
            session.give_back(channel, destination, subscription, ranges)
        weight = size + settings.command_weight
        self._unconfirmed_bytes += weight
        session.unconfirmed_bytes += weight
        connection.unconfirmed_bytes += weight
        if connection.unconfirmed_bytes > settings.connection_bytes_max or (
            self._unconfirmed_bytes > settings.total_bytes_max
        ):
            self._pause_reading(connection)

    def open_lane(self, lane: SessionLane, *, may_create: bool = False) -> None:
        """Open the session in the channel, before its first command (ORD2).

        A resumed session must be known there, unless its client has never sent anything to the channel and so
        `may_create` it.
        """
        session = lane.of_session
        lane.state = LaneState.OPENING
        if session.is_resumed and not may_create:
            self.order(lane, ResumeSession(known=session.known.get(lane.channel, 0)))
        else:
            wish = OpenSession(
                user=session.user, client_id=session.client_id, connection=session.connection_id
            )
            self.order(lane, wish)

    def claim_lane(self, lane: SessionLane) -> None:
        """The channel has lost the session's owner: it must hear that the session is still here."""
        if lane.state == LaneState.OPEN:
            lane.state = LaneState.OPENING
            # The channel knows the session already, from this node.
            lane.is_repeated = True
            self.order(lane, ResumeSession(known=lane.of_session.generation))

    def order(
        self,
        lane: SessionLane,
        payload: Payload,
        detail: Creation | Transaction | Connection | None = None,
        count: int = 1,
    ) -> None:
        """Order an own command, of the node or about a session; it has no number."""
        kind = kind_of(payload)
        session = lane.session
        if session is None:
            command = encode_command(kind, NODE_SESSION, 0, 0, 0, payload.encode(), count)
        else:
            command = encode_command(kind, session.id, session.generation, 0, 0, payload.encode(), count)
        ordered = Ordered(lane, int(kind), 0, count, len(command), detail=detail)
        self._gatherers[lane.channel].put(ordered, command)

    def when_opened(self, lane: SessionLane, awaited: Awaited) -> None:
        """Act once the channel has said whether it knows the session: perhaps at once."""
        if lane.has_answered(awaited):
            self._go_on(awaited)

    def after_confirmed(self, lane: SessionLane, awaited: Awaited) -> None:
        """Act once everything received for the lane so far is confirmed: perhaps at once."""
        if lane.has_confirmed(awaited):
            self._go_on(awaited)

    def awaits_return(self, lane: SessionLane) -> bool:
        """Whether a return of this lane is not confirmed yet."""
        return any(ordered.kind == _RETURN for ordered in self._gatherers[lane.channel].unconfirmed(lane))

    def committed(self, channel: str, event: EnvelopeCommitted) -> None:
        self._gatherers[channel].committed(event.tag)

    def uncertain(self, channel: str, event: EnvelopeUncertain) -> None:
        """The bus orders the envelope once more, as `repetition` rewrites it.

        Its sessions may already be known, from the first time; commands that opened a session resume it now.
        """
        for ordered in self._gatherers[channel].commands(event.tag):
            ordered.lane.is_repeated = True

    def confirmed(self, channel: str, event: EnvelopeConfirmed) -> None:
        commands = self._gatherers[channel].confirmed(event.tag)
        last = event.first + event.count - 1
        self.confirmed_through[channel] = max(last, self.confirmed_through[channel])
        if event.exceptions and commands:
            for ordered, sequence, outcomes in outcomes_by_command(commands, event.first, event.exceptions):
                self._settle(ordered, sequence, outcomes)
            return
        sequence = event.first
        for ordered in commands:
            self._settle(ordered, sequence, ())
            sequence += ordered.count

    def _settle(self, ordered: Ordered, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """A command was applied at `sequence`, except for `outcomes`."""
        lane, kind, number, count, size, destination, _, _, _ = ordered
        has_reached_barrier = lane.settle()
        session = lane.session
        if not number:
            self.has_stirred = True
            self._own_settled(ordered, sequence, outcomes)
        else:
            assert session is not None, "the node's own commands have no numbers"
            weight = size + self._settings.command_weight
            self._unconfirmed_bytes -= weight
            session.unconfirmed_bytes -= weight
            if kind in PUBLICATIONS:
                lane.published_bytes -= size
            else:
                self._release(ordered, session, outcomes)
            is_gone = kind == _DELETE and _is_done(outcomes)
            if is_gone or (outcomes and outcomes[0].code == OutcomeCode.NO_DESTINATION):
                self.has_stirred = True
                self._destination_gone(lane.channel, destination)
            connection = session.connection
            if connection is not None:
                connection.unconfirmed_bytes -= weight
                is_first = not lane.items
                if is_first:
                    self._to_confirm.append(lane)
                if outcomes:
                    for item in items_of(ordered, sequence, outcomes):
                        lane.tell(*item)
                elif is_first:
                    lane.items.append(_new(ConfirmItem, (number, count, _APPLIED, sequence, "")))
                else:
                    lane.tell(number, count, _APPLIED, sequence)
            if outcomes and outcomes[0].code in _NO_SESSION and lane.state is _OPEN:
                # The session has ended, or is elsewhere: the channel takes nothing more from here.
                self.has_stirred = True
                self._lane_refused(lane, outcomes[0])
        if has_reached_barrier:
            self.has_stirred = True
            self.confirm_now(lane)
            for awaited in lane.pass_barriers():
                self._go_on(awaited)

    def _release(self, ordered: Ordered, session: Session, outcomes: Sequence[Outcome]) -> None:
        """A command without messages is confirmed: no consumer here has the acknowledged messages."""
        lane, kind, detail = ordered.lane, ordered.kind, ordered.detail
        if isinstance(detail, Ranges) and kind != _RETURN:
            told = session.release(
                lane.channel, ordered.destination, ordered.subscription, detail, _refused_from(outcomes)
            )
            for consumer in told if outcomes else ():
                # The acknowledgement was refused, perhaps before the primary that was told led.
                self.has_stirred = True
                self._said_wrong(consumer)
        elif kind == _TX_COMMIT and _is_done(outcomes):
            # The client still has the messages of a rollback, and returns them.
            assert isinstance(detail, tuple) and not isinstance(detail, Creation), "a commit consumes"
            session.release_all(lane.channel, detail)

    def acknowledged(self, consumer: Consumer) -> Ranges:
        """The messages of the consumer's source whose acknowledgement by its session is on its way."""
        numbers = Ranges()
        for ordered in self._gatherers[consumer.lane.channel].unconfirmed(consumer.lane):
            if (
                isinstance(ordered.detail, Ranges)
                and ordered.kind != _RETURN
                and ordered.destination == consumer.destination
                and ordered.subscription == consumer.subscription
            ):
                numbers.add_all(ordered.detail)
        return numbers

    def confirm_now(self, lane: SessionLane) -> None:
        """Send the lane's confirmations before the next frame (ORD3)."""
        if lane.items and lane.session is not None and lane.session.connection is not None:
            self._outbox.send_buffers(lane.session.connection, [lane.take_confirm()])

    def _confirm_all(self) -> None:
        """Send the confirmations of all lanes, those of a connection together."""
        said: dict[Connection, list[Buffer]] = {}
        for lane in self._to_confirm:
            session = lane.session
            connection = None if session is None else session.connection
            if connection is not None and lane.items:
                words = said.get(connection)
                if words is None:
                    words = said[connection] = []
                words.append(lane.take_confirm())
        self._to_confirm.clear()
        for connection, words in said.items():
            self._outbox.send_buffers(connection, words)

    def next_deadline_ns(self) -> int | None:
        """When commands that wait for others must leave."""
        earliest: int | None = None
        for gatherer in self._gatherers.values():
            at = gatherer.waits_until_ns
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def finish_step(self, now_ns: int) -> None:
        """All events are taken: confirm and submit what can be."""
        if self._to_confirm:
            self._confirm_all()
        for gatherer in self._gatherers.values():
            if gatherer.has_waiting:
                for envelope in gatherer.gather(now_ns):
                    self._outbox.do(envelope)
        if self._paused:
            self._resume_reading()

    def set_blocked(self, channel: str, is_blocked: bool) -> None:
        self._gatherers[channel].set_blocked(is_blocked)

    def _pause_reading(self, connection: Connection) -> None:
        if connection.conn not in self._paused:
            self._paused[connection.conn] = connection
            self._outbox.do(PauseReading(connection.conn))

    def burden(self, session: Session, weight: int) -> None:
        """Count bytes kept for a session besides its commands, until it is `relieved`."""
        connection = session.connection
        assert connection is not None, "nobody is there who could have asked for it"
        self._unconfirmed_bytes += weight
        session.unconfirmed_bytes += weight
        connection.unconfirmed_bytes += weight
        if connection.unconfirmed_bytes > self._settings.connection_bytes_max or (
            self._unconfirmed_bytes > self._settings.total_bytes_max
        ):
            self._pause_reading(connection)

    def relieve(self, session: Session, weight: int) -> None:
        self._unconfirmed_bytes -= weight
        session.unconfirmed_bytes -= weight
        if session.connection is not None:
            session.connection.unconfirmed_bytes -= weight

    def _resume_reading(self) -> None:
        if 2 * self._unconfirmed_bytes > self._settings.total_bytes_max:
            return
        for connection in list(self._paused.values()):
            if 2 * connection.unconfirmed_bytes <= self._settings.connection_bytes_max:
                del self._paused[connection.conn]
                self._outbox.do(ResumeReading(connection.conn))

    def connection_over(self, connection: Connection) -> None:
        self._paused.pop(connection.conn, None)


def _is_done(outcomes: Sequence[Outcome]) -> bool:
    """Did a command do what it asked, now or when it was sent before?"""
    return not outcomes or outcomes[0].code in _DONE


def _refused_from(outcomes: Sequence[Outcome]) -> int | None:
    """From which number on an acknowledgement may be refused; None: all of it counts."""
    if _is_done(outcomes):
        return None
    return outcomes[0].original if outcomes[0].code == OutcomeCode.ACK_LOST else 0
