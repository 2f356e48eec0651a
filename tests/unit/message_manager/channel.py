"""A channel written by hand: numbers envelopes, keeps their bytes, and shows both to replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.batch import Batch, BatchBuilder
from antiphon.bus.effects import Multicast, Send
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.messages import (
    NO_DIGEST,
    Applied,
    BusMessage,
    ConsumerCredit,
    ConsumerEnded,
    Credits,
    Deliver,
    DeliverAck,
    Entry,
    EntryKind,
    Register,
    Registered,
    SessionDetached,
    Unregister,
    digest_of,
)
from antiphon.bus.ports import Location, identity_of
from antiphon.ids import Mid, make_epoch
from antiphon.message_manager.effects import Effect, Propose
from antiphon.message_manager.manager import MessageManager, MessageManagerSettings
from antiphon.message_manager.state.sessions import NOBODY
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    NODE_SESSION,
    Acknowledge,
    CloseSession,
    CommandKind,
    CreateDestination,
    CreateTemporary,
    DeleteDestination,
    ExpireSession,
    LogTime,
    OpenSession,
    Outcome,
    Payload,
    Publish,
    ResumeSession,
    Return,
    StartKind,
    Subscribe,
    Unsubscribe,
    count_of,
    encode_command,
    kind_of,
)
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.transactions import (
    TRANSACTED_NUMBER,
    CommitTransaction,
    Consumed,
    DecideTransaction,
    DropStaged,
    FinishTransaction,
    ForgetTransaction,
    Participant,
    PrepareTransaction,
    ResolveTransaction,
    RollBackTransaction,
    StagedPublish,
    TransactedPublish,
)

NODE = 1
CM = 1
SECOND_NS = 1_000_000_000
SESSION = 0xA1
AT_ONCE = MessageManagerSettings(registration_wait_ms=0)


class MemoryPayloads:
    """Where a replica finds the bytes: by segment and offset, a few records to a segment."""

    # What all envelopes have in common here, besides their payload.
    HEAD = (Mid(7, 1, 1), 3, 1)

    def __init__(self, records_per_segment: int = 4) -> None:
        self.records: dict[tuple[int, int], bytes] = {}
        self.reads = 0
        self._per_segment = records_per_segment
        self._next = (1, 0)

    @property
    def segment(self) -> int:
        """Where the next record goes."""
        return self._next[0]

    def keep(self, payload: bytes) -> Location:
        segment, offset = self._next
        self.records[self._next] = payload
        offset += len(payload) + 64
        self._next = (segment, offset)
        if len(self.records) % self._per_segment == 0:
            self._next = (segment + 1, 0)
        identity = identity_of(digest_of(*self.HEAD, payload))
        return Location(segment, self._last_offset(segment), len(payload), identity)

    def _last_offset(self, segment: int) -> int:
        return max(offset for where, offset in self.records if where == segment)

    def read(self, location: Location) -> memoryview:
        self.reads += 1
        payload = self.records[location.segment, location.offset]
        assert len(payload) == location.length
        return memoryview(payload)

    def has(self, mid: Mid) -> bool:
        raise AssertionError("the message manager knows places, not ids")

    def locate(self, mid: Mid) -> Location | None:
        raise AssertionError("the message manager knows places, not ids")

    def place(self, mid: Mid, first: int, count: int) -> Location:
        raise AssertionError("the message manager places nothing")

    def discard(self, mid: Mid) -> None:
        raise AssertionError("the message manager discards nothing")


class Channel:
    """One log and one replica that applies it; further replicas can be made to follow it."""

    def __init__(
        self,
        settings: MessageManagerSettings = AT_ONCE,
        *,
        node: int = NODE,
        records_per_segment: int = 4,
        begin: bool = True,
    ) -> None:
        self.now_ns = 0
        self.wall_ms = 1_000
        self.log: list[tuple[Entry, bytes | None]] = []
        self.next = 1
        self.payloads = MemoryPayloads(records_per_segment)
        self.settings = settings
        self.manager = MessageManager("main", node, self.payloads, settings)
        self._runs: dict[int, tuple[int, int]] = {}
        self._counter = 0
        self._credits = 0
        if begin:
            self.claim(node)
            self.open_producer(CM)

    @property
    def heard(self) -> int:
        """What a client has heard of that knows everything."""
        return self.next - 1

    # -- writing the log -----------------------------------------------------------

    def _append(
        self, kind: EntryKind, mid: Mid, count: int, payload: bytes | None, detail: bytes = b""
    ) -> int:
        digest = digest_of(mid, 0, count, payload) if payload is not None else NO_DIGEST
        entry = Entry(self.next, count, kind, mid, 0, digest, detail)
        self.next += count
        self.log.append((entry, payload))
        Client.heard = self.heard
        show(self.manager, self.payloads, entry, payload, self.now_ns, self.wall_ms)
        return entry.first

    def claim(self, node: int, *, is_announced: bool = True) -> int:
        self._counter += 1
        epoch = make_epoch(self._counter, node)
        self._append(EntryKind.PRIMARY_CLAIM, Mid(node, epoch, 0), 1, None)
        if is_announced:
            self.manager.announced(self.now_ns, epoch)
        return epoch

    def open_producer(self, pid: int) -> None:
        detail = OpenDetail(pid, bytes(16)).encode()
        pe = self._append(EntryKind.PRODUCER_OPEN, Mid(NODE, 0, 0), 1, None, detail)
        self._runs[pid] = (pe, 0)

    def fence(self, pid: int, term: int) -> None:
        detail = FenceDetail(pid, self._runs[pid][0], term).encode()
        self._append(EntryKind.PRODUCER_FENCE, Mid(NODE, 0, 0), 1, None, detail)

    def mark(self) -> int:
        return self._append(EntryKind.CHECKPOINT_MARK, Mid(NODE, 0, 0), 1, None)

    def order(self, *commands: bytes, pid: int = CM, count: int | None = None) -> int:
        """One envelope with these commands; the number of the first."""
        if pid not in self._runs:
            self.open_producer(pid)
        pe, pseq = self._runs[pid]
        self._runs[pid] = (pe, pseq + 1)
        payload = b"".join(commands)
        return self._append(
            EntryKind.DATA,
            Mid(pid, pe, pseq + 1),
            count_of(payload) if count is None else count,
            payload,
        )

    def outcome(self, *commands: bytes, pid: int = CM) -> Outcome | None:
        """Order these; what is told of the last of them, None if it did what it asked."""
        self.order(*commands, pid=pid)
        before = self.manager.applied - count_of(commands[-1])
        _, _, rows = self.manager.state.outcomes.page(before, self.manager.applied)
        return rows[-1] if rows else None

    def order_proposals(self, effects: Iterable[Effect]) -> int:
        proposals = [effect for effect in effects if isinstance(effect, Propose)]
        for proposal in proposals:
            self.order(proposal.command)
        return len(proposals)

    def create(self, name: str, kind: int = 1, settings: str = "{}") -> int:
        return self.order(of_node(CreateDestination(kind=kind, name=name, settings=settings)))

    def create_topic(self, name: str, settings: str = "{}") -> int:
        return self.create(name, kind=2, settings=settings)

    def expiry(self, session: int = SESSION, generation: int = 1, term: int | None = None) -> bytes:
        """The end of a session, as the primary would propose it now."""
        row = self.manager.state.sessions.get(session)
        pid, pe = NOBODY if row is None else row.owner
        term = self.manager.term if term is None else term
        expire = ExpireSession(session=session, generation=generation, pid=pid, pe=pe, term=term)
        return of_node(expire)

    def pass_time(self, ms: int) -> None:
        """Let the channel's time move on, as its primary would."""
        self.wall_ms += ms
        self.now_ns += ms * 1_000_000
        self.order(of_node(LogTime(time_ms=self.wall_ms, term=self.manager.term)))

    # -- the other side --------------------------------------------------------------

    def say(self, message: BusMessage, sender: int = CM) -> None:
        self.manager.receive(self.now_ns, sender, message)

    def flush(self) -> list[Effect]:
        return self.manager.flush(self.now_ns, self.wall_ms)

    def lose(self, count: int) -> int:
        """The next envelope is applied without its payload; returns its first number."""
        pe, pseq = self._runs[CM]
        self._runs[CM] = (pe, pseq + 1)
        return self._append(EntryKind.DATA, Mid(CM, pe, pseq + 1), count, None)

    def exceptions(self) -> list[Outcome]:
        """What the primary has to tell of everything since the last flush."""
        return [outcome for applied in applied_of(self.flush()) for outcome in applied.exceptions]

    def register(
        self,
        consumer: int,
        destination: int,
        credit: int = 1_000,
        *,
        session: int = SESSION,
        generation: int = 1,
        credit_bytes: int = 1 << 40,
        held: Ranges | None = None,
        sender: int = CM,
        subscription: int = 0,
        floor: int = 0,
        selector: str = "",
    ) -> None:
        self.say(
            Register(
                consumer=consumer,
                session=session,
                generation=generation,
                destination=destination,
                subscription=subscription,
                selector=selector,
                credit_messages=credit,
                credit_bytes=credit_bytes,
                held=held or Ranges(),
                number=consumer,
                term=self.manager.term,
                floor=floor,
            ),
            sender,
        )

    def credit(
        self,
        consumer: int,
        messages: int,
        bytes: int = 1 << 40,
        sender: int = CM,
        *,
        drains: bool = False,
        floor: int = 0,
    ) -> None:
        run, _ = self._runs[sender]
        self._credits += 1
        items = (ConsumerCredit(consumer, messages, bytes, drains),)
        self.say(Credits(self.manager.term, self._credits, items, run, floor=floor), sender)

    def acknowledge(self, upto: int, *missing: tuple[int, int], sender: int = CM) -> None:
        """Its client manager has taken what came up to there, and knows that of the rest this is missing."""
        run, _ = self._runs[sender]
        self.say(DeliverAck(self.manager.term, upto, Ranges(missing), run), sender)

    def unregister(self, consumer: int, seen_through: int, sender: int = CM) -> None:
        self.say(Unregister(consumer, seen_through, term=self.manager.term), sender)

    def lose_client(self, session: int = SESSION, generation: int = 1, floor: int = 0) -> None:
        self.say(SessionDetached(session, generation, floor))

    # -- bytes elsewhere -----------------------------------------------------------

    def move(self, which: int) -> None:
        """A segment is emptied: its records are copied elsewhere, and leave no trace in the state."""
        manager, payloads = self.manager, self.payloads
        sealed = [segment for segment in manager.live_bytes_by_segment() if segment != payloads.segment]
        if sealed:
            segment = sealed[which % len(sealed)]
            for old in manager.records_in(segment):
                manager.relocated(old, payloads.keep(payloads.records[old.segment, old.offset]))
            assert segment not in manager.live_bytes_by_segment()

    def replica(self, state: bytes | None = None, after: int = 0) -> MessageManager:
        """Another node that applies the log, or goes on from a state, and keeps the bytes elsewhere."""
        payloads = MemoryPayloads(records_per_segment=2)
        manager = MessageManager("main", 9, payloads, self.settings)
        if state is not None:
            manager.restore(state)
        for entry, payload in self.log:
            if after < entry.first:
                show(manager, payloads, entry, payload)
        return manager


