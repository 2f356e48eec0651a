"""Repeats: sends the numbers of streams again that client managers miss.

A lost number is known by its takers and rows (`Sent`), not by its bytes. Rows that all takers still hold are
read once more; rows that only some of them hold go back to the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from antiphon.bus.effects import Send
from antiphon.bus.messages import Deliver, Piece, Taker, Target, sequences_of
from antiphon.errors import ProtocolError
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.delivery.rounds import topics_of
from antiphon.message_manager.delivery.streams import DeliveryStreams, Rows, Sent, Stream
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.ranges import Ranges

_WHOLE: Final = 1 << 62


class Repeats:
    """Repeats the numbers of all streams of one term; `stir` is called for dispatchers that can go on."""

    __slots__ = ("_consumers", "_directory", "_dispatchers", "_reader", "_stir", "_streams", "_term")

    def __init__(
        self,
        *,
        term: int,
        directory: Directory,
        reader: BatchReader,
        streams: DeliveryStreams,
        consumers: Mapping[ConsumerKey, Consumer],
        dispatchers: Mapping[int, Dispatcher],
        stir: Callable[[Dispatcher], None],
    ) -> None:
        self._term = term
        self._directory = directory
        self._reader = reader
        self._streams = streams
        self._consumers = consumers
        self._dispatchers = dispatchers
        self._stir = stir

    def flush(self, bytes_max: int) -> tuple[list[Send], int]:
        sends: list[Send] = []
        spent = 0
        for stream in self._streams:
            while stream.again and spent < bytes_max:
                number = next(iter(stream.again))
                del stream.again[number]
                sent = stream.find(number)
                if sent is not None:
                    spent += self._send_again(stream, number, sent, sends)
        return sends, spent

    def _send_again(self, stream: Stream, number: int, sent: Sent, sends: list[Send]) -> int:
        if sent.message is not None:
            sends.append(Send(stream.node, sent.message))
            return 0
        takers = [
            (taker, self._consumers.get(ConsumerKey(stream.node, taker.consumer))) for taker in sent.takers
        ]
        here = [(taker, one) for taker, one in takers if one is not None and not one.is_away]
        sent.takers = tuple([taker for taker, _ in here])
        read = self._read_again(sent, [consumer for _, consumer in here])
        if read is None:
            # The record is being mended; the client manager will ask again.
            return 0
        before, count = sum([rows.body_bytes for rows in sent.rows]), _count_of(sent.rows)
        pieces, sent.rows = read
        spent = sum([rows.body_bytes for rows in sent.rows])
        if _count_of(sent.rows) < count:
            # The rows get the last of the numbers, so that client and primary count on alike from there.
            left = [(start, stop - start) for rows in sent.rows for start, stop in _numbers_of(rows)]
            sent.takers = tuple(
                [
                    taker._replace(first_delivery=consumer.give_fewer(taker.first_delivery, count, left))
                    for taker, consumer in here
                ]
            )
        if spent < before:
            self._refund(stream.node, sent.takers, before - spent)
        target = Target(stream.node, number, sent.takers, stream.run)
        topics = topics_of(self._directory, sent.destination, pieces)
        sends.append(Send(stream.node, Deliver(self._term, sent.destination, (target,), pieces, topics)))
        return spent

    def _read_again(
        self, sent: Sent, holders: list[Consumer]
    ) -> tuple[tuple[Piece, ...], tuple[Rows, ...]] | None:
        """The rows that all holders still hold; None if a record is damaged.

        With no rows left the number is sent all the same. Rows that a late acknowledgement took from one of
        the holders are given out anew to the others.
        """
        destination = self._directory.consumable(sent.destination)
        pieces: list[Piece] = []
        read: list[Rows] = []
        for rows in sent.rows if destination is not None else ():
            assert destination is not None, "of a destination that is gone nothing is left"
            left = self._held_by_all(holders, _numbers_of(rows)).intersection(destination.live)
            while left:
                try:
                    cut = self._reader.cut(destination, left.first, left.last + 1, _WHOLE, among=left)
                except ProtocolError:
                    left.remove(left.first, destination.index.find(left.first).stop)
                    continue
                if cut is None:
                    return None
                piece = cut.piece._replace(redelivery_count=rows.redelivery_count)
                pieces.append(piece)
                read.append(Rows(*piece[:3], cut.body_bytes, piece.offsets))
                left.remove(left.first, cut.stop)
        return tuple(pieces), tuple(read)

    def _held_by_all(self, holders: list[Consumer], numbers: Ranges) -> Ranges:
        held = [consumer.in_flight.intersection(numbers) for consumer in holders]
        common = held[0] if held else Ranges()
        for one in held[1:]:
            common = common.intersection(one)
        for consumer, one in zip(holders, held, strict=True):
            if one != common:
                dispatcher = self._dispatchers[consumer.source]
                dispatcher.take_back(consumer, one.difference(common))
                self._stir(dispatcher)
        return common

    def _refund(self, node: int, takers: tuple[Taker, ...], size: int) -> None:
        """Give back the credit for bytes that do not come."""
        for taker in takers:
            consumer = self._consumers[ConsumerKey(node, taker.consumer)]
            consumer.delivered_bytes -= size
            dispatcher = self._dispatchers[consumer.source]
            dispatcher.look_at_credit(consumer)
            self._stir(dispatcher)


def _numbers_of(rows: Rows) -> Ranges:
    if not rows.offsets:
        return Ranges([(rows.first, rows.first + rows.count)])
    return Ranges.of_numbers(sequences_of(rows.first, rows.count, rows.offsets))


def _count_of(rows: tuple[Rows, ...]) -> int:
    return sum([one.count for one in rows])
