"""Holds: the names for which a channel keeps messages, each from a number on.

HOL1  Holds are a part of the state: the same on every replica, in its digest and its checkpoints.
HOL2  The destinations of a hold keep their messages from its position on. A topic does not trim them; a queue
      keeps acknowledged messages, to be read again.
HOL3  A position never moves back. A hold ends when released, or not renewed for its limit, in log time.
HOL4  A consuming hold has its queue alone: all numbers are locked, so no other consumer is given one, and no
      other acknowledgement counts. HOLD is refused while another hold consumes the queue, or a transaction is
      about to acknowledge messages there.
HOL5  A late HOLD does not revive an ended hold: the holder must have heard of the number at which the hold of
      this name began or, if there is none, at which a hold of the channel last ended.
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
NOT_YET: Final = -1
"""The limit of a hold counts from the next time that log time moves."""

_END: Final = U64_MAX + 1


def everything() -> Ranges:
    return Ranges([(0, _END)])


@dataclass(slots=True)
class HoldRow:
    """A hold; `destinations` are ids, ascending, none for all of the channel."""

    name: str
    position: int
    limit_ms: int
    consumes: bool
    acks: bool
    destinations: tuple[int, ...]
    # The number of the command that began the hold.
    began: int
    renewed_ms: int = NOT_YET

    @property
    def until_ms(self) -> int:
        return self.renewed_ms + self.limit_ms

    def covers(self, destination: int) -> bool:
        return not self.destinations or destination in self.destinations


class Holds:
    __slots__ = ("_audited", "_directory", "_locks", "acknowledgements", "ended", "is_audited", "rows")

    def __init__(self, directory: Directory, locks: dict[int, Ranges]) -> None:
        self._directory = directory
        self._locks = locks
        self.rows: dict[str, HoldRow] = {}
        # The number of the command by which a hold of this channel last ended.
        self.ended = 0
        self.acknowledgements = AcknowledgementLog(directory.use)
        # Whether holds ask for acknowledgements, and of which destinations; None for all.
        self.is_audited = False
        self._audited: frozenset[int] | None = frozenset()

    # -- looking ---------------------------------------------------------------

    def consumer_of(self, queue: int) -> str | None:
        """The name of the hold that consumes this queue."""
        for row in self.rows.values():
            if row.consumes and row.destinations == (queue,):
                return row.name
        return None

    def audits(self, destination: int) -> bool:
        return self.is_audited and (self._audited is None or destination in self._audited)

    def heard_floor(self, name: str) -> int:
        """The number of which the sender of a HOLD with this name must have heard (HOL5)."""
        row = self.rows.get(name)
        return self.ended if row is None else row.began

    def why_not(self, wish: Hold, ids: tuple[int, ...], number: int) -> str | None:
        """The reason why command `number` cannot hold these destinations, all of which exist."""
        known = self.rows.get(wish.name)
        size = len(wish.name.encode())
        if not 0 < size <= HOLD_NAME_BYTES_MAX:
            return f"the name of a hold has 1 to {HOLD_NAME_BYTES_MAX} bytes, not {size}"
        if not 0 < wish.limit_ms <= HOLD_MS_MAX:
            return f"a hold lasts 1 to {HOLD_MS_MAX:,} ms after its holder was last heard of"
        if wish.position > number:
            # A position of another cluster would keep none of the messages to come.
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
        """A row for each hold: its position, and how much is kept from there on."""
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
        """Begin or renew a hold by command `number`; returns the messages that were consumed by that."""
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
            # A late HOLD, or of a holder that begins again at an earlier position.
            return Ranges()
        before, row.position = row.position, wish.position
        row.acks, row.destinations = wish.acks, ids
        self._apply()
        return self._consume(row, before) if row.consumes else Ranges()

    def _consume(self, row: HoldRow, before: int) -> Ranges:
        """Acknowledge the messages that the position has passed."""
        queue = self._directory.get(row.destinations[0])
        assert isinstance(queue, Queue), "only a queue can be consumed"
        passed = queue.live.clip(before, row.position)
        return queue.acknowledge(passed) if passed else passed

    def release(self, name: str, number: int) -> int | None:
        """End a hold by command `number`; returns the id of the queue that it consumed."""
        # Also if there is no such hold: its HOLD may still be on its way.
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

    def destination_made(self, made: Destination) -> None:
        """Extend the holds of all destinations to a new one."""
        positions = [row.position for row in self.rows.values() if not row.destinations]
        if positions:
            made.hold_from(min(positions))

    def destination_deleted(self, id: int, number: int) -> None:
        """Take a deleted destination out of the holds; a hold without others ends."""
        named = [row for row in self.rows.values() if id in row.destinations]
        for row in named:
            if row.destinations == (id,):
                del self.rows[row.name]
                self.ended = number
                self._unlock(row)
            else:
                row.destinations = tuple([other for other in row.destinations if other != id])
        if named:
            self._apply()

    def _apply(self) -> None:
        """Tell every destination its position, and drop acknowledgements below the positions."""
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
        auditing = [row for row in self.rows.values() if row.acks]
        self.is_audited = bool(auditing)
        if all(row.destinations for row in auditing):
            self._audited = frozenset([id for row in auditing for id in row.destinations])
        else:
            self._audited = None
        self.acknowledgements.wanted_from = min((row.position for row in auditing), default=None)

    # -- time --------------------------------------------------------------------

    def time_passed(self, now_ms: int, number: int) -> list[int]:
        """End the holds that were not renewed; returns the ids of the queues that they consumed."""
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
        """The log time at which a hold ends; 0 if log time must move first."""
        return min(
            (0 if row.renewed_ms == NOT_YET else row.until_ms + 1 for row in self.rows.values()),
            default=None,
        )

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """The part that is equal on all replicas."""
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
        """Read the rows, after the directory; whatever follows from the rows is derived anew.

        Nothing that was kept is dropped, and nothing that `write_logical` wrote is refused.
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
    """The number and bytes of stored messages from a position on."""
    stored = destination.stored
    above = stored.clip(position, _END)
    if above.count * 2 > stored.count:
        # Weighing takes a step for every batch: weigh the lesser part.
        return above.count, destination.bytes - destination.index.weigh(stored.clip(0, position))
    return above.count, destination.index.weigh(above)
