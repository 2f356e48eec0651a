"""RangeReads: pages of the messages stored between two numbers, on any replica.

RRD1  A page has all messages kept of the wanted destinations from its start through the number it names.
      Numbers that were applied never gain messages: a second read has the same, less what has gone since.
RRD2  A page lists the messages trimmed at or above the start. Unless losses are allowed it has no others.
RRD3  A replica answers when it has applied the whole range and all that the client has heard of.
RRD4  A batch that is wanted whole is passed on as its bytes: no message is decoded.
RRD5  A page ends before a damaged record; a page that would begin with such a record waits for the mender.
RRD6  The bytes read in one flush and the number of waiting pages are bounded.
RRD7  A live read leaves out messages that are acknowledged and kept for a hold, and has redelivery counts.
RRD8  Browsing leaves out messages that are expired or not to be delivered yet, by log time as the replica
      knows it. Other reads have them, so that a second read has the same.

Browsing is an open live read: the range ends with the last number applied here.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heapreplace, merge
from typing import Final, NamedTuple

from antiphon.bus.effects import Send
from antiphon.bus.messages import RangeReply, RangeRequest
from antiphon.errors import ProtocolError
from antiphon.message_manager.questions import TOO_EARLY_NS, UNAVAILABLE, UNKNOWN, Key, keep_newest
from antiphon.message_manager.range_questions import NoSuchDestination, wanted
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.acknowledgements import read_acknowledged
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.ranges import Ranges
from antiphon.wire.range_frames import ACK_BYTES, LOSS_BYTES, PIECE_BYTES, RangeAck, RangeLoss, page_buffers

AT_ONCE_BYTES: Final = 4 << 20
"""Bytes read in one flush, about (RRD6)."""

AHEAD_MAX: Final = 64

PAGE_ACKS_MAX: Final = 2_048
"""Acknowledging commands in one page; most take less than a hundred bytes each."""

BROWSED_MAX: Final = 65_536
"""Messages with rules that are looked at for one page of browsing."""

RANGE_BYTES: Final = 16
"""Bytes of each range of numbers in an acknowledgement."""


class _Page(NamedTuple):
    request: RangeRequest
    since_ns: int

    @property
    def floor(self) -> int:
        return max(self.request.floor, self.request.stop - 1)


class RangeReads:
    """The pages that client managers wait for."""

    __slots__ = ("_held_up", "_pages", "_reader")

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self._pages: dict[Key, _Page] = {}
        # Pages that begin with a damaged record.
        self._held_up: dict[Key, _Page] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._pages)

    def ask(self, now_ns: int, sender: int, request: RangeRequest) -> None:
        key = sender, request.request
        if key not in self._held_up:
            self._pages.setdefault(key, _Page(request, now_ns))
            keep_newest(self._pages)

    def mended(self) -> None:
        """Retry the pages that waited for a damaged record."""
        self._pages.update(self._held_up)
        self._held_up.clear()

    def next_deadline_ns(self, now_ns: int, applied: int) -> int | None:
        deadlines = [
            now_ns if page.floor <= applied else page.since_ns + TOO_EARLY_NS for page in self._pages.values()
        ]
        return min(deadlines, default=None)

    def flush(self, now_ns: int, now_ms: int, state: ChannelState, *, is_primary: bool) -> list[Send]:
        """The pages that can be given now; the others wait."""
        given: list[Send] = []
        room = AT_ONCE_BYTES
        for key, page in list(self._pages.items()):
            if room <= 0:
                break
            request = page.request
            reply: RangeReply | None
            if page.floor > state.applied:
                if now_ns < page.since_ns + TOO_EARLY_NS:
                    continue
                del self._pages[key]
                if not is_primary:
                    continue  # another replica has been asked meanwhile
                text = (
                    f"the range goes up to number {request.stop - 1}, and {state.applied} is the last so far"
                )
                reply = RangeReply(request.request, [], UNAVAILABLE, text)
            else:
                del self._pages[key]
                reply = self._page(state, request, now_ms)
            if reply is None:
                self._held_up[key] = page
                keep_newest(self._held_up)
                continue
            room -= sum(map(len, reply.page))
            given.append(Send(key[0], reply))
        return given

    def _page(self, state: ChannelState, request: RangeRequest, now_ms: int) -> RangeReply | None:
        try:
            destinations = wanted(state, request.destinations)
        except NoSuchDestination as error:
            return RangeReply(request.request, [], UNKNOWN, str(error.id))
        is_browsing = not request.stop
        if is_browsing:
            stop = max(request.start, state.applied + 1)
            request = replace(request, stop=stop, goal=stop)
        losses = _losses(destinations, request)
        if losses and not request.allow_lost:
            return RangeReply(request.request, page_buffers(request.start - 1, 0, (), losses, ()))
        # Most of many destinations have nothing in the range.
        destinations = [one for one in destinations if one.last_stored >= request.start]
        shown = [one.live if request.live else one.stored for one in destinations]
        page_stop = request.stop
        if is_browsing:
            shown, page_stop = _browsable(destinations, shown, request, now_ms)
        try:
            acks, ack_stop = self._acknowledged(state, request) if request.acks else ([], page_stop)
            if ack_stop == request.start < request.stop:
                return None
            room = request.page_bytes - LOSS_BYTES * len(losses) - sum(map(_ack_size, acks))
            pieces, through, is_held_up = self._read(destinations, shown, request, ack_stop, room, acks)
        except ProtocolError as error:
            return RangeReply(
                request.request, [], UNAVAILABLE, f"a stored batch cannot be read: {error.text}"
            )
        if is_held_up and not pieces:
            return None
        acks = [ack for ack in acks if ack.number <= through]
        rows = sum(numbers.clip(request.start, through + 1).count for numbers in shown)
        ends = _ends(destinations, request, through) if request.ahead else []
        return RangeReply(request.request, page_buffers(through, rows, ends, losses, pieces, acks))

    def _acknowledged(self, state: ChannelState, request: RangeRequest) -> tuple[list[RangeAck], int]:
        """The acknowledgements of a page, and the number at which they make the page stop."""
        log, stop = state.holds.acknowledgements, request.stop
        some = log.stored.take_from(request.start, PAGE_ACKS_MAX)
        if some.count == PAGE_ACKS_MAX:
            stop = min(stop, some.last + 1)
        wanted_ids = frozenset(request.destinations)
        acks: list[RangeAck] = []
        room = request.page_bytes // 2  # the other half is for messages
        for number, place, told in log.between(request.start, stop):
            if place is not None:
                cut = self._reader.pass_on(log, number, number + 1)
                if cut is None:
                    return acks, number  # the record is being mended
                told = read_acknowledged(cut[1][0])
            time_ms = state.times.time_of(number)
            own = [RangeAck(number, time_ms, *one) for one in told if one.destination in wanted_ids]
            size = sum(map(_ack_size, own))
            if acks and (len(acks) + len(own) > PAGE_ACKS_MAX or size > room):
                return acks, number
            room -= size
            acks += own
        return acks, stop

    def _read(
        self,
        destinations: list[Destination],
        shown: list[Ranges],
        request: RangeRequest,
        stop: int,
        room: int,
        acks: list[RangeAck],
    ) -> tuple[list[tuple[int, int, int, int, list[bytes | memoryview]]], int, bool]:
        """The pieces, the number through which they go, and whether damage ended them.

        The destination with the lowest number has the next piece. A frame holds one batch of the largest size
        and little else: then `acks` go to another page.
        """
        first_ack = acks[0].number if acks else stop
        pieces: list[tuple[int, int, int, int, list[bytes | memoryview]]] = []
        heads = []
        for at, stored in enumerate(shown):
            first = stored.next_from(request.start)
            if first is not None and first < stop:
                heads.append((first, at))
        heapify(heads)
        while heads:
            first, at = heads[0]
            destination = destinations[at]
            run_stop = shown[at].run_stop(first)
            assert run_stop is not None, "a number that is stored is in a run of them"
            run_stop, redelivery_count = min(run_stop, stop), 0
            if request.live and destination.counts:
                redelivery_count, run_stop = destination.counts.run(first, run_stop)
            cut = self._reader.pass_on(destination, first, run_stop)
            if cut is None:
                return pieces, first - 1, True
            end, buffers = cut
            size = PIECE_BYTES + sum(map(len, buffers))
            if size > room and (pieces or first_ack < first):
                return pieces, first - 1, False
            pieces.append((destination.id, first, end - first, redelivery_count, buffers))
            if size > room and acks:
                return pieces, end - 1, False
            room -= size
            following = shown[at].next_from(end)
            if following is None or following >= stop:
                heappop(heads)
            else:
                heapreplace(heads, (following, at))
        return pieces, stop - 1, False


def _ack_size(ack: RangeAck) -> int:
    return ACK_BYTES + RANGE_BYTES * len(ack.numbers)


def _browsable(
    destinations: list[Destination], shown: list[Ranges], request: RangeRequest, now_ms: int
) -> tuple[list[Ranges], int]:
    """The messages that browsing shows (RRD8), and the number before which a page ends: times are many."""
    stop, found = request.stop, []
    for destination, numbers in zip(destinations, shown, strict=True):
        rules = destination.rules
        if rules:
            some = numbers.take_from(request.start, BROWSED_MAX)
            if some.count == BROWSED_MAX:
                stop = min(stop, some.last + 1)
            early = rules.deliver_at.numbers.intersection(some)
            early.remove_all(rules.deliver_at.due(early, now_ms))
            numbers = some.difference(early)
            for over in (rules.expires.due(numbers, now_ms), rules.lapsed):
                numbers = numbers.difference(over)
        found.append(numbers)
    return found, stop


def _losses(destinations: list[Destination], request: RangeRequest) -> list[RangeLoss]:
    """The trimmed part of the range; `since` has the number from which each destination counts (RRD2)."""
    losses = []
    for destination, since in zip(destinations, request.since, strict=True):
        first = max(request.start, since)
        if first < request.stop and destination.lost_through >= first:
            losses.append(RangeLoss(destination.id, first, min(destination.lost_through, request.stop - 1)))
    return losses


def _ends(destinations: list[Destination], request: RangeRequest, through: int) -> list[int]:
    """Where the next pages might end, by the stored sizes of batches, whether or not all rows are kept."""
    start, goal = request.ahead_from or through + 1, request.goal
    most = min(request.ahead, AHEAD_MAX)
    ends: list[int] = []
    weight = 0
    for first, size in merge(*[one.index.sizes(start, goal) for one in destinations]):
        size += PIECE_BYTES
        if weight and weight + size > request.page_bytes:
            ends.append(first)
            weight = 0
            if len(ends) == most:
                return ends
        weight += size
    if start < goal:
        ends.append(goal)
    return ends
