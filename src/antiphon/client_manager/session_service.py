"""Session service: sessions are opened, resumed, closed and lost.

    opened  ->  (lost  ->  resumed, here or elsewhere, under a higher generation)*  ->  closed, or expired

What it promises
    SSV1  A client is told that its session is resumed when the first channel it names has resumed it: a
          silent channel holds up no other. If any channel of a session does not know the session, the session
          is not here, and its client is told so, even after an earlier "opened" or "resumed".
    SSV2  An answer that lets a client send commands to a channel comes when the channel knows the session. So
          a client that comes back, and whose channel does not know it, has been away for too long.
    SSV3  A session that is resumed elsewhere leaves its connection, and the peer is told.
    SSV4  Received commands are still ordered when the client is gone, and its consumers are detached when its
          acknowledgements are confirmed.

What it leaves to others
    The fold decides which of two generations is the newer one; here only visible breaches are refused early.
"""

from __future__ import annotations

from antiphon.bus.messages import SessionDetached
from antiphon.client_manager.awaited import (
    KnownAnswer,
    LaneClosed,
    LaneClosing,
    LaneDetached,
    RepeatedAbsence,
    SessionOpening,
)
from antiphon.client_manager.connection import Connection, Outbox, Refusal
from antiphon.client_manager.consumers import Consumers
from antiphon.client_manager.destination_service import Waiter
from antiphon.client_manager.flow import Flow
from antiphon.client_manager.ordering import Ordering
from antiphon.client_manager.requests import Requests
from antiphon.client_manager.session import LaneState, Session, SessionLane
from antiphon.client_manager.settings import LIMIT, ClientManagerSettings
from antiphon.errors import AccessDenied, ProtocolError, SessionClosed
from antiphon.ids import IdSource
from antiphon.wire.commands import CloseSession
from antiphon.wire.frames import (
    DestinationOpened,
    ServerFrame,
    SessionClose,
    SessionGone,
    SessionOpen,
    SessionOpened,
    SubscriptionFound,
)

STALE = "session.stale"


