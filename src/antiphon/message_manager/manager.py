"""MessageManager: applies the committed commands of one channel, the same on every replica.

Where it sits
    client manager  ->  bus  ->  MESSAGE MANAGER  ->  delivery  ->  client manager

What it promises
    MMG1  The state is a function of the log: no clock, no chance, no place on a disk enters it. A replica
          that restores a checkpoint and applies the rest is equal to one that never stopped.
    MMG2  The primary announces `Applied`, with the outcome of every number behind `after` that was not done.
          A client manager that missed it asks, and any replica answers: outcomes are part of the state.
    MMG3  Consumers, credit and clocks exist at the primary only and end with its term.

What it leaves to others
    The bus hands over entries in order, once each, with payloads that are durable here. The client manager
    has checked that a batch decodes; here only its header is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from typing import Any, Final

from antiphon.bus.effects import Multicast, Send
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.messages import (
    Advertised,
    Applied,
    AppliedGet,
    BatchGet,
    BatchReply,
    BusMessage,
    Credits,
    DeliverAck,
    Entry,
    EntryKind,
    Query,
    RangeRequest,
    Register,
    SessionDetached,
    SessionDetachedHeard,
    Unregister,
)
from antiphon.bus.ports import Location, Payloads
from antiphon.bus.schema import Machine, not_for
from antiphon.errors import Damaged, FormatMismatch, Unreadable
from antiphon.message_manager.delivery.burials import Burials
from antiphon.message_manager.delivery.delivery import Delivery
from antiphon.message_manager.delivery.doubts import Doubts
from antiphon.message_manager.delivery.log_clock import LogClock
from antiphon.message_manager.delivery.matching import Matching
from antiphon.message_manager.delivery.primary import Primary
from antiphon.message_manager.delivery.proposals import Proposals, counted_return, expiry, removal, skipping
from antiphon.message_manager.effects import Effect
from antiphon.message_manager.fold import fold
from antiphon.message_manager.fold.destinations import place_of
from antiphon.message_manager.fold.sessions import producer_gone
from antiphon.message_manager.fold.turns import Channel
from antiphon.message_manager.mending import Mender
from antiphon.message_manager.questions import NotYet, Questions
from antiphon.message_manager.range_reads import RangeReads
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state.channel_state import ChannelState, Store
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.settings import channels_of
from antiphon.message_manager.state.sessions import NOBODY
from antiphon.names import LOG_TOPIC_NAME
from antiphon.wire.primitives import Buffer

__all__ = ["MessageManager", "MessageManagerSettings"]

_NS_PER_MS: Final = 1_000_000
_DATA: Final = int(EntryKind.DATA)

_COUNTS: Final = ("bytes", "published", "acknowledged", "expired", "dropped", "dead", "purged", "duplicates")
_LOAD_STEP: Final = 64 << 10

CONSUMERS_PAGE: Final = 1_000

_OF_BEFORE_MAX: Final = 256
"""Outcomes from before its claim that a new primary announces; the former primary may have announced them."""


class MessageManager:
    """One replica of a channel. `apply` folds, `receive` takes messages, `flush` returns effects."""

    def __init__(
        self,
        channel: str,
        node: int,
        payloads: Payloads,
        settings: MessageManagerSettings | None = None,
        replicas: tuple[int, ...] = (),
    ) -> None:
        self.channel = channel
        self.node = node
        self.settings = settings or MessageManagerSettings()
        self._channel = Channel(channel)
        self._log_clock = LogClock(self.settings.log_time_interval_ms)
        self._mender = Mender(payloads)
        self.reconfigure(replicas)
        self._reader = BatchReader(payloads, self.settings.batches_kept, self._mender.note)
        self._range_reads = RangeReads(self._reader)
        self._questions = Questions(
            {
                "destination": lambda asked: self.find(str(asked["name"])),
                "subscription": lambda asked: self.find_subscription(
                    asked["client_id"], asked["name"], is_durable=bool(asked["durable"])
                ),
                "placement": lambda asked: self.find_placement(str(asked["name"])),
                "session": lambda asked: self.find_session(int(asked["session"], 16)),
                "consumers": lambda asked: self.consumers_after(str(asked["after"])),
            }
        )
        # The number through which `Applied` was announced in this term.
        self._announced = 0
        self._announcements: list[Effect] = []
        # Client managers that missed announcements, and behind which number.
        self._asked: dict[int, int] = {}
        self._now_ns = 0
        self._opened: ChannelState | None = None
        # Reads a state from bytes; the simulator has readers that fail.
        self.read_state: Callable[[Buffer], ChannelState] = ChannelState.restore
        # The references to the records of a segment that is being emptied.
        self._referrers: dict[Location, list[tuple[Store, int]]] = {}
        self._referrers_of = 0

    def reconfigure(self, replicas: tuple[int, ...]) -> None:
        """Set the nodes that have replicas, this node among them."""
        self._mender.peers = tuple([replica for replica in replicas if replica != self.node])

    @property
    def state(self) -> ChannelState:
        return self._channel.state

    @property
    def primary(self) -> Primary | None:
        """The consumers and clocks of this node, while it is the primary by a claim of this life."""
        return self._channel.primary

    @property
    def applied(self) -> int:
        return self.state.applied

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def is_primary(self) -> bool:
        return self.primary is not None

    def log_time_at(self, now_ns: int) -> int:
        """Log time, as far as this replica knows it."""
        return max(self.state.log_time_ms, self._log_clock.now_ms(now_ns))

    @property
    def load(self) -> int:
        """A measure of the state's size: a destination counts like a mebibyte of messages.

        It goes in steps: a few events of nodes are no reason to place destinations otherwise.
        """
        return sum(self.live_bytes_by_segment().values()) // _LOAD_STEP * _LOAD_STEP + (
            (len(self.state.directory) - self._has_log_topic) << 20
        )

    @property
    def destination_count(self) -> int:
        """How many destinations have their first part here; the topic of events does not count."""
        return self.state.directory.count(self.channel) - self._has_log_topic

    @property
    def _has_log_topic(self) -> bool:
        return self.state.directory.named(LOG_TOPIC_NAME) is not None

    # -- applying the log --------------------------------------------------------

    def apply(
        self,
        now_ns: int,
        wall_ms: int,
        entry: Entry,
        payload: memoryview | None,
        location: Location | None,
    ) -> None:
        """Apply the next entry of the log; `flush` announces it.

        `payload` is None if it is lost for good and was declared void.
        """
        channel = self._channel
        state = channel.state
        assert entry.first == state.applied + 1, f"number {entry.first} follows {state.applied}"
        self._now_ns = now_ns
        kind = entry.kind
        if kind == _DATA:
            if payload is None or location is None:
                fold.apply_void(self._channel, entry)
            else:
                fold.apply(channel, entry, payload, location)
                if state.log_time_ms != self._log_clock.told_ms:
                    self._log_clock.told(now_ns, state.log_time_ms)
                if channel.primary is not None:
                    self._reader.applied(location, payload)
        elif kind == EntryKind.PRIMARY_CLAIM:
            self._on_primary_claim(entry)
        elif kind == EntryKind.PRODUCER_OPEN:
            producer_gone(self._channel, now_ns, OpenDetail.decode(entry.detail).pid, entry.first)
        elif kind == EntryKind.PRODUCER_FENCE:
            fence = FenceDetail.decode(entry.detail)
            if fence.term == state.term:
                producer_gone(self._channel, now_ns, fence.pid, fence.pe + 1, is_fenced=True)
        state.applied = entry.first + entry.count - 1
        outcomes = state.outcomes
        is_said = channel.primary is None or outcomes.last < entry.first
        if not is_said and outcomes.must_be_said(self._announced):
            # Outcomes may be forgotten within a step, before the announcement at its end.
            self._announce()

    def _announce(self) -> None:
        while self._announced < self.state.applied:
            applied = self._applied_after(self._announced)
            self._announced = applied.upto
            self._announcements.append(Multicast(applied))

    def _on_primary_claim(self, entry: Entry) -> None:
        state = self.state
        if entry.mid.pe <= state.term:
            return
        state.term = entry.mid.pe
        state.primary = entry.mid.pid
        # An open part ends with the term of the primary that took it.
        state.transactions.end_all_open()
        self._channel.primary = self._begin_term(state.applied) if state.primary == self.node else None

    def step_down(self) -> None:
        """Stop being the primary: a former life of this node made the claim."""
        self._channel.primary = None

    def _begin_term(self, claimed_after: int, installed_at: int = 0) -> Primary:
        state, settings, now_ns = self.state, self.settings, self._now_ns
        if state.log_time_ms != self._log_clock.told_ms:
            # The log time of a checkpoint that no entry has followed yet.
            self._log_clock.told(now_ns, state.log_time_ms)
        self._announced = state.outcomes.newest(_OF_BEFORE_MAX)
        self._announcements = []
        delivery = Delivery(
            term=state.term,
            claimed_after=claimed_after,
            reader=self._reader,
            directory=state.directory,
            settings=settings,
            registration_ns=settings.registration_wait_ms * _NS_PER_MS,
            owners={row.id: row.ownership for row in state.sessions if row.owner != NOBODY},
            absence_ns=settings.registration_wait_ms * _NS_PER_MS,
            locks=state.locks,
            channel=self.channel,
            installed_at=installed_at,
        )
        proposals = Proposals(
            term=state.term,
            now_ns=now_ns,
            session_expiry_ms=settings.session_expiry_ms,
            client_id_kept_ms=settings.client_id_kept_ms,
            log_time_interval_ms=settings.log_time_interval_ms,
            clock=self._log_clock,
        )
        proposals.due_ms = state.due_ms()
        for row in state.sessions:
            if row.owner == NOBODY:
                proposals.detached(now_ns, row)
        for claim in state.client_ids:
            if claim.is_lost:
                proposals.client_id_lost(claim)
        doubts = Doubts(state.transactions, settings)
        burials = Burials(self.channel, state, self._reader, delivery, settings)
        return Primary(
            term=state.term,
            delivery=delivery,
            proposals=proposals,
            doubts=doubts,
            burials=burials,
            matching=Matching(state.directory, state.term, settings.match_pause_ms * _NS_PER_MS),
        )

    def announced(self, now_ns: int, term: int) -> None:
        if self.primary is not None and self.primary.term == term:
            self.primary.delivery.announced(now_ns)

    # -- client managers ---------------------------------------------------------------

    def beaten(self, beat: int, answered: int) -> bool:
        primary = self._channel.primary
        return primary is not None and primary.delivery.beaten(beat, answered)

    @property
    def awaits_beat(self) -> bool:
        """Does a client manager wait until a quorum has answered a heartbeat?"""
        primary = self._channel.primary
        return primary is not None and primary.delivery.awaits_beat

    def receive(self, now_ns: int, sender: int, message: BusMessage) -> None:
        """Take a message; those for the primary are dropped elsewhere, and their senders repeat them."""
        self._now_ns = now_ns
        if isinstance(message, RangeRequest):
            self._range_reads.ask(now_ns, sender, message)
            return
        if isinstance(message, Query):
            if self.is_primary or message.anybody:
                self._questions.ask(now_ns, sender, message)
            return
        if isinstance(message, AppliedGet):
            self._asked[sender] = message.after
            return
        if isinstance(message, BatchGet):
            self._mender.ask(sender, message)
            return
        if isinstance(message, BatchReply):
            self._mender.take(sender, message)
            return
        if self.primary is None:
            return
        if isinstance(message, Register | SessionDetached | Credits) and message.floor > self.applied:
            # The client manager says it again. Its session would be taken for one that has ended, and a
            # message that was given back would be overtaken.
            return
        delivery, proposals = self.primary.delivery, self.primary.proposals
        match message:
            case DeliverAck():
                delivery.acknowledge(sender, message)
            case Credits():
                delivery.credit(sender, message)
            case Register():
                delivery.register(sender, message, self.state.sessions)
            case Unregister():
                delivery.unregister(sender, message)
            case SessionDetached():
                row = self.state.sessions.get(message.session)
                # A fenced client manager has its session again with the next command for it: a transaction's
                # decision may come after the client has gone. So it must go on telling.
                goes_on = (
                    row is not None
                    and row.generation == message.generation
                    and row.owner.pid in (sender, NOBODY.pid)
                )
                if row is not None and goes_on:
                    proposals.detached(now_ns, row)
                heard = SessionDetachedHeard(message.session, message.generation, self.term, not goes_on)
                delivery.answer(sender, heard)
            case _:
                not_for(Machine.MESSAGE_MANAGER, message)

    def flush(self, now_ns: int, wall_ms: int) -> list[Effect]:
        """Once per wake-up: the answers, and the primary's announcements and deliveries."""
        self._now_ns = now_ns
        primary, state = self._channel.primary, self._channel.state
        if self._mender.is_busy and self._mender.is_due(now_ns):
            # The damaged record may be needed no longer: its readers try again.
            self._go_on()
        effects: list[Effect] = []
        if self._questions.is_busy:
            effects += self._questions.flush(now_ns, state, is_primary=primary is not None)
        if self._range_reads.is_busy:
            now_ms = self.log_time_at(now_ns)
            effects += self._range_reads.flush(now_ns, now_ms, state, is_primary=primary is not None)
        if self._asked:
            effects += self._answer_asked()
        if primary is None:
            return [*effects, *self._mender.flush(now_ns, state)] if self._mender.is_busy else effects
        self._announce()
        if self._announcements:
            effects += self._announcements
            self._announcements = []
        if primary.placed:
            effects.append(Multicast(_advertised(primary)))
        delivery, proposals = primary.delivery, primary.proposals
        delivery.pass_time(self._log_clock.now_ms(now_ns))
        sends, returns = delivery.flush(now_ns, self.settings.flush_bytes_max)
        effects += sends
        effects += map(counted_return, returns)
        effects += [expiry(primary.term, expired) for expired in delivery.take_expired()]
        effects += [skipping(primary.term, unwanted) for unwanted in delivery.take_unwanted()]
        effects += [removal(primary.term, doubtful) for doubtful in delivery.take_doubtful()]
        proposals.waiting_ms = delivery.due_ms
        effects += proposals.flush(now_ns, wall_ms)
        effects += primary.doubts.flush(now_ns)
        effects += primary.burials.flush(now_ns, wall_ms)
        if state.directory.undecided.families:
            effects += primary.matching.flush(now_ns)
        # Behind the reading, which may have met with damage.
        return [*effects, *self._mender.flush(now_ns, state)] if self._mender.is_busy else effects

    def _answer_asked(self) -> list[Effect]:
        """A page of outcomes for each asker; one that is ahead of this replica has to ask another."""
        asked, self._asked = self._asked, {}
        return [
            Send(sender, self._applied_after(after))
            for sender, after in asked.items()
            if after < self.state.applied
        ]

    def _applied_after(self, after: int) -> Applied:
        state = self.state
        after, upto, exceptions = state.outcomes.page(after, state.applied)
        return Applied(state.term, upto, exceptions, after, state.outcomes.floor)

    def next_deadline_ns(self) -> int | None:
        state, primary = self._channel.state, self._channel.primary
        earliest = self._mender.next_deadline_ns(self._now_ns) if self._mender.is_busy else None
        if self._questions.is_busy:
            answer_ns = self._questions.next_deadline_ns(state.applied)
            if answer_ns is not None and (earliest is None or answer_ns < earliest):
                earliest = answer_ns
        if self._range_reads.is_busy:
            reading_ns = self._range_reads.next_deadline_ns(self._now_ns, state.applied)
            if reading_ns is not None and (earliest is None or reading_ns < earliest):
                earliest = reading_ns
        if primary is None:
            return earliest
        due_ms = primary.delivery.due_ms
        for deadline_ns in (
            primary.delivery.next_deadline_ns(self._now_ns),
            self._log_clock.moment(due_ms) if due_ms is not None and self._log_clock.has_time else None,
            primary.proposals.next_deadline_ns(),
            primary.doubts.next_deadline_ns(self._now_ns),
            primary.burials.next_deadline_ns(self._now_ns),
            primary.matching.next_deadline_ns(self._now_ns),
        ):
            if deadline_ns is not None and (earliest is None or deadline_ns < earliest):
                earliest = deadline_ns
        return earliest

    # -- checkpoints and space -----------------------------------------------------------

    def capture(self, n: int) -> tuple[bytes, bytes, tuple[int, ...]]:
        """The state after number n: its digest, its bytes, and the segments its messages lie in."""
        assert n == self.state.applied, f"a checkpoint at {n}, but {self.state.applied} is applied"
        self._reader.let_go()
        digest, data = self.state.capture()
        return digest, data, tuple(self.live_bytes_by_segment())

    def restore(self, data: bytes | memoryview) -> None:
        """Begin with a checkpoint instead of an empty channel; raises as `ChannelState.restore`."""
        self.begin(ChannelState.restore(data))

    def begin(self, state: ChannelState) -> None:
        """Begin with this state instead of an empty channel. The log will say which node is primary."""
        assert self.state.applied == 0, "a state is restored before anything is applied"
        self._channel.state = state

    def open_state(self, data: Buffer) -> tuple[bytes, tuple[Location, ...]]:
        """Read the state of another node and keep it aside; its digest, and the places of its records.

        An empty digest: the state cannot be read.
        """
        try:
            self._opened = self.read_state(data)
        except (FormatMismatch, Unreadable):
            self._opened = None
            return b"", ()
        return self._opened.digest(), self._opened.records()

    def move_state(self, moved: Mapping[Location, Location]) -> tuple[bytes, bytes, tuple[int, ...]]:
        """Point the opened state to its records in this journal; returns as `capture`, of that state."""
        assert self._opened is not None, "no state is open"
        self._opened.move_records(moved)
        digest, data = self._opened.capture()
        return digest, data, tuple(self._opened.directory.use.by_segment())

    def install_state(self, now_ns: int, n: int, term_served: int = 0, claimed_after: int = 0) -> None:
        """Replace the state by the opened one. Consumers are gone, and clocks begin anew.

        This node's claim may lie before n: then the node serves in the term of this state. Its claim follows
        number `claimed_after`.
        """
        opened, self._opened = self._opened, None
        assert opened is not None and opened.applied == n, f"the state after {n} is not the one that is open"
        assert n > self.state.applied, f"a state after {n} takes the place of one after {self.state.applied}"
        # A primary may have given out messages of the state that is replaced, in the same term.
        given_through = max(claimed_after, self.state.applied)
        self._now_ns = now_ns
        self._reader.let_go()
        self._mender.forget()
        self._referrers = {}
        self._channel.state = opened
        self._channel.primary = self._begin_term(given_through, n) if term_served == opened.term else None
        self._range_reads.mended()

    def drop_state(self) -> None:
        self._opened = None

    def live_bytes_by_segment(self) -> dict[int, int]:
        """Bytes of batches with a live message, by segment."""
        return self.state.directory.use.by_segment()

    def records_in(self, segment: int) -> list[Location]:
        """The records of a segment that must be kept, in their order.

        Call `relocated` for each of them once it has been copied.
        """
        self._referrers = {}
        self._referrers_of = self.state.transactions.uncommitted.generation
        for store in self.state.stores:
            if not store.index.row_count:
                continue
            for stored in store.index.rows_in(segment, store.stored):
                self._referrers.setdefault(stored.location, []).append((store, stored.first))
        return sorted(self._referrers)

    def relocated(self, old: Location, new: Location) -> None:
        """Note that a record was copied: its messages are read at the new place."""
        # A batch that was committed since has become a destination's, and lies where it lay.
        is_current = self._referrers_of == self.state.transactions.uncommitted.generation
        if old not in self._referrers or not is_current:
            self.records_in(old.segment)
        self._reader.let_go()
        for store, first in self._referrers.pop(old, []):
            store.index.move(first, old, new, store.stored)
        if self._mender.mended(old):
            self._go_on()

    def _go_on(self) -> None:
        self._range_reads.mended()
        if self.primary is not None:
            self.primary.delivery.mended()
            self.primary.burials.mended()

    def damaged(self, place: Location, error: Damaged) -> None:
        """Note a record that cannot be read; the mender asks another replica."""
        self._mender.note(place, error)

    # -- questions -------------------------------------------------------------------------

    def find(self, name: str) -> dict[str, Any] | None:
        """Look up a destination by `queue:orders`."""
        directory = self.state.directory
        found = directory.named(name)
        known = directory.family_named(name) if found is None else found
        if known is None:
            return None
        return {
            "destination": known.id,
            "name": known.name,
            "channel": self.channel,
            "settings_version": known.settings_version,
            "settings": known.settings,
        }

    def find_subscription(self, client_id: str, name: str, *, is_durable: bool) -> dict[str, Any] | None:
        """Look up a subscription, and its consumers, which only the primary knows, once it serves."""
        found = self.state.directory.subscription_named(client_id, name, is_durable=is_durable)
        if found is None:
            return None
        consumers = None
        if self.primary is not None:
            if self.primary.delivery.awaited:
                raise NotYet(f"channel {self.channel} has a new primary, which waits for its consumers")
            consumers = self.primary.delivery.consumers_of(found.id)
        return {
            "subscription": found.id,
            "destination": found.destination,
            "channel": self.channel,
            "topic": found.topic.name,
            "channels": channels_of(found.topic.settings),
            "consumers": consumers,
            "locked": found.id in self.state.locks,
        }

    def find_placement(self, name: str) -> dict[str, Any] | None:
        """Look up the channel of a destination; only the system channel knows them all."""
        channel = place_of(self._channel, name)
        return None if channel is None else {"channel": channel}

    def find_session(self, session: int) -> dict[str, Any] | None:
        row = self.state.sessions.get(session)
        return None if row is None else {"generation": row.generation, "last": row.last}

    def consumers_after(self, after: str) -> dict[str, Any] | None:
        """A page of consumers, by their places; only the primary knows them."""
        if self.primary is None:
            return None
        rows: list[dict[str, Any]] = []
        for place, consumer in self.primary.delivery.consumers_after(after):
            if len(rows) == CONSUMERS_PAGE:
                return {"rows": rows, "next": rows[-1]["place"]}
            destination = self.state.directory.consumable(consumer.destination)
            subscription = self.state.directory.subscription(consumer.subscription)
            session = self.state.sessions.get(consumer.session)
            rows.append(
                {
                    "place": place,
                    "destination": _name_of(destination),
                    "channel": self.channel,
                    "subscription": subscription.subscriber if subscription is not None else "",
                    "client_id": session.client_id if session is not None else "",
                    "user": session.user if session is not None else "",
                    "session": f"{consumer.session:032x}",
                    "client_manager": consumer.key.node,
                    "in_flight": consumer.in_flight.count,
                    "delivered": consumer.delivered,
                    "credit": max(0, consumer.credit_messages - consumer.delivered),
                }
            )
        return {"rows": rows, "next": None}

    def destinations(self) -> list[dict[str, Any]]:
        return [row for _, row in self.destinations_after(0)]

    def destinations_after(self, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """A row for each destination or family with a higher id; only the primary knows consumers and
        deliveries.
        """
        return merge(self._destination_rows(after), self._family_rows(after), key=lambda row: row[0])

    def _family_rows(self, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """A family stores and counts nothing by itself: its topics do."""
        delivery = self.primary.delivery if self.primary else None
        for family in self.state.directory.families:
            if family.id <= after:
                continue
            yield (
                family.id,
                {
                    "name": family.name,
                    "channel": self.channel,
                    "temporary": False,
                    "pattern": family.shown,
                    "topics": len(family.topics),
                    "messages": 0,
                    "in_flight": delivery.in_flight_count(family.id) if delivery else 0,
                    "consumers": delivery.consumer_count(family.id) if delivery else 0,
                    **dict.fromkeys(_COUNTS, 0),
                    "blocked": False,
                    "subscriptions": _subscriptions(family),
                },
            )

    def _destination_rows(self, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        delivery = self.primary.delivery if self.primary else None
        for destination in self.state.directory.after(after):
            yield (
                destination.id,
                {
                    "name": destination.name,
                    "channel": self.channel,
                    "channels": channels_of(destination.settings),
                    "temporary": destination.id in self.state.directory.temporaries,
                    "messages": destination.live.count,
                    "in_flight": delivery.in_flight_count(destination.id) if delivery else 0,
                    "consumers": delivery.consumer_count(destination.id) if delivery else 0,
                    **{name: getattr(destination, name) for name in _COUNTS},
                    "blocked": False,
                    "subscriptions": _subscriptions(destination),
                },
            )

    def status(self) -> dict[str, Any]:
        state = self.state
        return {
            "channel": self.channel,
            "applied": state.applied,
            "term": state.term,
            "primary": state.primary,
            "is_primary": self.is_primary,
            "log_time_ms": state.log_time_ms,
            "clock_difference_ms": self._log_clock.difference_ms if self.is_primary else None,
            "sessions": len(state.sessions),
            "destinations": state.directory.count(self.channel),
            "transactions": {
                "open": len(state.transactions.open),
                "prepared": len(state.transactions.prepared),
                "staged": len(state.transactions.staged),
                "unfinished": sum(1 for _ in state.transactions.unfinished()),
            },
        }


def _advertised(primary: Primary) -> Advertised:
    names, channels = zip(*primary.placed, strict=True)
    primary.placed.clear()
    return Advertised(names, channels)


def _name_of(destination: Destination | Family | None) -> str:
    if isinstance(destination, Family):
        return destination.shown
    return "" if destination is None else destination.name


def _subscriptions(destination: Destination | Family) -> list[dict[str, Any]]:
    if isinstance(destination, Queue):
        return []
    return [
        {
            "name": subscription.subscriber,
            "client_id": subscription.client_id,
            "durable": subscription.is_durable,
            "shared": subscription.is_shared,
            "backlog": subscription.backlog,
        }
        for subscription in destination.subscriptions.values()
    ]
