"""ChannelState: the state of a channel after number `applied`, and its bytes.

A checkpoint holds two parts. The *logical* part is equal on all replicas, in one spelling: rows sorted by id,
integers of fixed width, no floats. Replicas compare its digest, which covers the history, too: every
destination has a running digest over its commands. The *places* are where this replica has the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final, TypeAlias

from antiphon.bus.ports import Location
from antiphon.errors import FormatMismatch, ProtocolError, Unreadable
from antiphon.message_manager.state.acknowledgements import ACKNOWLEDGEMENTS, AcknowledgementLog
from antiphon.message_manager.state.client_ids import ClientIds
from antiphon.message_manager.state.destinations.directory import (
    KIND_QUEUE,
    KIND_TOPIC,
    Destination,
    Directory,
)
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.placements import Placements
from antiphon.message_manager.state.destinations.queue import DIGEST_BYTES, Queue
from antiphon.message_manager.state.destinations.temporaries import Temporaries
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.holds import Holds
from antiphon.message_manager.state.known_ids import KnownIds
from antiphon.message_manager.state.log_times import LogTimes
from antiphon.message_manager.state.outcomes import Outcomes
from antiphon.message_manager.state.sessions import Session, Sessions
from antiphon.message_manager.state.transactions import Transactions
from antiphon.message_manager.state.uncommitted import Uncommitted
from antiphon.wire.primitives import Buffer, Reader, Writer

# The beginning of all versions, and this version.
_FAMILY: Final = b"AMS"
_MAGIC: Final = b"AMSE"
_HEAD = struct.Struct("<4sI")
_KIND_AND_SETTINGS = struct.Struct("<BI")

Store: TypeAlias = Destination | Uncommitted | AcknowledgementLog
"""A part of the state that refers to records in the journal."""


class ChannelState:
    __slots__ = (
        "applied",
        "client_ids",
        "directory",
        "holds",
        "known_ids",
        "locks",
        "log_time_ms",
        "outcomes",
        "placements",
        "primary",
        "sessions",
        "term",
        "times",
        "transactions",
    )

    def __init__(self) -> None:
        self.applied = 0
        self.term = 0
        self.primary = 0
        self.log_time_ms = 0
        self.times = LogTimes()
        self.sessions = Sessions()
        self.outcomes = Outcomes()
        self.directory = Directory()
        self.placements = Placements()
        self.known_ids = KnownIds()
        self.client_ids = ClientIds()
        self.transactions = Transactions(self.directory.use)
        # A step nearer than `transactions.locks`: every acknowledgement looks here.
        self.locks = self.transactions.locks
        self.holds = Holds(self.directory, self.locks)

    def due_ms(self) -> int | None:
        """The log time at which something becomes too old; 0 if log time must move first."""
        due = (
            self.directory.due_ms(),
            self.transactions.due_ms(),
            self.holds.due_ms(),
            self.known_ids.due_ms(),
        )
        return min((ms for ms in due if ms is not None), default=None)

    @property
    def stores(self) -> Iterator[Store]:
        yield from self.directory
        yield self.transactions.uncommitted
        yield self.holds.acknowledgements

    def store(self, id: int) -> Store | None:
        """A destination; the uncommitted batches under id 0; or the acknowledgement log."""
        if id == ACKNOWLEDGEMENTS:
            return self.holds.acknowledgements
        return self.directory.get(id) if id else self.transactions.uncommitted

    def digest(self) -> bytes:
        """BLAKE2b-16 over the logical part."""
        return _digest_of(self._logical())

    def capture(self) -> tuple[bytes, bytes]:
        """The digest and the bytes of a checkpoint."""
        logical = self._logical()
        writer = Writer()
        for destination in self.directory:
            destination.write_places(writer)
        self.transactions.write_places(writer)
        self.holds.acknowledgements.write_places(writer)
        head = _HEAD.pack(_MAGIC, len(logical))
        return _digest_of(logical), b"".join((head, logical, *writer.parts))

    def records(self) -> tuple[Location, ...]:
        """The places of the records that the state refers to, each once, in the order of the journal."""
        found = {place: None for store in self.stores for place in store.index.records()}
        return tuple(sorted(found))

    def move_records(self, moved: Mapping[Location, Location]) -> None:
        """Refer to copies in this node's journal: the state came from another node."""
        for store in self.stores:
            store.index.move_all(moved)

    def _logical(self) -> bytes:
        writer = Writer()
        writer.u64(self.applied)
        writer.u64(self.term)
        writer.u16(self.primary)
        writer.i64(self.log_time_ms)
        self.times.write(writer)
        writer.u64(self.directory.version)
        writer.count(len(self.sessions))
        for session in self.sessions:
            session.write(writer)
        self.outcomes.write(writer)
        # Each text of settings once: very many destinations may have the same.
        numbers: dict[str, int] = {}
        for destination in self.directory:
            numbers.setdefault(destination.settings, len(numbers))
        writer.count(len(numbers))
        for settings in numbers:
            writer.text(settings)
        writer.count(len(self.directory))
        for destination in self.directory:
            kind = KIND_TOPIC if isinstance(destination, Topic) else KIND_QUEUE
            writer.raw(_KIND_AND_SETTINGS.pack(kind, numbers[destination.settings]))
            destination.write_logical(writer)
        writer.count(self.directory.family_count)
        for family in self.directory.families:
            family.write(writer)
        self.directory.temporaries.write(writer)
        self.placements.write(writer)
        self.known_ids.write(writer)
        self.client_ids.write(writer)
        self.transactions.write_logical(writer)
        self.holds.write_logical(writer)
        return writer.join()

    @classmethod
    def restore(cls, data: Buffer) -> ChannelState:
        """The state that `capture` wrote.

        Raises `FormatMismatch` for the bytes of another version, and `Unreadable` for bytes of this version
        that do not decode: an older checkpoint may be better then.
        """
        view = memoryview(data)
        start = bytes(view[: len(_MAGIC)])
        if start.startswith(_FAMILY) and len(start) == len(_MAGIC) and start != _MAGIC:
            raise FormatMismatch(
                f"the state of the channel was written in format {start.decode(errors='replace')}, and this "
                f"version of Antiphon reads {_MAGIC.decode()}: nothing was changed; start the version that "
                "wrote it"
            )
        if len(view) < _HEAD.size or start != _MAGIC:
            raise Unreadable("the bytes are no state of a channel")
        _, logical_length = _HEAD.unpack_from(view)
        places = _HEAD.size + logical_length
        try:
            state = cls()
            state._read_logical(Reader(view[_HEAD.size : places]))
            state._read_places(Reader(view[places:]))
        except ProtocolError as error:
            raise Unreadable(f"the state of the channel does not read: {error.text}") from error
        except Exception as error:
            # A fault of the software must not cost more than the state that shows it.
            what = f"{type(error).__name__}: {error}"
            raise Unreadable(f"the state of the channel does not read: {what}") from error
        return state

    def _read_logical(self, reader: Reader) -> None:
        self.applied = reader.u64()
        self.term = reader.u64()
        self.primary = reader.u16()
        self.log_time_ms = reader.i64()
        self.times = LogTimes.read(reader)
        self.directory.version = reader.u64()
        for _ in range(reader.count(1)):
            self.sessions.add(Session.read(reader))
        self.outcomes = Outcomes.read(reader)
        settings = [reader.text() for _ in range(reader.count(2))]
        for _ in range(reader.count(_KIND_AND_SETTINGS.size)):
            kind, number = reader.numbers(_KIND_AND_SETTINGS)
            if number >= len(settings):
                raise ProtocolError(f"settings {number} of {len(settings)}")
            self.directory.add(self._read_destination(kind, settings[number], reader))
        topics = {topic.id: topic for topic in self.directory.topics}
        for _ in range(reader.count(8 + 2)):
            self.directory.add_family(Family.read(reader, topics))
        self.directory.temporaries = Temporaries.read(reader)
        self.placements = Placements.read(reader)
        self.known_ids = KnownIds.read(reader)
        self.client_ids = ClientIds.read(reader)
        self.transactions.read_logical(reader)
        self.holds.read_logical(reader)
        reader.finish()

    def _read_destination(self, kind: int, settings: str, reader: Reader) -> Destination:
        if kind == KIND_QUEUE:
            return Queue.read_logical(reader, settings, self.directory.use)
        if kind == KIND_TOPIC:
            directory = self.directory
            return Topic.read_logical(reader, settings, directory.use, directory.ages, directory.undecided)
        raise ProtocolError(f"a destination of kind {kind}")

    def _read_places(self, reader: Reader) -> None:
        for destination in self.directory:
            destination.read_places(reader, self.directory.use)
        self.transactions.read_places(reader, self.directory.use)
        self.holds.acknowledgements.read_places(reader, self.directory.use)
        reader.finish()


def _digest_of(logical: bytes) -> bytes:
    return blake2b(logical, digest_size=DIGEST_BYTES).digest()