class SessionService:
    def __init__(
        self,
        channels: list[str],
        settings: ClientManagerSettings,
        ids: IdSource,
        outbox: Outbox,
        ordering: Ordering,
        consumers: Consumers,
        flow: Flow,
        requests: Requests,
    ) -> None:
        self._channels = channels
        self._settings = settings
        self._ids = ids
        self._outbox = outbox
        self._ordering = ordering
        self._consumers = consumers
        self._flow = flow
        self._requests = requests
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, connection: Connection, session_id: int) -> Session:
        """A session of this connection; any other is refused."""
        session = connection.sessions.get(session_id)
        if session is None:
            raise Refusal(SessionClosed.code, f"session {session_id:032x} is not open on this connection")
        return session

    def open(self, connection: Connection, wish: SessionOpen) -> None:
        if len(connection.sessions) >= self._settings.sessions_max:
            raise Refusal(LIMIT, f"a connection has at most {self._settings.sessions_max} sessions")
        if len(self._sessions) >= self._settings.sessions_total_max:
            raise Refusal(LIMIT, f"a node has at most {self._settings.sessions_total_max} sessions")
        if bool(wish.session) != (wish.generation > 1) or (not wish.session and wish.generation):
            raise ProtocolError(f"session {wish.session:032x} cannot be in generation {wish.generation}")
        if len(wish.known) not in (0, len(wish.channels)):
            raise ProtocolError(f"{len(wish.known)} generations for {len(wish.channels)} channels")
        if max(wish.known, default=-1) >= wish.generation:
            raise ProtocolError(f"generation {max(wish.known)} does not come before {wish.generation}")
        for channel in wish.channels:
            if channel not in self._channels or not wish.session:
                raise ProtocolError(f"a session cannot be resumed in channel {channel[:80]!r}")
        if wish.session:
            self._take_over(connection, wish)
        session_id = wish.session or self._ids.next()
        session = Session(
            session_id,
            wish.generation or 1,
            connection,
            connection.user,
            connection.client_id,
            connection.id,
            is_resumed=bool(wish.session),
            known=dict(zip(wish.channels, wish.known, strict=False)),
            opening=wish.request,
        )
        self._sessions[session_id] = connection.sessions[session_id] = session
        for channel in dict.fromkeys(wish.channels):
            self._flow.welcome(connection, channel)
            lane = session.lane(channel)
            # At once, though there may be nothing to send: until then the session counts as lost.
            self._ordering.open_lane(lane)
            # In a channel that is not named the former generation stays without a client.
            absence = self._requests.resumed(channel, session_id)
            if absence is not None:
                self._ordering.when_opened(lane, RepeatedAbsence(lane, absence))
        self.tell_opened(session)
        for lane in list(session.lanes.values()):
            self._ordering.when_opened(lane, SessionOpening(session))

    def repeat_absence(self, absence: RepeatedAbsence) -> None:
        """Tell the primary again that a session has no client, if its channel refused the next generation."""
        if absence.lane.state == LaneState.REFUSED:
            self._requests.detach(absence.lane.channel, absence.told)

    def _take_over(self, connection: Connection, wish: SessionOpen) -> None:
        """The client comes back, perhaps before the loss of its connection is known."""
        former = self._sessions.get(wish.session)
        if former is None:
            return
        if former.user != connection.user:
            raise Refusal(AccessDenied.code, "the session belongs to another user")
        if former.is_closing:
            raise Refusal(SessionClosed.code, "the session was closed")
        if former.generation >= wish.generation:
            raise Refusal(STALE, f"the session is in generation {former.generation} by now")
        if former.connection is not None:
            if former.connection is not connection:
                text = "the session has been resumed on another connection"
                gone = SessionGone(session=former.id, code=STALE, text=text)
                self._outbox.send(former.connection, gone)
            self._remove(former)

    def tell_opened(self, session: Session) -> None:
        """A channel that is to know the session does, or does not (SSV1)."""
        connection, request = session.connection, session.opening
        if connection is None:
            return
        if session.is_closing:
            # The client did not wait. Its other requests are answered, and then the session is gone.
            if request is not None:
                session.opening = None
                self._outbox.refuse(connection, request, SessionClosed.code, "the session was closed")
            return
        lanes = session.lanes.values()
        refusals = [lane.refusal for lane in lanes if lane.state == LaneState.REFUSED]
        if refusals:
            session.opening = None
            for lane in lanes:
                self._ordering.confirm_now(lane)
            if request is not None:
                self._outbox.refuse(connection, request, SessionClosed.code, refusals[0])
            else:
                gone = SessionGone(session=session.id, code=SessionClosed.code, text=refusals[0])
                self._outbox.send(connection, gone)
            self._remove(session)
            return
        if request is None or (lanes and all(lane.state != LaneState.OPEN for lane in lanes)):
            return
        session.opening = None
        opened = SessionOpened(
            request=request,
            session=session.id,
            generation=session.generation,
            window_bytes=self._settings.window_bytes,
        )
        self._outbox.answer(connection, request, opened)

    def when_known(self, waiter: Waiter, channel: str, answer: DestinationOpened | SubscriptionFound) -> None:
        """Answer a request once the channel knows the session (SSV2)."""
        lane = self.of(waiter.connection, waiter.session).lane(channel)
        if lane.state == LaneState.NEW:
            self._ordering.open_lane(lane, may_create=True)
        self._ordering.when_opened(lane, KnownAnswer(lane, waiter, answer))

    def tell_known(self, lane: SessionLane, waiter: Waiter, answer: ServerFrame) -> None:
        """The channel has said whether it knows the session."""
        if lane.state == LaneState.OPEN:
            self._outbox.answer(waiter.connection, waiter.request, answer)
        else:
            self._outbox.refuse(waiter.connection, waiter.request, SessionClosed.code, lane.refusal)

    def close(self, connection: Connection, wish: SessionClose) -> None:
        session = self.of(connection, wish.session)
        # Nothing more is taken from the session; its confirmations are still sent.
        del connection.sessions[session.id]
        session.is_closing = True
        self._consumers.close_all(session)
        if not session.lanes:
            self._closed(session, wish.request)
        for lane in list(session.lanes.values()):
            self._ordering.after_confirmed(lane, LaneClosing(lane, wish.request))

    def close_lane(self, lane: SessionLane, request: int) -> None:
        """Everything received for a lane is confirmed: the channel may forget the session."""
        if lane.state == LaneState.OPEN:
            self._ordering.order(lane, CloseSession())
        self._ordering.after_confirmed(lane, LaneClosed(lane, request))

    def closed_lane(self, lane: SessionLane, request: int) -> None:
        session = lane.of_session
        del session.lanes[lane.channel]
        if not session.lanes:
            self._closed(session, request)

    def _closed(self, session: Session, request: int) -> None:
        self._forget(session)
        if session.connection is not None:
            self._outbox.answer(session.connection, request)

    def _remove(self, session: Session) -> None:
        """The session leaves its connection, whose later commands for it are ignored (SSV3)."""
        connection = session.connection
        assert connection is not None, "a session was removed from no connection"
        del connection.sessions[session.id]
        connection.left.append(session.id)
        connection.unconfirmed_bytes -= session.unconfirmed_bytes
        connection.consumer_count -= len(session.consumers)
        self.detach(session, is_lost=True)

    def detach(self, session: Session, *, is_lost: bool) -> None:
        """The client of a session is gone; a client that `is_lost` may come back, here or elsewhere
        (SSV4)."""
        session.connection = None
        self._consumers.close_all(session, is_lost=is_lost)
        for lane in list(session.lanes.values()):
            self._ordering.after_confirmed(lane, LaneDetached(lane))
        if not session.lanes:
            self._forget(session)

    def detach_lane(self, lane: SessionLane) -> None:
        """Everything received for a lane is confirmed: the primary may count the session as away."""
        session = lane.of_session
        now = self._sessions.get(session.id)
        later = now.lanes.get(lane.channel) if now is not None and now is not session else None
        # A session that a higher generation resumes in this channel is not away; but the resume may be
        # refused.
        if later is not None and not later.has_answered(LaneDetached(lane)):
            return
        if lane.state == LaneState.OPEN and (later is None or later.state == LaneState.REFUSED):
            floor = self._ordering.confirmed_through[lane.channel]
            self._requests.detach(lane.channel, SessionDetached(session.id, session.generation, floor))
        del session.lanes[lane.channel]
        if not session.lanes:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
