"""Holds: who keeps messages of a channel from going, and from which number on.

Where it sits
    hold fold  ->  HOLDS  ->  topics, queues, locks, the acknowledgement log

What it promises
    H1  It is a part of the state: the same on every replica, in its digest and in its checkpoints.
    H2  What a hold covers is kept from its position on. A topic does not trim it; a queue keeps what is
        acknowledged, where it can be read again. Nothing else is kept for it.
    H3  A position never moves back. A hold ends when it is released, and when its holder has not been
        heard of for its limit, by the channel's time: who is gone for good holds nothing for good.
    H4  Who consumes a queue has it alone: all its numbers are locked, so nobody else is given one, and nobody
        else's acknowledgement counts. It is refused while another has it, or a transaction is about to
        acknowledge something there.
    H5  What ended stays ended, whatever comes late: a word counts only if whoever said it had heard of the
        number where the present hold of this name began or, if there is none, of that where a hold of the
        channel was last ended. So one number is kept for all holds that are gone.

What it leaves to others
    What becomes of what was locked or acknowledged is told by the fold to the primary's delivery. Who may
    hold is the client manager's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import ProtocolError
from antiphon.ids import U64_MAX
from antiphon.message_manager.state.acknowledgements import AcknowledgementLog
from antiphon.message_manager.state.destinations.directory import Destination, Directory
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.ranges import Ranges
from antiphon.wire.holds import HELD_DESTINATIONS_MAX, HOLD_MS_MAX, HOLD_NAME_BYTES_MAX, Hold
from antiphon.wire.primitives import Reader, Writer

HOLDS_MAX: Final = 1_024
"""Holds of one channel."""

NOT_YET: Final = -1
"""Of what was said after the channel's time was last told: its time begins when it is told next."""

_END: Final = U64_MAX + 1


def everything() -> Ranges:
    """All numbers there can be."""
    return Ranges([(0, _END)])


@dataclass(slots=True)
class HoldRow:
    """One hold; `destinations` are ids, ascending, none for all of the channel."""

    name: str
    position: int
    limit_ms: int
    consumes: bool
    acks: bool
    destinations: tuple[int, ...]
    # The number of the command that began it.
    began: int
    renewed_ms: int = NOT_YET

    @property
    def until_ms(self) -> int:
        return self.renewed_ms + self.limit_ms

    def covers(self, destination: int) -> bool:
        return not self.destinations or destination in self.destinations


