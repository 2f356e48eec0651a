"""Mender: fetches damaged records of this replica from another replica, while the channel runs.

MEN1  No damaged record is handed out. A reader in order stops before the record until it is mended.
MEN2  The mender asks one replica after the other until the record is here or no live message lies in it.
MEN3  An answer is accepted only if it verifies and is the envelope that was written here, by its digest.
MEN4  A node without other replicas stops, and names file and offset.

Replicas keep their records at different places. A stored batch has the same name on all of them, its
destination (0 if uncommitted) and first number, and came in the same envelope. A crash before the next
checkpoint brings the damaged place back, and the record is mended again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from antiphon.bus.effects import Alarm, CopyRecord, Mend, Send
from antiphon.bus.messages import BatchGet, BatchReply, Data, digest_of
from antiphon.bus.ports import Location, Payloads, identity_of
from antiphon.errors import Damaged
from antiphon.events import RECORD_DAMAGED, RECORD_MENDED
from antiphon.message_manager.state.channel_state import ChannelState

ASK_AGAIN_NS: Final = 200_000_000
ASKED_AT_ONCE: Final = 64
ANSWER_BYTES_MAX: Final = 1 << 20


class Mender:
    """The damaged records of one replica, and its answers about those of others."""

    __slots__ = ("_ask_at", "_asked", "_damaged", "_payloads", "_questions", "_said", "_turn", "peers")

    def __init__(self, payloads: Payloads, peers: tuple[int, ...] = ()) -> None:
        self._payloads = payloads
        self.peers = peers
        # The damaged places, each with the node whose copy is being written; 0 while there is no copy.
        self._damaged: dict[Location, int] = {}
        self._asked: dict[tuple[int, int], Location] = {}
        self._turn = 0
        self._ask_at = 0
        self._said: list[Alarm | Mend] = []
        self._questions: list[tuple[int, BatchGet]] = []

    def note(self, place: Location, error: Damaged) -> None:
        """Note a record that cannot be read; raises the error if there are no other replicas (MEN4)."""
        if not self.peers:
            raise error
        if place not in self._damaged:
            self._damaged[place] = 0
            self._ask_at = 0
            self._said.append(Alarm(RECORD_DAMAGED(problem=error.text)))

    def mended(self, place: Location) -> bool:
        """Note that a record has a new place; whether its old place was damaged."""
        giver = self._damaged.pop(place, None)
        if giver is None:
            return False
        mended = RECORD_MENDED(offset=place.offset, segment=place.segment, member=giver)
        self._said.append(Alarm(mended))
        return True

    def forget(self) -> None:
        """Drop everything: the state was replaced."""
        self._damaged.clear()
        self._asked.clear()

    @property
    def is_busy(self) -> bool:
        return bool(self._damaged or self._said or self._questions)

    def next_deadline_ns(self, now_ns: int) -> int | None:
        if self._said or self._questions:
            return now_ns
        return self._ask_at if self._damaged else None

    def is_due(self, now_ns: int) -> bool:
        return bool(self._damaged) and now_ns >= self._ask_at

    def flush(self, now_ns: int, state: ChannelState) -> list[Alarm | Mend | Send]:
        """Once per wake-up: alarms, answers, and the questions that are due."""
        answers = [self._answer(state, sender, asked) for sender, asked in self._questions]
        self._questions.clear()
        asked = self._ask(now_ns, state) if self.is_due(now_ns) else []
        said, self._said = self._said, []
        return [*said, *answers, *asked]

    # -- asking ------------------------------------------------------------------

    def _ask(self, now_ns: int, state: ChannelState) -> list[Send]:
        """Ask the next replica (MEN2), and drop the records without a live message."""
        self._ask_at = now_ns + ASK_AGAIN_NS
        named = dict(self._named(state))
        self._damaged = {place: giver for place, giver in self._damaged.items() if place in named}
        self._asked = dict(list(named.values())[:ASKED_AT_ONCE])
        if not self._asked or not self.peers:
            return []
        self._turn += 1
        destinations, firsts = zip(*self._asked, strict=True)
        return [Send(self.peers[self._turn % len(self.peers)], BatchGet(destinations, firsts))]

    def _named(self, state: ChannelState) -> Iterator[tuple[Location, tuple[tuple[int, int], Location]]]:
        """The damaged records, each named by a live batch in it."""
        segments = sorted({place.segment for place in self._damaged})
        for store in state.stores:
            for segment in segments:
                for batch in store.index.rows_in(segment, store.stored):
                    if batch.location in self._damaged:
                        yield batch.location, ((store.id, batch.first), batch.location)

    def take(self, sender: int, reply: BatchReply) -> None:
        """Have the records that another replica sent written anew."""
        for name, item in zip(zip(reply.destinations, reply.firsts, strict=False), reply.items, strict=False):
            place = self._asked.get(name)
            if place is not None and place in self._damaged and _is_what_it_was(place, item):
                del self._asked[name]
                self._damaged[place] = sender
                record = CopyRecord(item.mid, item.ts, item.count, item.digest, bytes(item.payload))
                self._said.append(Mend(place, record))

    # -- answering ---------------------------------------------------------------

    def ask(self, sender: int, asked: BatchGet) -> None:
        self._questions.append((sender, asked))

    def _answer(self, state: ChannelState, sender: int, asked: BatchGet) -> Send:
        destinations: list[int] = []
        firsts: list[int] = []
        items: list[Data] = []
        room = ANSWER_BYTES_MAX
        for destination, first in zip(asked.destinations, asked.firsts, strict=False):
            item = self._find(state, destination, first)
            if item is None:
                continue
            room -= len(item.payload)
            if items and room < 0:
                break
            destinations.append(destination)
            firsts.append(first)
            items.append(item)
        return Send(sender, BatchReply(tuple(destinations), tuple(firsts), tuple(items)))

    def _find(self, state: ChannelState, destination_id: int, first: int) -> Data | None:
        store = state.store(destination_id)
        batch = store.index.beginning_at(first, store.stored) if store is not None else None
        if batch is None:
            return None
        try:
            self._payloads.read(batch.location)
        except Damaged as error:
            self.note(batch.location, error)
            return None
        try:
            return Data(*self._payloads.record(batch.location))
        except Damaged:
            # A copy that is not yet written can be read, but not as a record.
            return None


def _is_what_it_was(place: Location, item: Data) -> bool:
    """Whether this envelope lay at this place (MEN3)."""
    if identity_of(item.digest) != place.identity or len(item.payload) != place.length:
        return False
    return digest_of(item.mid, item.ts, item.count, item.payload) == item.digest
