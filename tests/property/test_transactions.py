"""Transactions in a channel against a dictionary that knows every message, whatever is ordered between them.

The model keeps messages one by one, and knows of no ranges, no places and no bytes. Drawn commands are
partly wrong on purpose: of another transaction, out of turn, of what is gone, locked or said before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.transactions import MARK_MS_MAX, OPEN_MS_MAX
from antiphon.ranges import Ranges
from antiphon.wire.commands import COMMAND_HEADER_SIZE, OutcomeCode
from antiphon.wire.transactions import Consumed
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import (
    AT_ONCE,
    CM,
    Client,
    MemoryPayloads,
    finish,
    forget,
    resolve,
    show,
)

Step = tuple[Any, ...]
Stored = tuple[int, list[bytes]]

STAGED_SECONDS = 100

slot = st.integers(0, 1)
# Mostly the transaction that is under way, sometimes the one before or behind it.
delta = st.sampled_from([0, 0, 0, 0, 0, 1, -1])
skew = st.sampled_from([0, 0, 0, 0, 0, 0, 1])
queue = st.integers(0, 1)
taken = st.tuples(queue, st.integers(0, 5), st.integers(0, 3), st.sampled_from([False] * 7 + [True]))
parts = st.sampled_from([(), (), (), (0,), (1,), (0, 1), (1, 1)])

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), slot, delta, skew, queue, st.integers(1, 4)),
        st.tuples(st.just("send"), slot, st.just(0), st.just(0), queue, st.integers(1, 4)),
        st.tuples(st.just("commit"), slot, delta, skew, taken),
        st.tuples(st.just("roll_back"), slot, delta),
        st.tuples(st.just("prepare"), slot, delta, skew, taken, parts),
        st.tuples(st.just("prepare"), slot, st.just(0), st.just(0), taken, parts),
        st.tuples(st.just("decide"), slot, delta, skew, taken, parts, st.integers(0, 2)),
        st.tuples(st.just("finish"), slot, delta, st.booleans(), skew),
        st.tuples(st.just("finish"), slot, st.just(0), st.booleans(), st.just(0)),
        st.tuples(st.just("resolve"), slot, delta),
        st.tuples(st.just("forget"), slot, delta),
        st.tuples(st.just("go_on"), slot),
        st.tuples(st.just("stage"), slot, st.integers(0, 1), skew, queue, st.integers(1, 3)),
        st.tuples(st.just("drop_staged"), slot, st.integers(0, 1)),
        st.tuples(st.just("publish"), slot, queue, st.integers(1, 4)),
        st.tuples(st.just("acknowledge"), slot, taken),
        st.tuples(st.just("give_back"), slot, taken),
        st.tuples(st.just("claim"), st.integers(1, 2)),
        st.tuples(st.just("fence")),
        st.tuples(st.just("close"), slot),
        st.tuples(st.just("time"), st.one_of(st.integers(1, 2 * OPEN_MS_MAX), st.just(MARK_MS_MAX))),
        st.tuples(st.just("resolve_of_another"), st.integers(-2, 1), st.integers(1, 2)),
        st.tuples(st.just("restart")),
    ),
    min_size=30,
    max_size=80,
)


@dataclass
class Staged:
    batches: list[Stored] = field(default_factory=list)
    is_promised: bool = False
    since: int | None = None


@dataclass
class Open:
    transaction: int
    batches: list[Stored] = field(default_factory=list)
    since: int | None = None


@dataclass
class Prepared:
    batches: list[Stored]
    staged: tuple[int, ...]
    consumed: tuple[int, list[int]]


def count(batches: Iterable[Stored]) -> int:
    return sum(len(rows) for _, rows in batches)


class Story:
    """The channel and the model side by side."""

    def __init__(self) -> None:
        self.channel = RestoredChannel()
        self.next_session = 0xA1
        # Sessions that are not known and of which something was decided, and since when.
        self.marks: dict[int, int | None] = {}
        self.clients = [self._session(), self._session()]
        self.queues = [self.channel.create("orders"), self.channel.create("bills")]
        self.live: list[dict[int, bytes]] = [{}, {}]
        self.locks: list[set[int]] = [set(), set()]
        self.current = [1, 1]
        self.open: dict[int, Open] = {}
        self.staged: dict[int, Staged] = {}
        self.prepared: dict[tuple[int, int], Prepared] = {}
        # By session and transaction: does it commit, and is that forgotten?
        self.decisions: dict[tuple[int, int], list[bool]] = {}
        self.done: dict[str, int] = {}
        self.bodies = 0

    def _session(self) -> Client:
        client = Client(self.next_session)
        self.next_session += 1
        self.channel.order(client.open())
        self.marks.pop(client.session, None)
        return client

    def tell(self, step: Step) -> None:
        handler: Callable[..., None] = getattr(self, f"_{step[0]}")
        handler(*step[1:])
        self._compare(step)

    def _compare(self, step: Step) -> None:
        state = self.channel.manager.state
        for id, live, locks in zip(self.queues, self.live, self.locks, strict=True):
            stored = state.directory.get(id)
            assert stored is not None
            assert list(stored.live.numbers()) == sorted(live), step
            assert set(state.locks.get(id, Ranges()).numbers()) == locks, step
        transactions = state.transactions
        assert {s: part.transaction for s, part in transactions.open.items()} == {
            s: part.transaction for s, part in self.open.items()
        }, step
        assert transactions.prepared.keys() == self.prepared.keys(), step
        assert {id: part.is_promised for id, part in transactions.staged.items()} == {
            id: part.is_promised for id, part in self.staged.items()
        }, step
        decisions = {
            (session, transaction): [decision.commits, decision.is_complete]
            for session, of_session in transactions._decisions.items()
            for transaction, decision in of_session.items()
        }
        assert decisions == self.decisions, step
        assert transactions.done == self.done, step
        held = [*self.open.values(), *self.prepared.values(), *self.staged.values()]
        assert len(transactions.uncommitted) == sum(len(part.batches) for part in held), step

    def check_bytes(self) -> None:
        """Every message is where the index says, and is the one that was sent."""
        payloads = self.channel.payloads
        for id, live in zip(self.queues, self.live, strict=True):
            stored = self.channel.manager.state.directory.get(id)
            assert stored is not None
            for number, body in live.items():
                at = stored.index.find(number)
                batch = payloads.read(at.location)[at.offset : at.offset + at.length]
                assert body in bytes(batch)

    def _expect(self, code: OutcomeCode, *commands: bytes) -> int:
        """Order this; the model says how it ends. The number of the last command's first."""
        before = self.channel.next
        outcome = self.channel.outcome(*commands)
        assert (OutcomeCode.APPLIED if outcome is None else outcome.code) == code, outcome
        return before

    def _rows(self, count: int) -> list[bytes]:
        self.bodies += count
        return [b"<%d>" % number for number in range(self.bodies - count, self.bodies)]

    def _take(self, taken: tuple[int, int, int, bool]) -> tuple[int, list[int]]:
        """Some messages of a queue; or, if that is to be wrong, numbers that are none."""
        queue, at, size, is_wrong = taken
        numbers = sorted(self.live[queue])[at : at + size]
        return queue, [1, *numbers] if is_wrong else numbers

    def _consumed(self, taken: tuple[int, list[int]]) -> Consumed:
        queue, numbers = taken
        return Consumed(self.queues[queue], 0, Ranges((number, number + 1) for number in numbers))

    def _can_consume(self, taken: tuple[int, list[int]]) -> bool:
        queue, numbers = taken
        return set(numbers) <= self.live[queue].keys() - self.locks[queue]

    def _publish_all(self, first: int, batches: Iterable[Stored]) -> None:
        for queue, rows in batches:
            for body in rows:
                self.live[queue][first] = body
                first += 1

    def _acknowledge_all(self, taken: tuple[int, list[int]]) -> None:
        for number in taken[1]:
            del self.live[taken[0]][number]

    # -- sending ----------------------------------------------------------------------

    def _send(self, slot: int, delta: int, skew: int, queue: int, size: int) -> None:
        client, transaction = self.clients[slot], self.current[slot] + delta
        rows = self._rows(size)
        part = self.open.get(client.session)
        if part is not None and part.transaction < transaction:
            part = self.open.pop(client.session, None) and None
        index = (len(part.batches) if part is not None else 0) + skew
        command = client.tx_publish(self.queues[queue], rows, transaction=transaction, index=index)
        if part is not None and part.transaction > transaction:
            self._expect(OutcomeCode.TX_ROLLED_BACK, command)
            return
        code = OutcomeCode.TX_ROLLED_BACK if skew else OutcomeCode.APPLIED
        if (client.session, transaction) in self.prepared:
            code = OutcomeCode.REFUSED
        self._expect(code, command)
        if code == OutcomeCode.APPLIED:
            part = self.open.setdefault(client.session, Open(transaction))
            part.batches.append((queue, rows))
        else:
            self.open.pop(client.session, None)

    def _stage(self, slot: int, id: int, skew: int, queue: int, size: int) -> None:
        rows = self._rows(size)
        part = self.staged.get(id)
        index = (len(part.batches) if part is not None else 0) + skew
        command = self.clients[slot].stage(id, self.queues[queue], rows, index=index, seconds=STAGED_SECONDS)
        if part is not None and part.is_promised:
            self._expect(OutcomeCode.REFUSED, command)
        elif skew:
            self._expect(OutcomeCode.TX_ROLLED_BACK, command)
            self.staged.pop(id, None)
        else:
            self._expect(OutcomeCode.APPLIED, command)
            part = self.staged.setdefault(id, Staged())
            part.batches.append((queue, rows))
            part.since = None

    def _drop_staged(self, slot: int, id: int) -> None:
        self._expect(OutcomeCode.APPLIED, self.clients[slot].drop_staged(id))
        if id in self.staged and not self.staged[id].is_promised:
            del self.staged[id]

    # -- committing -------------------------------------------------------------------

    def _own(self, session: int, transaction: int) -> list[Stored]:
        part = self.open.get(session)
        return part.batches if part is not None and part.transaction == transaction else []

    def _drop(self, session: int, through: int) -> None:
        part = self.open.get(session)
        if part is not None and part.transaction <= through:
            del self.open[session]

    def _brings(self, session: int, transaction: int, ids: tuple[int, ...]) -> list[Stored] | None:
        """What a part has, if all that it names can be had."""
        if len(set(ids)) < len(ids) or any(
            id not in self.staged or self.staged[id].is_promised for id in ids
        ):
            return None
        staged = [batch for id in ids for batch in self.staged[id].batches]
        return [*self._own(session, transaction), *staged]

    def _known(self, session: int) -> bool:
        return any(client.session == session for client in self.clients)

    def _decided_last(self, session: int) -> int:
        return max((t for s, t in self.decisions if s == session), default=0)

    def _tidy(self, session: int) -> None:
        last = self._decided_last(session)
        for (s, t), (commits, is_complete) in list(self.decisions.items()):
            if s != session or (commits and not is_complete):
                continue
            if t < last:
                del self.decisions[s, t]
            elif not self._known(session):
                self.marks.setdefault(session, None)

    def _commit(self, slot: int, delta: int, skew: int, wish: tuple[int, int, int, bool]) -> None:
        client, transaction = self.clients[slot], self.current[slot] + delta
        taken = self._take(wish)
        own = self._own(client.session, transaction)
        messages = count(own) + skew
        command = client.tx_commit(len(own), messages, self._consumed(taken), transaction=transaction)
        is_decided = (client.session, transaction) in self.decisions
        if skew or is_decided or not self._can_consume(taken):
            self._expect(OutcomeCode.TX_ROLLED_BACK, command)
            self._drop(client.session, transaction)
            return
        first = self._expect(OutcomeCode.APPLIED, command)
        self._drop(client.session, transaction)
        self._publish_all(first, own)
        self._acknowledge_all(taken)

    def _roll_back(self, slot: int, delta: int) -> None:
        client, transaction = self.clients[slot], self.current[slot] + delta
        self._expect(OutcomeCode.APPLIED, client.tx_rollback(transaction))
        self._drop(client.session, transaction)

    def _prepare(
        self, slot: int, delta: int, skew: int, wish: tuple[int, int, int, bool], ids: tuple[int, ...]
    ) -> None:
        client, transaction = self.clients[slot], self.current[slot] + delta
        key = (client.session, transaction)
        taken = self._take(wish)
        batches = self._brings(*key, ids)
        command = client.prepare(
            len(batches or ()),
            count(batches or ()) + skew,
            self._consumed(taken),
            transaction=transaction,
            staged=ids,
        )
        if key in self.prepared:
            self._expect(OutcomeCode.APPLIED, command)
        elif skew or batches is None or not self._can_consume(taken):
            self._expect(OutcomeCode.TX_ROLLED_BACK, command)
            self._drop(*key)
        else:
            self._expect(OutcomeCode.APPLIED, command)
            self.prepared[key] = Prepared(self._own(*key), ids, taken)
            self._drop(*key)
            self.locks[taken[0]].update(taken[1])
            for id in ids:
                self.staged[id].is_promised = True

    def _decide(
        self,
        slot: int,
        delta: int,
        skew: int,
        wish: tuple[int, int, int, bool],
        ids: tuple[int, ...],
        version: int,
    ) -> None:
        client, transaction = self.clients[slot], self.current[slot] + delta
        key = (client.session, transaction)
        taken = self._take(wish)
        batches = self._brings(*key, ids)
        application = "app" if ids else ""
        command = client.decide(
            len(batches or ()),
            count(batches or ()) + skew,
            self._consumed(taken),
            transaction=transaction,
            staged=ids,
            application=application,
            version=version,
        )
        if key in self.decisions:
            commits, _ = self.decisions[key]
            self._expect(OutcomeCode.APPLIED if commits else OutcomeCode.TX_ROLLED_BACK, command)
        elif application and self.done.get(application, -1) >= version:
            self._expect(OutcomeCode.DUPLICATE, command)
            self._drop(*key)
            for id in ids:
                if id in self.staged and not self.staged[id].is_promised:
                    del self.staged[id]
        elif (
            self._decided_last(client.session) > transaction
            or skew
            or batches is None
            or not self._can_consume(taken)
        ):
            self._expect(OutcomeCode.TX_ROLLED_BACK, command)
            self._decide_to_roll_back(*key)
        else:
            first = self._expect(OutcomeCode.APPLIED, command)
            self._publish_all(first, batches)
            self._acknowledge_all(taken)
            self._drop(*key)
            for id in ids:
                del self.staged[id]
            if application:
                self.done[application] = version
            self.decisions[key] = [True, False]
            self._tidy(client.session)

    def _decide_to_roll_back(self, session: int, transaction: int) -> None:
        self._drop(session, transaction)
        if self._decided_last(session) < transaction:
            self.decisions[session, transaction] = [False, False]
            # The decision before may be nearly old enough to be forgotten, and this one is not.
            self.marks.pop(session, None)
            self._tidy(session)

    def _resolve(self, slot: int, delta: int) -> None:
        self._resolve_by_key(self.clients[slot].session, self.current[slot] + delta)

    def _resolve_of_another(self, ago: int, transaction: int) -> None:
        """Of a session that has ended, or is still to come."""
        self._resolve_by_key(self.next_session + ago, transaction)

    def _resolve_by_key(self, session: int, transaction: int) -> None:
        key = (session, transaction)
        if key in self.decisions and self.decisions[key][0]:
            self._expect(OutcomeCode.APPLIED, resolve(*key))
            return
        self._expect(OutcomeCode.TX_ROLLED_BACK, resolve(*key))
        if key not in self.decisions:
            self._decide_to_roll_back(*key)

    def _forget(self, slot: int, delta: int) -> None:
        session = self.clients[slot].session
        key = (session, self.current[slot] + delta)
        self._expect(OutcomeCode.APPLIED, forget(*key))
        if key in self.decisions and self.decisions[key][0]:
            self.decisions[key][1] = True
            self._tidy(session)

    def _finish(self, slot: int, delta: int, commits: bool, skew: int) -> None:
        key = (self.clients[slot].session, self.current[slot] + delta)
        if key not in self.prepared and self.prepared and not delta:
            # One of a session that has ended, or of an earlier transaction.
            key = min(self.prepared)
        part = self.prepared.get(key)
        if part is None:
            self._expect(OutcomeCode.APPLIED, finish(*key, commits=commits, messages=skew))
            if not commits and self._own(*key):
                del self.open[key[0]]
            return
        batches = [*part.batches, *[one for id in part.staged for one in self.staged[id].batches]]
        command = finish(*key, commits=commits, messages=count(batches) + skew)
        if commits and skew:
            self._expect(OutcomeCode.REFUSED, command)
            return
        first = self._expect(OutcomeCode.APPLIED, command)
        del self.prepared[key]
        self.locks[part.consumed[0]].difference_update(part.consumed[1])
        if commits:
            self._publish_all(first, batches)
            self._acknowledge_all(part.consumed)
        for id in part.staged:
            if commits:
                del self.staged[id]
            else:
                self.staged[id].is_promised = False
                self.staged[id].since = None

    def _go_on(self, slot: int) -> None:
        self.current[slot] += 1

    # -- everything else ------------------------------------------------------------------

    def _publish(self, slot: int, queue: int, size: int) -> None:
        rows = self._rows(size)
        first = self.channel.order(self.clients[slot].publish(self.queues[queue], rows))
        self._publish_all(first, [(queue, rows)])

    def _acknowledge(self, slot: int, wish: tuple[int, int, int, bool]) -> None:
        queue, numbers = self._take(wish)
        if not numbers:
            return
        had = [number for number in numbers if number in self.live[queue].keys() - self.locks[queue]]
        pairs = Ranges((number, number + 1) for number in numbers)
        command = self.clients[slot].ack(self.queues[queue], *pairs)
        self._expect(OutcomeCode.APPLIED if had == numbers else OutcomeCode.ACK_LOST, command)
        self._acknowledge_all((queue, had))

    def _give_back(self, slot: int, wish: tuple[int, int, int, bool]) -> None:
        queue, numbers = self._take(wish)
        pairs = Ranges((number, number + 1) for number in numbers)
        self._expect(OutcomeCode.APPLIED, self.clients[slot].give_back(self.queues[queue], *pairs))

    def _claim(self, node: int) -> None:
        self.channel.claim(node)
        self.open.clear()

    def _fence(self) -> None:
        self.channel.fence(CM, self.channel.manager.term)
        self.open.clear()
        # It opens itself anew, and goes on with its sessions.
        self.channel.open_producer(CM)

    def _close(self, slot: int) -> None:
        client = self.clients[slot]
        self.channel.order(client.close())
        self.clients[slot] = self._session()
        self.current[slot] = 1
        self.open.pop(client.session, None)
        self._tidy(client.session)

    def _time(self, ms: int) -> None:
        self.channel.pass_time(ms)
        now = self.channel.wall_ms
        for session, part in list(self.open.items()):
            if part.since is None:
                part.since = now
            elif now - part.since > OPEN_MS_MAX:
                del self.open[session]
        for id, staged in list(self.staged.items()):
            if staged.since is None:
                staged.since = now
            elif now - staged.since > STAGED_SECONDS * 1_000 and not staged.is_promised:
                del self.staged[id]

        for session, since in list(self.marks.items()):
            if since is None:
                self.marks[session] = now
            elif now - since > MARK_MS_MAX:
                del self.marks[session]
                for (s, t), (commits, is_complete) in list(self.decisions.items()):
                    if s == session and (is_complete or not commits):
                        del self.decisions[s, t]

    def _restart(self) -> None:
        """Go on with what a checkpoint holds."""
        n = self.channel.mark()
        captured = self.channel.manager.capture(n)
        again = MessageManager("main", 1, self.channel.payloads, AT_ONCE)
        again.restore(captured[1])
        assert again.capture(n) == captured
        self.channel.manager = again