class Holds:
    """The holds of a channel, by name."""

    __slots__ = ("_audited", "_directory", "_locks", "acknowledgements", "ended", "is_audited", "rows")

    def __init__(self, directory: Directory, locks: dict[int, Ranges]) -> None:
        self._directory = directory
        self._locks = locks
        self.rows: dict[str, HoldRow] = {}
        # The number of the command by which a hold of this channel was last ended, whichever it was.
        self.ended = 0
        self.acknowledgements = AcknowledgementLog(directory.use)
        # Does anybody ask for acknowledgements? If so, for those of which destinations; None for all.
        self.is_audited = False
        self._audited: frozenset[int] | None = frozenset()

    # -- looking ---------------------------------------------------------------

    def consumer_of(self, queue: int) -> str | None:
        """The name of who has this queue for himself."""
        for row in self.rows.values():
            if row.consumes and row.destinations == (queue,):
                return row.name
        return None

    def audits(self, destination: int) -> bool:
        """Does somebody ask for the acknowledgements of this destination?"""
        return self.is_audited and (self._audited is None or destination in self._audited)

    def heard_floor(self, name: str) -> int:
        """Whoever says what he holds under this name must have heard of this number (H5)."""
        row = self.rows.get(name)
        return self.ended if row is None else row.began

    def why_not(self, wish: Hold, ids: tuple[int, ...], number: int) -> str | None:
        """Why command `number` cannot hold these destinations, all of which exist, if so."""
        known = self.rows.get(wish.name)
        size = len(wish.name.encode())
        if not 0 < size <= HOLD_NAME_BYTES_MAX:
            return f"the name of a hold has 1 to {HOLD_NAME_BYTES_MAX} bytes, not {size}"
        if not 0 < wish.limit_ms <= HOLD_MS_MAX:
            return f"a hold lasts 1 to {HOLD_MS_MAX:,} ms after its holder was last heard of"
        if wish.position > number:
            # Nobody can have read so far. A position of another cluster would keep nothing of what comes.
            return f"position {wish.position:,} lies beyond the end of the channel, which is {number:,}"
        if wish.heard >= number:
            return f"nobody can have heard of number {wish.heard:,} yet; the channel's end is {number:,}"
        if len(ids) > HELD_DESTINATIONS_MAX:
            return f"a hold names {HELD_DESTINATIONS_MAX:,} destinations at most"
        if known is None and len(self.rows) >= HOLDS_MAX:
            return f"there are {HOLDS_MAX:,} holds in this channel already"
        if known is not None and known.consumes != wish.consumes:
            return f"hold {wish.name} is of the other mode; release it first"
        return self._why_not_consume(wish.name, known, ids) if wish.consumes else None

    def _why_not_consume(self, name: str, known: HoldRow | None, ids: tuple[int, ...]) -> str | None:
        queue = self._directory.get(ids[0]) if len(ids) == 1 else None
        if not isinstance(queue, Queue):
            return "exactly one queue can be consumed under a name"
        if known is not None:
            return None if known.destinations == ids else f"{name} consumes another queue; release it first"
        other = self.consumer_of(queue.id)
        if other is not None:
            return f"{queue.name} is consumed by {other}"
        if self._locks.get(queue.id):
            return f"a transaction is about to acknowledge messages of {queue.name}"
        return None

    def reports(self, now_ms: int) -> list[dict[str, Any]]:
        """One row for each hold: how far it is, and how much is kept from there on."""
        return [self._report(row, now_ms) for _, row in sorted(self.rows.items())]

    def _report(self, row: HoldRow, now_ms: int) -> dict[str, Any]:
        lag = [_kept_from(destination, row.position) for destination in self._covered(row)]
        return {
            "name": row.name,
            "position": row.position,
            "rows": sum(rows for rows, _ in lag),
            "bytes": sum(size for _, size in lag),
            "age_ms": 0 if row.renewed_ms == NOT_YET else max(0, now_ms - row.renewed_ms),
            "limit_ms": row.limit_ms,
            "consume": row.consumes,
            "acks": row.acks,
            "destinations": [destination.name for destination in self._covered(row)]
            if row.destinations
            else None,
        }

    def _covered(self, row: HoldRow) -> Iterator[Destination]:
        if not row.destinations:
            yield from self._directory
            return
        for id in row.destinations:
            found = self._directory.get(id)
            if found is not None:
                yield found

    # -- changing --------------------------------------------------------------

    def hold(self, wish: Hold, ids: tuple[int, ...], number: int) -> Ranges:
        """Begin a hold or renew it, by command `number`; what of its queue has been consumed by that."""
        row = self.rows.get(wish.name)
        if row is None:
            row = HoldRow(wish.name, wish.position, wish.limit_ms, wish.consumes, wish.acks, ids, number)
            self.rows[wish.name] = row
            if wish.consumes:
                self._locks[ids[0]] = everything()
            self._apply()
            return Ranges()
        row.renewed_ms = NOT_YET
        row.limit_ms = wish.limit_ms
        if wish.position < row.position:
            # A word that comes late, or of a holder that begins where he was once before.
            return Ranges()
        before, row.position = row.position, wish.position
        row.acks, row.destinations = wish.acks, ids
        self._apply()
        return self._consume(row, before) if row.consumes else Ranges()

    def _consume(self, row: HoldRow, before: int) -> Ranges:
        """What the holder's position has just passed counts as acknowledged by him."""
        queue = self._directory.get(row.destinations[0])
        assert isinstance(queue, Queue), "only a queue can be consumed"
        passed = queue.live.clip(before, row.position)
        return queue.acknowledge(passed) if passed else passed

    def release(self, name: str, number: int) -> int | None:
        """End a hold, by command `number`; the id of the queue that anybody may consume again, if any."""
        # Also if there is none: its word may still be on its way.
        self.ended = number
        row = self.rows.pop(name, None)
        if row is None:
            return None
        self._apply()
        return self._unlock(row)

    def _unlock(self, row: HoldRow) -> int | None:
        if not row.consumes:
            return None
        del self._locks[row.destinations[0]]
        return row.destinations[0]

    def destination_made(self) -> None:
        """Holds of all of the channel cover a new one from the beginning."""
        if self.rows:
            self._apply()

    def destination_deleted(self, id: int, number: int) -> None:
        """By command `number`: nothing is left to hold. Who held nothing else holds nothing any more."""
        for row in list(self.rows.values()):
            if id not in row.destinations:
                continue
            if row.destinations == (id,):
                del self.rows[row.name]
                self.ended = number
                self._unlock(row)
            else:
                row.destinations = tuple([other for other in row.destinations if other != id])
        self._apply()

    def _apply(self) -> None:
        """The rows have changed: tell every destination, and let go of what nobody needs any more."""
        for destination, position in self._held_from():
            destination.hold_from(position)
        self._derive_audit()
        self.acknowledgements.trim()

    def _held_from(self) -> Iterator[tuple[Destination, int | None]]:
        """Every destination, and from which number on it is held."""
        everywhere: int | None = None
        lowest: dict[int, int] = {}
        for row in self.rows.values():
            if not row.destinations:
                everywhere = row.position if everywhere is None else min(everywhere, row.position)
            for id in row.destinations:
                lowest[id] = min(lowest.get(id, row.position), row.position)
        for destination in self._directory:
            position = lowest.get(destination.id, everywhere)
            if position is not None and everywhere is not None:
                position = min(position, everywhere)
            yield destination, position

    def _derive_audit(self) -> None:
        """Who asks for acknowledgements, and from which number on."""
        auditing = [row for row in self.rows.values() if row.acks]
        self.is_audited = bool(auditing)
        if all(row.destinations for row in auditing):
            self._audited = frozenset([id for row in auditing for id in row.destinations])
        else:
            self._audited = None
        self.acknowledgements.wanted_from = min((row.position for row in auditing), default=None)

    # -- time --------------------------------------------------------------------

    def time_passed(self, now_ms: int, number: int) -> list[int]:
        """The channel's time has moved on, by command `number`: holds of holders long gone end.

        The ids of queues that anybody may consume again.
        """
        ended = []
        for row in list(self.rows.values()):
            if row.renewed_ms == NOT_YET:
                row.renewed_ms = now_ms
            elif now_ms > row.until_ms:
                ended.append(row)
                del self.rows[row.name]
        if not ended:
            return []
        self.ended = number
        self._apply()
        return [id for row in ended if (id := self._unlock(row)) is not None]

    def due_ms(self) -> int | None:
        """When a hold ends; 0 if time must be told first."""
        return min(
            (0 if row.renewed_ms == NOT_YET else row.until_ms + 1 for row in self.rows.values()),
            default=None,
        )

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """What every replica agrees on."""
        writer.u64(self.ended)
        writer.count(len(self.rows))
        for _, row in sorted(self.rows.items()):
            writer.text(row.name)
            writer.u64(row.position)
            writer.u64(row.limit_ms)
            writer.u64(row.began)
            writer.bool_(row.consumes)
            writer.bool_(row.acks)
            writer.i64(row.renewed_ms)
            writer.count(len(row.destinations))
            for id in row.destinations:
                writer.u64(id)
        self.acknowledgements.write_logical(writer)

    def read_logical(self, reader: Reader) -> None:
        """The directory has been read before, but for where its bytes lie.

        What follows from the rows is derived anew. What was kept is kept: nothing is let go, and nothing that
        a capture wrote is refused.
        """
        self.ended = reader.u64()
        for _ in range(reader.count(2 + 8 + 8 + 8 + 1 + 1 + 8 + 4)):
            name, position, limit_ms, began = reader.text(), reader.u64(), reader.u64(), reader.u64()
            consumes, acks, renewed_ms = reader.bool_(), reader.bool_(), reader.i64()
            destinations = tuple([reader.u64() for _ in range(reader.count(8))])
            self.rows[name] = HoldRow(
                name, position, limit_ms, consumes, acks, destinations, began, renewed_ms
            )
            if consumes:
                if len(destinations) != 1:
                    raise ProtocolError("a hold that consumes something else than one queue")
                self._locks[destinations[0]] = everything()
        self.acknowledgements.read_logical(reader)
        for destination, held_from in self._held_from():
            destination.held_again(held_from)
        self._derive_audit()


def _kept_from(destination: Destination, position: int) -> tuple[int, int]:
    """How many messages are stored from there on, and how many bytes that is."""
    stored = destination.stored
    above = stored.clip(position, _END)
    if above.count * 2 > stored.count:
        # Weighing takes a step for every batch: weigh the lesser part.
        return above.count, destination.bytes - destination.index.weigh(stored.clip(0, position))
    return above.count, destination.index.weigh(above)
