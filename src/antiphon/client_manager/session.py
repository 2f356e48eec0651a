"""Session: a client's ordered stream of commands, and its consumers.

A session numbers its commands per channel, so it has one `SessionLane` for each channel it has used. The
session outlives its connection: received commands are still ordered, and a client that comes back resumes the
session under a higher generation.

What it promises
    SSN1  The commands of a lane go into the order as they came, and are confirmed in that order.
    SSN2  A barrier is passed when everything received before it is confirmed, never earlier.
    SSN3  A consumer has the messages delivered to it, until an acknowledgement or return of them is
          confirmed. A message that comes again, after an acknowledgement that is refused, is had anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from antiphon.wire.frames import Confirm, encode_frame, lone_confirm_head, lone_confirm_tail
from antiphon.wire.primitives import Buffer
from antiphon.wire.transactions import Consumed

if TYPE_CHECKING:
    from antiphon.client_manager.awaited import Awaited
    from antiphon.client_manager.connection import Connection
    from antiphon.client_manager.coordination import Transaction

_APPLIED = int(OutcomeCode.APPLIED)
_TAKEN = int(OutcomeCode.TAKEN)
# Past the constructor of a NamedTuple: there is one for every command.
_new: Final = tuple.__new__


class LaneState(IntEnum):
    """Does the channel know the session?"""

    NEW = 0
    OPENING = 1
    OPEN = 2
    REFUSED = 3


AS_IT_IS = ""
"""In place of settings: an existing destination is fine, however it is set."""


class Creation(NamedTuple):
    """A destination that a client wants to exist with these settings (JSON), or only to be found.

    With a `channel`, the destination must be there and nowhere else; of a spanning destination that is to be
    found, its part there is wanted. With `channels`, it must be in so many.
    """

    name: str
    settings: str | None
    channel: str = ""
    channels: int = 0

    @property
    def is_met_by_any(self) -> bool:
        """Is an existing destination fine, however it is set?"""
        return self.settings in (None, AS_IT_IS)


class Ordered(NamedTuple):
    """A command until it is confirmed; its bytes are gone with the envelope."""

    lane: SessionLane
    kind: int
    number: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    size: int
    destination: int = 0
    subscription: int = 0
    detail: Ranges | tuple[Consumed, ...] | Creation | Transaction | Connection | None = None
    # As in `Admitted`.
    outcomes: int = 1


@dataclass(slots=True, eq=False, repr=False)
class SessionLane:
    """The commands of one session for one channel; of the node itself when there is no session."""

    channel: str
    session: Session | None
    state: LaneState = LaneState.NEW
    refusal: str = ""
    next_number: int = 1
    waiting: deque[tuple[Ordered, Buffer]] = field(default_factory=deque)
    received: int = 0
    """Commands ever put into `waiting`."""
    is_in_turn: bool = False
    is_repeated: bool = False
    """Did the bus order something of the lane twice? The channel may know the session from the first time."""
    published_bytes: int = 0
    items: list[ConfirmItem] = field(default_factory=list)
    _confirm_head: bytes = b""
    """The beginning of every Confirm with one item."""
    _confirmed: int = 0
    _barriers: deque[tuple[int, Awaited]] = field(default_factory=deque)
    _openers: list[Awaited] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.session is not None and self.session.is_resumed:
            # A resumed session goes on where its client says; the fold knows where that must be.
            self.next_number = 0

    @property
    def of_session(self) -> Session:
        """The session of a lane that is not the node's own."""
        assert self.session is not None, "the node itself has no session"
        return self.session

    def has_answered(self, awaited: Awaited) -> bool:
        """Has the channel said whether it knows the session? If not, `opened` returns the `awaited`."""
        if self.state in (LaneState.OPEN, LaneState.REFUSED):
            return True
        self._openers.append(awaited)
        return False

    def opened(self, state: LaneState, refusal: str = "") -> list[Awaited]:
        """The channel has said whether it knows the session; returns the acts that waited for that."""
        self.state = state
        self.refusal = refusal
        openers, self._openers = self._openers, []
        return openers

    def take_numbers(self, number: int, count: int) -> None:
        """The next command takes these numbers; a gap or a repetition is a breach."""
        if self.next_number and number != self.next_number:
            raise ProtocolError(
                f"a command with number {number} for channel {self.channel} where {self.next_number} is due"
            )
        self.next_number = number + count

    def settle(self) -> bool:
        """The oldest unconfirmed command is confirmed now (SSN1); is a barrier reached?"""
        confirmed = self._confirmed = self._confirmed + 1
        assert confirmed <= self.received, "a command was confirmed that never came"
        barriers = self._barriers
        return bool(barriers) and barriers[0][0] <= confirmed

    @property
    def is_confirmed(self) -> bool:
        """Is everything received so far confirmed?"""
        return self._confirmed == self.received

    def has_confirmed(self, awaited: Awaited) -> bool:
        """Is everything received so far confirmed? If not, a barrier stands behind it (SSN2)."""
        if self.is_confirmed:
            return True
        self._barriers.append((self.received, awaited))
        return False

    def pass_barriers(self) -> Iterator[Awaited]:
        """The acts at the barriers that are reached, one after the other."""
        while self._barriers and self._barriers[0][0] <= self._confirmed:
            yield self._barriers.popleft()[1]

    def tell(self, number: int, count: int, code: int, sequence: int, text: str = "") -> None:
        """Note a confirmation; a success that continues the one before is merged with it."""
        items = self.items
        if items and code in (_APPLIED, _TAKEN):
            before = items[-1]
            if (
                before.code == code
                and before.number + before.count == number
                and (before.sequence + before.count == sequence or code == _TAKEN)
            ):
                items[-1] = ConfirmItem(before.number, before.count + count, code, before.sequence)
                return
        items.append(_new(ConfirmItem, (number, count, code, sequence, text)))

    def take_confirm(self) -> bytes:
        """The Confirm frame of everything noted since the last one."""
        assert self.session is not None, "the node confirms nothing to itself"
        items, self.items = self.items, []
        if len(items) > 1 or items[0].text:
            return encode_frame(Confirm(session=self.session.id, channel=self.channel, items=tuple(items)))
        if not self._confirm_head:
            self._confirm_head = lone_confirm_head(self.session.id, self.channel)
        return self._confirm_head + lone_confirm_tail(items[0])


