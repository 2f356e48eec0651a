"""CommandOutbox: the commands of one session to one channel, from the application's hand to their outcome.

What it promises
    OBX1  Numbers are given without gaps in the order of sending, and a command keeps its number and its bytes
          until its outcome is known.
    OBX2  Publications leave in the order they were handed over. Acknowledgements may overtake publications
          that wait for room: a full queue may need them to get room.
    OBX3  A publication leaves when at most `window_bytes` are unconfirmed with it; or when nothing is,
          whatever its size.
    OBX4  Every number has one outcome. A repeated confirmation counts once, and one of a number that was
          never sent is a ProtocolError. TAKEN is no outcome: senders of a publication wait no more, and the
          publication stays unconfirmed.
    OBX5  On another connection everything without an outcome is sent again, in order, under the same numbers
          and before anything new. Only the 48 bytes of the header differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from antiphon.client.core.events import Settled
from antiphon.client.core.pace import USUAL, Pace
from antiphon.client.core.publication import Publication
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    Acknowledge,
    AlterDestination,
    CommandKind,
    ConfirmItem,
    CreateTemporary,
    DeleteDestination,
    OutcomeCode,
    PurgeDestination,
    Return,
    Subscribe,
    Unsubscribe,
    encode_command,
    kind_of,
    renew_header,
)
from antiphon.wire.frames import command_buffers
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.primitives import Buffer
from antiphon.wire.transactions import CommitTransaction, DropStaged, RollBackTransaction

Order: TypeAlias = (
    Subscribe
    | Unsubscribe
    | Return
    | CommitTransaction
    | RollBackTransaction
    | DropStaged
    | Hold
    | ReleaseHold
    | AlterDestination
    | CreateTemporary
    | DeleteDestination
    | PurgeDestination
)
"""Commands that are neither messages nor acknowledgements."""


_NONE = Ranges()
"""No numbers. A set that has become empty is not changed again."""


_TAKEN = int(OutcomeCode.TAKEN)

ROOM_MAX = 1 << 62
"""Room for anything: when nothing is unconfirmed, a publication leaves whatever its size (OBX3)."""


@dataclass(slots=True)
class UnconfirmedCommand:
    """A sent command without an outcome, with all that sending it again takes."""

    number: int
    count: int
    size: int
    buffers: list[Buffer]
    tag: object
    outcomes: list[ConfirmItem] = field(default_factory=list)
    open: Ranges | None = None  # the numbers without an outcome; None stands for all of them

    @property
    def is_settled(self) -> bool:
        return self.open is not None and not self.open

    @property
    def is_wanted(self) -> bool:
        """Does the outcome still matter? The sender may have been told that it is uncertain."""
        return not self.is_settled and not (isinstance(self.tag, Publication) and not self.tag.is_wanted)

    def take(self) -> bool:
        """The server has taken the command; is that news to a sender?"""
        if not isinstance(self.tag, Publication) or self.tag.is_taken:
            return False
        self.tag.is_taken = True
        return True

    def note(self, item: ConfirmItem) -> None:
        """Note the item's outcome for the numbers that have none yet (OBX4)."""
        stop = self.number + self.count
        if item.number == self.number and item.count == self.count and self.open is None:
            self.outcomes.append(item)
            self.open = _NONE
            return
        if self.open is None:
            self.open = Ranges([(self.number, stop)])
        for first, end in self.open.clip(item.number, item.number + item.count):
            sequence = item.sequence + first - item.number
            self.outcomes.append(item._replace(number=first, count=end - first, sequence=sequence))
        self.open.remove(item.number, item.number + item.count)