def show(
    manager: MessageManager,
    payloads: MemoryPayloads,
    entry: Entry,
    payload: bytes | None,
    now_ns: int = 0,
    wall_ms: int = 0,
) -> None:
    """Let a replica apply an entry; it keeps the bytes in a place of its own."""
    location = payloads.keep(payload) if payload is not None else None
    view = memoryview(payload) if payload is not None else None
    manager.apply(now_ns, wall_ms, entry, view, location)


# -- commands ------------------------------------------------------------------------


def of_node(payload: Payload, count: int = 1) -> bytes:
    return encode_command(kind_of(payload), NODE_SESSION, 0, 0, 0, payload.encode(), count)


def finish(session: int, transaction: int, *, commits: bool, messages: int = 0) -> bytes:
    payload = FinishTransaction(session=session, transaction=transaction, commits=commits, messages=messages)
    return of_node(payload, max(1, messages) if commits else 1)


def resolve(session: int, transaction: int) -> bytes:
    return of_node(ResolveTransaction(session=session, transaction=transaction))


def forget(session: int, transaction: int) -> bytes:
    return of_node(ForgetTransaction(session=session, transaction=transaction))


def rows_of(rows: Iterable[dict[str, Any]]) -> BatchBuilder:
    builder = BatchBuilder()
    for row in rows:
        builder.add(**{"body": b"", "timestamp_ms": 0} | row)
    return builder