class ConsumerState(IntEnum):
    WAITING = 0
    """The channel does not know the session yet."""
    REGISTERING = 1
    ATTACHED = 2
    CLOSING = 3
    """No more deliveries are passed on; acknowledgements are still on their way."""


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """One consumer of a client, known to the primary under `key`.

    The primary counts deliveries and bytes from the registration it knows, the client from the consumer's
    beginning. `base_*` is the difference: what the client had got before.
    """

    key: int
    number: int
    session: Session
    lane: SessionLane
    destination: int
    subscription: int
    selector: str = ""
    state: ConsumerState = ConsumerState.WAITING
    is_resumed: bool = False
    awaits_answer: bool = False
    """Has the primary not answered the last registration yet?"""
    resumes: bool = False
    """Does the consumer take over the primary's record of it under another key?"""
    stream: int = 0
    """The stream in which the consumer was attached."""
    said_credit: tuple[int, int] = (0, 0)
    """The credit in the registration."""
    said_held: Ranges = field(default_factory=Ranges)
    """The messages that the registration named."""
    is_said_wrong: bool = False
    """Did the client have fewer messages than a registration that is not answered yet named?"""
    request: int | None = None
    credit_messages: int = 0
    credit_bytes: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    base_messages: int = 0
    base_bytes: int = 0
    drain_request: int | None = None
    drain_messages: int = 0
    """The end of the client's credit when it asked for a drain."""
    held: Ranges = field(default_factory=Ranges)
    came_again: Ranges = field(default_factory=Ranges)
    """Of these, those that came again while an acknowledgement of an earlier copy was on its way."""
    has_given_back: bool = False
    """Has the consumer returned anything? A message that comes again then may come once more, when that is
    ordered."""

    @property
    def credit_left(self) -> tuple[int, int]:
        """The credit in messages and bytes, as the primary counts. A message that began within it may end
        beyond."""
        return (
            max(0, self.credit_messages - self.base_messages),
            max(0, self.credit_bytes - self.base_bytes),
        )

    @property
    def drains(self) -> bool:
        """Is the primary to use up the credit? Not before all of it has been passed on."""
        return self.drain_request is not None and self.credit_messages >= self.drain_messages


@dataclass(slots=True, eq=False, repr=False)
class Session:
    id: int
    generation: int
    connection: Connection | None
    """None once the client is gone."""
    user: str
    client_id: str
    connection_id: int
    """The client's connection, however it is connected."""
    is_resumed: bool
    known: Mapping[str, int]
    """The generation under which each channel has known the session, by its client."""
    is_closing: bool = False
    opening: int | None = None
    """The request that opens the session, until it is answered."""
    unconfirmed_bytes: int = 0
    lanes: dict[str, SessionLane] = field(default_factory=dict)
    consumers: dict[int, Consumer] = field(default_factory=dict)

    def lane(self, channel: str) -> SessionLane:
        lane = self.lanes.get(channel)
        if lane is None:
            lane = self.lanes[channel] = SessionLane(channel, self)
        return lane

    def release(
        self,
        channel: str,
        destination: int,
        subscription: int,
        ranges: Ranges,
        refused_from: int | None = None,
    ) -> list[Consumer]:
        """An acknowledgement of these is confirmed, or refused from a number on: no consumer here has them,
        but for refused ones that came again (SSN3).

        Returns the consumers of which the primary was told that they have some.
        """
        told = []
        for consumer in self._consumers_of(channel, destination, subscription):
            gone = ranges
            if consumer.came_again and (again := consumer.came_again.intersection(ranges)):
                consumer.came_again.remove_all(again)
                if refused_from is not None:
                    gone = ranges.difference(again.clip(refused_from, again.last + 1))
            if consumer.held:
                consumer.held.remove_all(gone)
            if consumer.said_held and consumer.said_held.remove_all(gone):
                told.append(consumer)
        return told

    def give_back(self, channel: str, destination: int, subscription: int, ranges: Ranges) -> None:
        """A return of these was received: no consumer here has them (SSN3)."""
        for consumer in self._consumers_of(channel, destination, subscription):
            consumer.held.remove_all(ranges)
            consumer.has_given_back = True

    def _consumers_of(self, channel: str, destination: int, subscription: int) -> list[Consumer]:
        return [
            consumer
            for consumer in self.consumers.values()
            if consumer.destination == destination
            and consumer.subscription == subscription
            and consumer.lane.channel == channel
        ]

    def release_all(self, channel: str, all_consumed: Iterable[Consumed]) -> None:
        """A transaction that consumed these is committed."""
        for consumed in all_consumed:
            self.release(channel, consumed.destination, consumed.subscription, consumed.numbers)
