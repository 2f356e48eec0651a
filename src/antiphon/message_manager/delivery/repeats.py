"""Repeats: what client managers miss of their streams is read again, and sent under the same numbers.

A number of a stream that was lost is known by its takers and its rows (`Sent`), not by its bytes. What all
its takers still hold of the rows is read once more; what only some of them hold goes back to the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from antiphon.bus.effects import Send
from antiphon.bus.messages import Deliver, Piece, Taker, Target
from antiphon.errors import ProtocolError
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.delivery.streams import DeliveryStreams, Rows, Sent, Stream
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.ranges import Ranges

_WHOLE: Final = 1 << 62


class Repeats:
    """Sends again, over the consumers and dispatchers of one term; `stir` is told who can go on."""

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
        """What client managers miss, within so many bytes; how many bytes of bodies that is."""
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
            # It is being mended; whoever misses it will say so again.
            return 0
        before, count = sum([rows.body_bytes for rows in sent.rows]), _count_of(sent.rows)
        pieces, sent.rows = read
        spent = sum([rows.body_bytes for rows in sent.rows])
        if _count_of(sent.rows) < count:
            # They have the last of the numbers: what the client counts on from there is then what we count.
            left = [(rows.first, rows.count) for rows in sent.rows]
            sent.takers = tuple(
                [
                    taker._replace(first_delivery=consumer.give_fewer(taker.first_delivery, count, left))
                    for taker, consumer in here
                ]
            )
        if spent < before:
            self._refund(stream.node, sent.takers, before - spent)
        target = Target(stream.node, number, sent.takers, stream.run)
        sends.append(Send(stream.node, Deliver(self._term, sent.destination, (target,), pieces)))
        return spent

    def _read_again(
        self, sent: Sent, holders: list[Consumer]
    ) -> tuple[tuple[Piece, ...], tuple[Rows, ...]] | None:
        """What all of these still hold of rows that were sent once; None if it cannot be read just now.

        Nothing is left when nobody is. The number must come all the same. What only some of them hold,
        because a late acknowledgement came for the others, these get anew.
        """
        destination = self._directory.get(sent.destination)
        pieces: list[Piece] = []
        read: list[Rows] = []
        for first, count, redelivery_count, _ in sent.rows if destination is not None else ():
            assert destination is not None, "of a destination that is gone nothing is left"
            left = self._held_by_all(holders, first, first + count)
            for start, stop in left.intersection(destination.live):
                while start < stop:
                    try:
                        cut = self._reader.cut(destination, start, stop, _WHOLE)
                    except ProtocolError:
                        break
                    if cut is None:
                        return None
                    pieces.append(cut.piece._replace(redelivery_count=redelivery_count))
                    read.append(Rows(start, cut.stop - start, redelivery_count, cut.body_bytes))
                    start = cut.stop
        return tuple(pieces), tuple(read)

    def _held_by_all(self, holders: list[Consumer], start: int, stop: int) -> Ranges:
        held = [consumer.in_flight.clip(start, stop) for consumer in holders]
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
        """These will never get so many bytes of what they were given: they are not to count."""
        for taker in takers:
            consumer = self._consumers[ConsumerKey(node, taker.consumer)]
            consumer.delivered_bytes -= size
            dispatcher = self._dispatchers[consumer.source]
            dispatcher.look_at_credit(consumer)
            self._stir(dispatcher)


def _count_of(rows: tuple[Rows, ...]) -> int:
    return sum([one.count for one in rows])