class Client:
    """Numbers the commands of one session, as a client does."""

    # Unless a test says otherwise, clients have heard of all that is in the channel that was written last.
    heard = 0

    def __init__(self, session: int = SESSION, generation: int = 1) -> None:
        self.session = session
        self.generation = generation
        self.number = 1
        self.confirmed_through = 0
        self.transacted = 1

    def _command(self, payload: Payload, number: int, count: int = 1) -> bytes:
        return encode_command(
            kind_of(payload),
            self.session,
            self.generation,
            number,
            self.confirmed_through if number else 0,
            payload.encode(),
            count,
        )

    def _numbered(self, payload: Payload, number: int | None, count: int = 1) -> bytes:
        if number is None:
            number = self.number
            self.number += count
        return self._command(payload, number, count)

    def open(self, user: str = "ann", client_id: str = "", connection: int = 0) -> bytes:
        return self._command(OpenSession(user=user, client_id=client_id, connection=connection), 0)

    def resume(self, generation: int, known: int = 0) -> bytes:
        self.generation = generation
        return self._command(ResumeSession(known=known), 0)

    def close(self) -> bytes:
        return self._command(CloseSession(), 0)

    def publish(
        self, destination: int, bodies: Sequence[bytes], number: int | None = None, header_count: int = 0
    ) -> bytes:
        first_number = self.number if number is None else number
        batch = Batch.of_bodies(bodies, self.session, first_number, 0)
        payload = Publish(destination, 1, 0, batch.encode())
        return self._numbered(payload, number, header_count or len(bodies))

    def publish_rows(self, destination: int, *rows: dict[str, Any], number: int | None = None) -> bytes:
        """Publish messages with the attributes that `BatchBuilder.add` takes."""
        batch = rows_of(rows).build(self.session, self.number if number is None else number)
        return self._numbered(Publish(destination, 1, 0, batch.encode()), number, len(rows))

    def ack(
        self,
        destination: int,
        *pairs: tuple[int, int],
        number: int | None = None,
        subscription: int = 0,
    ) -> bytes:
        payload = Acknowledge(destination=destination, subscription=subscription, ranges=Ranges(pairs))
        return self._numbered(payload, number)

    def give_back(
        self, destination: int, *pairs: tuple[int, int], counted: bool = True, subscription: int = 0
    ) -> bytes:
        payload = Return(
            destination=destination, subscription=subscription, counted=counted, ranges=Ranges(pairs)
        )
        return self._numbered(payload, None)

    def reject(self, destination: int, *pairs: tuple[int, int], subscription: int = 0) -> bytes:
        payload = Return(
            destination=destination,
            subscription=subscription,
            counted=True,
            rejected=True,
            ranges=Ranges(pairs),
        )
        return self._numbered(payload, None)

    def subscribe(
        self,
        topic: int,
        durable: str = "",
        start: str | int = "latest",
        *,
        shared: str | bool = False,
        client_id: str = "",
        number: int | None = None,
        selector: str = "",
        no_local: bool = False,
    ) -> bytes:
        payload = Subscribe(
            destination=topic,
            durable=bool(durable),
            shared=bool(shared),
            name=shared if isinstance(shared, str) else durable,
            client_id=client_id,
            start=StartKind[start.upper()] if isinstance(start, str) else StartKind.NUMBER,
            number=start if isinstance(start, int) else 0,
            selector=selector,
            no_local=no_local,
        )
        return self._numbered(payload, number)

    # -- transactions

    def tx_publish(
        self,
        destination: int,
        bodies: Sequence[bytes],
        *,
        transaction: int = 1,
        index: int = 0,
        number: int | None = None,
    ) -> bytes:
        batch = self._transacted(bodies)
        payload = TransactedPublish(transaction, index, len(bodies), destination, 1, 0, batch)
        return self._numbered(payload, number)

    def tx_publish_rows(self, destination: int, *rows: dict[str, Any], index: int = 0) -> bytes:
        first, self.transacted = self.transacted, self.transacted + len(rows)
        batch = rows_of(rows).build(self.session, TRANSACTED_NUMBER | first).encode()
        return self._numbered(TransactedPublish(1, index, len(rows), destination, 1, 0, batch), None)

    def _transacted(self, bodies: Sequence[bytes]) -> bytes:
        first, self.transacted = self.transacted, self.transacted + len(bodies)
        return Batch.of_bodies(bodies, self.session, TRANSACTED_NUMBER | first, 0).encode()

    def tx_commit(
        self,
        batches: int,
        messages: int,
        *consumed: Consumed,
        transaction: int = 1,
        number: int | None = None,
        count: int | None = None,
    ) -> bytes:
        payload = CommitTransaction(
            transaction=transaction, batches=batches, messages=messages, consumed=consumed
        )
        return self._numbered(payload, number, max(1, messages) if count is None else count)

    def tx_rollback(self, transaction: int = 1) -> bytes:
        return self._numbered(RollBackTransaction(transaction=transaction), None)

    def prepare(
        self,
        batches: int,
        messages: int,
        *consumed: Consumed,
        transaction: int = 1,
        home: str = "home",
        staged: tuple[int, ...] = (),
    ) -> bytes:
        payload = PrepareTransaction(
            transaction=transaction,
            home=home,
            batches=batches,
            messages=messages,
            consumed=consumed,
            staged=staged,
        )
        return self._command(payload, 0)

    def decide(
        self,
        batches: int,
        messages: int,
        *consumed: Consumed,
        transaction: int = 1,
        participants: tuple[Participant, ...] = (Participant("other", 3),),
        staged: tuple[int, ...] = (),
        application: str = "",
        version: int = 0,
    ) -> bytes:
        payload = DecideTransaction(
            transaction=transaction,
            batches=batches,
            messages=messages,
            consumed=consumed,
            staged=staged,
            participants=participants,
            application=application,
            version=version,
        )
        return self._command(payload, 0, max(1, messages))

    def stage(
        self,
        part: int,
        destination: int,
        bodies: Sequence[bytes],
        *,
        index: int = 0,
        seconds: int = 60,
        application: str = "app",
    ) -> bytes:
        batch = self._transacted(bodies)
        payload = StagedPublish(part, index, len(bodies), seconds, destination, 1, 0, application, batch)
        return self._numbered(payload, None)

    def drop_staged(self, *parts: int) -> bytes:
        return self._numbered(DropStaged(parts=parts), None)

    def hold(
        self,
        name: str,
        position: int,
        *destinations: int,
        limit_ms: int = 60_000,
        consumes: bool = False,
        acks: bool = False,
        heard: int | None = None,
    ) -> bytes:
        payload = Hold(
            name=name,
            position=position,
            limit_ms=limit_ms,
            heard=Client.heard if heard is None else heard,
            consumes=consumes,
            acks=acks,
            destinations=destinations,
        )
        return self._numbered(payload, None)

    def release(self, name: str, heard: int | None = None) -> bytes:
        return self._numbered(ReleaseHold(name=name, heard=Client.heard if heard is None else heard), None)

    def unsubscribe(self, subscription: int) -> bytes:
        return self._numbered(Unsubscribe(subscription=subscription), None)

    def create_temporary(self, kind: int = 1, number: int | None = None) -> bytes:
        return self._numbered(CreateTemporary(kind=kind), number)

    def command(self, payload: Payload) -> bytes:
        return self._numbered(payload, None)

    def delete(self, destination: int) -> bytes:
        return self._numbered(DeleteDestination(destination=destination), None)

    def raw(self, kind: CommandKind, payload: bytes, count: int = 1) -> bytes:
        number = self.number
        self.number += count
        return encode_command(kind, self.session, self.generation, number, 0, payload, count)