class CommandOutbox:
    """The commands of one session to one channel.

    Buffers to send are appended to `output`, which all outboxes of a connection share.
    """

    def __init__(
        self,
        *,
        session: int,
        generation: int,
        channel: str,
        window_bytes: int,
        output: list[Buffer],
        pace: Pace = USUAL,
    ) -> None:
        self._small_bytes = pace.small_bytes
        self._linger_commands = pace.linger_commands
        self.session = session
        self.generation = generation
        self.channel = channel
        self.window_bytes = window_bytes
        self.next_number = 1
        self.is_open = True
        """Is the session on a connection at this moment?"""
        self.is_blocked = False
        """Has the server said that the channel takes no more for now?"""
        self._output = output
        self._unconfirmed: deque[UnconfirmedCommand] = deque()
        self._unconfirmed_bytes = 0
        # The last commands, which have not been sent on this connection.
        self._unsent: deque[UnconfirmedCommand] = deque()
        self._unsent_bytes = 0
        self._waiting: deque[Publication] = deque()
        self._is_adopted = False

    @property
    def confirmed_through(self) -> int:
        """Every number up to here has its outcome; 0 for an adopted session."""
        if self._is_adopted:
            return 0
        return (self._unconfirmed[0].number if self._unconfirmed else self.next_number) - 1

    @property
    def is_idle(self) -> bool:
        """Have all awaited commands left, and their outcomes come?"""
        self._drop_unwanted()
        return not self._waiting and not any(kept.is_wanted for kept in self._unconfirmed)

    @property
    def has_sent_all(self) -> bool:
        """Has everything that was handed over left, on this connection?"""
        self._drop_unwanted()
        return self.is_open and not self._waiting and not self._unsent

    @property
    def last_waiting(self) -> Publication | None:
        """The publication that will leave last of all."""
        return self._waiting[-1] if self._waiting else None

    def submit(self, publication: Publication) -> None:
        """Send a publication, or let it wait behind those that wait already (OBX2)."""
        if not self._waiting and self._has_room(publication.size):
            self._publish(publication)
            return
        self._drop_unwanted()
        self._waiting.append(publication)
        self.pump()

    def pump(self) -> None:
        """Send waiting publications, as far as there is room."""
        if self._unsent:
            self._send_again()
        while self._waiting and self._has_room(self._waiting[0].size):
            self._publish(self._waiting.popleft())

    def has_room(self, size: int) -> bool:
        """Would so many bytes leave about now?"""
        return size <= self.room

    @property
    def room(self) -> int:
        if not self.is_open or self.is_blocked or self._unsent:
            return 0
        waiting = sum(publication.size for publication in self._waiting)
        if not self._unconfirmed and not waiting:
            return ROOM_MAX
        return max(0, self.window_bytes - self._unconfirmed_bytes - waiting)

    def _drop_unwanted(self) -> None:
        """Drop abandoned publications that wait for room."""
        while self._waiting and not self._waiting[0].is_wanted:
            self._waiting.popleft().is_settled = True

    def acknowledge(self, payload: Acknowledge, tag: object) -> None:
        """Send an acknowledgement, at once (OBX2)."""
        number = self.next_number
        command = encode_command(
            CommandKind.ACK, self.session, self.generation, number, self.confirmed_through, payload.encode()
        )
        self._send(UnconfirmedCommand(number, 1, len(command), [command], tag))

    def order(self, payload: Order, tag: object, count: int = 1) -> None:
        """Send any other command, which takes `count` numbers, at once."""
        number = self.next_number
        command = encode_command(
            kind_of(payload), self.session, self.generation, number, self.confirmed_through, payload.encode(),
            count,
        )  # fmt: skip
        self._send(UnconfirmedCommand(number, count, len(command), [command], tag))

    def _has_room(self, size: int) -> bool:
        if not self.is_open or self.is_blocked or self._unsent:
            return False
        if not self._unconfirmed:
            return True
        if size < self._small_bytes and len(self._unconfirmed) >= self._linger_commands:
            return False
        return self._unconfirmed_bytes + size <= self.window_bytes

    def _publish(self, publication: Publication) -> None:
        number = self.next_number
        departure = publication.leave(self.session, self.generation, number, self.confirmed_through)
        if departure is None:
            publication.is_settled = True
            return
        publication.first_number = number
        buffers, count, size = departure
        self._send(UnconfirmedCommand(number, count, size, buffers, publication))

    def _send(self, kept: UnconfirmedCommand) -> None:
        self.next_number = kept.number + kept.count
        self._unconfirmed.append(kept)
        self._unconfirmed_bytes += kept.size
        if self.is_open and not self._unsent:
            self._output.extend(command_buffers(self.channel, kept.buffers, kept.size))
        else:
            self._unsent.append(kept)
            self._unsent_bytes += kept.size

    def suspend(self) -> None:
        """The connection is gone: numbers are still given, but nothing leaves."""
        self.is_open = False
        self.is_blocked = False

    def resume(self, generation: int, window_bytes: int) -> None:
        """The session goes on here: send everything without an outcome again (OBX5)."""
        self.generation = generation
        self.window_bytes = window_bytes
        self.is_open = True
        self._unsent = self._unconfirmed.copy()
        self._unsent_bytes = self._unconfirmed_bytes
        self.pump()

    def repeat(self, number: int, count: int, buffers: list[Buffer], tag: object) -> None:
        """Send a command that got its number elsewhere; the session was adopted for it."""
        self._is_adopted = True
        self.next_number = number
        renewed = [renew_header(buffers[0], self.generation, 0), *buffers[1:]]
        self._send(UnconfirmedCommand(number, count, sum(map(len, buffers)), renewed, tag))

    def _send_again(self) -> None:
        """Send again in the same windows as before: the server counts anew, and may have another measure."""
        while self._unsent and self.is_open:
            kept = self._unsent[0]
            on_the_way = self._unconfirmed_bytes - self._unsent_bytes
            if on_the_way and on_the_way + kept.size > self.window_bytes:
                return
            del self._unsent[0]
            self._unsent_bytes -= kept.size
            kept.buffers[0] = renew_header(kept.buffers[0], self.generation, self.confirmed_through)
            self._output.extend(command_buffers(self.channel, kept.buffers, kept.size))

    def confirm_oldest(self, item: ConfirmItem) -> Publication | None:
        """The oldest publication, if the item settles it and nothing else, which is the usual case; else
        None, and nothing has changed."""
        unconfirmed = self._unconfirmed
        if not unconfirmed or self._unsent:
            return None
        kept = unconfirmed[0]
        publication = kept.tag
        if (
            kept.number != item.number
            or kept.count != item.count
            or kept.open is not None
            or item.code == _TAKEN
            or not isinstance(publication, Publication)
        ):
            return None
        del unconfirmed[0]
        self._unconfirmed_bytes -= kept.size
        publication.is_settled = True
        publication.outcomes = [item]
        if unconfirmed:
            self._drop_settled()
        if self._waiting:
            self.pump()
        return publication

    def confirm(self, items: Iterable[ConfirmItem]) -> list[Settled]:
        """Take outcomes; report the commands that now have all of theirs, or are taken."""
        settled: list[Settled] = []
        for item in items:
            stop = item.number + item.count
            sent_stop = self._unsent[0].number if self._unsent else self.next_number
            if not 0 < item.number < stop <= sent_stop:
                raise ProtocolError(
                    f"numbers {item.number} to {stop - 1} on channel {self.channel!r} were confirmed, "
                    f"{sent_stop - 1} is the last that was sent"
                )
            for kept in self._unconfirmed:
                if kept.number >= stop:
                    break
                if kept.number + kept.count > item.number and not kept.is_settled:
                    if item.code == _TAKEN:
                        if kept.number >= item.number and kept.number + kept.count <= stop and kept.take():
                            taken = ConfirmItem(kept.number, kept.count, _TAKEN)
                            settled.append(Settled(kept.tag, [taken]))
                        continue
                    kept.note(item)
                    if kept.is_settled:
                        if isinstance(kept.tag, Publication):
                            kept.tag.is_settled = True
                            kept.tag.outcomes = kept.outcomes
                        settled.append(Settled(kept.tag, kept.outcomes))
            self._drop_settled()
        self.pump()
        return settled

    def _drop_settled(self) -> None:
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0].is_settled:
            self._unconfirmed_bytes -= unconfirmed.popleft().size

    def abandon(self) -> list[object]:
        """Forget everything; the tags of commands that were sent without an outcome, and of those that never
        left.

        A publication that has left keeps its bytes, to be sent again elsewhere.
        """
        unsettled = [kept for kept in self._unconfirmed if not kept.is_settled]
        for kept in unsettled:
            if isinstance(kept.tag, Publication):
                kept.tag.command = kept.buffers
        self._unconfirmed.clear()
        self._unsent.clear()
        self._unconfirmed_bytes = self._unsent_bytes = 0
        tags: list[object] = [kept.tag for kept in unsettled]
        tags += self._waiting
        self._waiting.clear()
        return tags