DECIDED_TWICE: list[Step] = [
    ("decide", 1, 0, 0, (0, 0, 0, False), (0,), 0),
    ("close", 1),
    ("time", 1),
    ("resolve_of_another", -2, 2),
    ("time", 1),
    ("time", MARK_MS_MAX),
]
"""The second decision about an unknown session is kept as long as the first."""


@given(steps)
@example(DECIDED_TWICE)
def test_a_channel_does_with_transactions_what_the_model_does_and_so_does_every_replica(
    drawn: list[Step],
) -> None:
    """The story restarts from checkpoints; the replica applies all of the log, and keeps bytes elsewhere."""
    story = Story()
    for step in drawn:
        story.tell(step)
    story.check_bytes()
    payloads = MemoryPayloads(records_per_segment=2)
    replica = MessageManager("main", 9, payloads, AT_ONCE)
    for entry, payload in story.channel.log:
        show(replica, payloads, entry, payload)
    assert replica.state.digest() == story.channel.manager.state.digest()
    needed = sum(sum(_live_lengths(store)) for store in replica.state.stores)
    assert sum(replica.live_bytes_by_segment().values()) == needed


def _live_lengths(store: Any) -> list[int]:
    """The bytes of the batches that somebody still needs."""
    return [batch.length for batch in {store.index.find(number) for number in store.stored.numbers()}]