# -- what came out -----------------------------------------------------------------------


def applied_of(effects: Iterable[Effect]) -> list[Applied]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Multicast) and isinstance(effect.message, Applied)
    ]


def sent(effects: Iterable[Effect]) -> list[BusMessage]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def delivers(effects: Iterable[Effect]) -> list[Deliver]:
    return [message for message in sent(effects) if isinstance(message, Deliver)]


def answers(effects: Iterable[Effect]) -> list[Registered | ConsumerEnded]:
    return [message for message in sent(effects) if isinstance(message, Registered | ConsumerEnded)]


def proposals(effects: Iterable[Effect]) -> list[Propose]:
    return [effect for effect in effects if isinstance(effect, Propose)]


def batch_of(buffers: Sequence[bytes | memoryview]) -> Batch:
    return Batch.decode(b"".join(buffers))


def delivered(effects: Iterable[Effect]) -> list[tuple[int, int, bytes, int]]:
    """(consumer, sequence number, body, redelivery count) of every delivered message."""
    rows = []
    for deliver in delivers(effects):
        takers = [taker.consumer for target in deliver.targets for taker in target.takers]
        given = []
        for piece in deliver.pieces:
            batch = batch_of(piece.buffers)
            numbers = [piece.first_sequence + batch.offset(row) for row in range(batch.count)]
            assert numbers == list(piece.sequences), "a piece says which rows it has"
            given += [
                (number, body, piece.redelivery_count)
                for number, body in zip(numbers, batch.bodies(), strict=True)
            ]
        rows += [(taker, *one) for taker in takers for one in given]
    return rows


def numbers_to(effects: Iterable[Effect], consumer: int) -> list[int]:
    return [number for who, number, _, _ in delivered(effects) if who == consumer]


def bodies(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{at}".encode() for at in range(count)]
