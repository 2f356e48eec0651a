"""Round: puts the parcels given out at once into messages. The same rows for several consumers leave once.

RND1  In a round each consumer gets at most one parcel, so that grouping parcels keeps its order.
RND2  Parcels with the same rows are one message, for one client manager or for several.
RND3  The cost is for each piece of a batch, not for each message.
RND4  No message is larger than a frame may be.
"""

from __future__ import annotations

from antiphon.bus.effects import Multicast, Send
from antiphon.bus.messages import Deliver, Piece, Taker, Target
from antiphon.message_manager.delivery.dispatcher import Parcel
from antiphon.message_manager.delivery.streams import Rows, Sent, Stream, weight_of
from antiphon.message_manager.state.destinations.directory import Directory


class Round:
    """The parcels of the sources that had their turn."""

    __slots__ = ("_deliver_bytes_max", "_directory", "_groups", "_had_turn", "_term")

    def __init__(self, term: int, deliver_bytes_max: int, directory: Directory) -> None:
        self._term = term
        self._directory = directory
        self._deliver_bytes_max = deliver_bytes_max
        self._had_turn: set[int] = set()
        # Parcels that are equal but for their consumers, in the order of the first of each kind.
        self._groups: dict[object, list[Parcel]] = {}

    def had_turn(self, source: int) -> bool:
        return source in self._had_turn

    def add(self, source: int, parcels: list[Parcel], *, is_shared: bool) -> None:
        """Add the parcels of a source. If the source `is_shared`, another source may give the same rows."""
        self._had_turn.add(source)
        for parcel in parcels:
            consumer = parcel.consumer
            same = (consumer.destination, parcel.rows) if is_shared else consumer.key
            self._groups.setdefault(same, []).append(parcel)

    def end(self) -> list[Send | Multicast]:
        effects: list[Send | Multicast] = []
        for parcels in self._groups.values():
            self._wrap(parcels, effects)
            for parcel in parcels:
                _stream_of(parcel).given_bytes = 0
        self._groups.clear()
        self._had_turn.clear()
        return effects

    def _wrap(self, parcels: list[Parcel], effects: list[Send | Multicast]) -> None:
        pieces = parcels[0].pieces
        start = size = 0
        for at, piece in enumerate(pieces):
            piece_size = sum(map(len, piece.buffers))
            if at > start and size + piece_size > self._deliver_bytes_max:
                effects.append(self._send(parcels, start, at, size))
                start, size = at, 0
            size += piece_size
        effects.append(self._send(parcels, start, len(pieces), size))

    def _send(self, parcels: list[Parcel], start: int, stop: int, size: int) -> Send | Multicast:
        first = parcels[0]
        destination, pieces = first.consumer.destination, tuple(first.pieces[start:stop])
        messages_before = sum([piece.count for piece in first.pieces[:start]])
        bytes_through = sum(first.body_bytes[:stop])
        by_node: dict[int, tuple[Stream, list[Taker]]] = {}
        for parcel in parcels:
            stream = _stream_of(parcel)
            taker = Taker(
                parcel.consumer.key.consumer,
                parcel.first_delivery + messages_before,
                parcel.bytes_before + bytes_through,
            )
            by_node.setdefault(stream.node, (stream, []))[1].append(taker)
        rows = tuple(
            [
                Rows(*piece[:3], body_bytes, piece.offsets)
                for piece, body_bytes in zip(pieces, first.body_bytes[start:stop], strict=True)
            ]
        )
        targets = []
        for stream, listed in by_node.values():
            takers = tuple(listed)
            number = stream.put(Sent(weight_of(size), None, destination, takers, rows))
            targets.append(Target(stream.node, number, takers, stream.run))
        topics = topics_of(self._directory, destination, pieces)
        deliver = Deliver(self._term, destination, tuple(targets), pieces, topics)
        return Send(targets[0].node, deliver) if len(targets) == 1 else Multicast(deliver)


def topics_of(directory: Directory, destination: int, pieces: tuple[Piece, ...]) -> tuple[str, ...]:
    """The names of the topics of the pieces, if the destination is a family."""
    family = directory.family(destination)
    if family is None:
        return ()
    return tuple([family.topic_of(piece.first_sequence).name for piece in pieces])


def _stream_of(parcel: Parcel) -> Stream:
    stream = parcel.consumer.stream
    assert stream is not None, "a consumer was attached without a stream"
    return stream