def test_the_story_meets_what_it_is_meant_to_meet() -> None:
    """Keeps the strategy honest: each kind of end is within its reach."""
    story = Story()
    none = (0, 0, 0, False)
    drawn: list[Step] = [
        ("publish", 0, 0, 3),
        ("send", 0, 0, 0, 0, 2),
        ("prepare", 0, 0, 0, (0, 0, 2, False), ()),
        ("acknowledge", 1, (0, 0, 3, False)),
        ("restart",),
        ("finish", 0, 0, True, 1),
        ("finish", 0, 0, True, 0),
        ("go_on", 0),
        ("stage", 1, 0, 0, 1, 2),
        ("decide", 0, 0, 0, none, (0,), 1),
        ("stage", 1, 0, 0, 1, 2),
        ("go_on", 0),
        ("decide", 0, 0, 0, none, (0,), 1),
        ("send", 1, 0, 0, 0, 1),
        ("resolve", 1, 0),
        ("decide", 1, 0, 0, none, (), 0),
        ("time", 1),
    ]
    for step in drawn:
        story.tell(step)
    assert len(story.live[0]) == 2 and len(story.live[1]) == 2
    assert story.done == {"app": 1}
    assert sorted(commits for commits, _ in story.decisions.values()) == [False, True]


def _command(kind: int, client: Client, transaction: int, queue: int, taken: Consumed) -> bytes:
    """One of every kind."""
    session = client.session
    match kind:
        case 0:
            return client.tx_publish(queue, [b"x"], transaction=transaction)
        case 1:
            return client.tx_commit(1, 1, taken, transaction=transaction)
        case 2:
            return client.tx_rollback(transaction)
        case 3:
            return client.prepare(1, 2, taken, transaction=transaction, staged=(7,))
        case 4:
            return client.decide(1, 1, taken, transaction=transaction, application="app", version=1)
        case 5:
            return finish(session, transaction, commits=True, messages=2)
        case 6:
            return resolve(session, transaction)
        case 7:
            return forget(session, transaction)
        case 8:
            return client.stage(7, queue, [b"y"])
    return client.drop_staged(7)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 200), st.binary(min_size=1, max_size=9), st.booleans()),
        min_size=5,
        max_size=30,
    )
)
def test_whatever_is_in_a_command_applying_it_never_fails(
    damages: list[tuple[int, int, bytes, bool]],
) -> None:
    """Commands of every kind, most of them with bytes of the payload replaced; a checkpoint reads back."""
    story = Story()
    client, queue = story.clients[0], story.queues[0]
    channel = story.channel
    got = channel.order(client.publish(queue, [b"a", b"b"]))
    taken = Consumed(queue, 0, Ranges([(got, got + 2)]))
    for kind, at, more, is_whole in damages:
        transaction = story.current[0]
        command = _command(kind, client, transaction, queue, taken)
        if not is_whole:
            payload = bytearray(command)
            at = COMMAND_HEADER_SIZE + at % (len(payload) - COMMAND_HEADER_SIZE)
            more = more[: len(payload) - at]
            payload[at : at + len(more)] = more
            command = bytes(payload)
        channel.order(command)
        story.current[0] += kind in (1, 2, 4)
        channel.flush()
    n = channel.mark()
    captured = channel.manager.capture(n)
    again = MessageManager("main", 1, channel.payloads, AT_ONCE)
    again.restore(captured[1])
    assert again.capture(n) == captured
