"""A channel does with its queues and subscriptions what the commands in its log say, and nothing else.

After each entry the first replica that folds it is compared: the messages that came to queues and
subscriptions, the messages that went, and the outcome of each command. A message that came must be brought by
a publish or a commit in the entry, and a message to a topic comes to every subscription that was begun
before; a message that went must be named by an acknowledgement or a commit. The other replicas must hold as
many messages. A primary delivers nothing that it knows to be locked or gone. The effects of a commit on other
channels are judged by the `Bank`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.messages import BusMessage, Deliver, Entry, EntryKind, Register
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.sim.checkers.bank import Bank, Key, Money
from antiphon.sim.checkers.commands import Command, commands_of
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    OpenSession,
    OutcomeCode,
    Payload,
    Publish,
    ResumeSession,
    Subscribe,
)
from antiphon.wire.holds import Hold
from antiphon.wire.transactions import (
    CommitTransaction,
    Consumed,
    DecideTransaction,
    FinishTransaction,
    ForgetTransaction,
    PrepareTransaction,
    ResolveTransaction,
)

"""A command with the number it has in the order."""

Place = tuple[int, int]
"""A message where it is kept: the id of its queue, subscription or topic, and its number."""


class Promised(NamedTuple):
    """A prepared part that is not finished yet."""

    messages: int
    consumed: tuple[Consumed, ...]


class ChannelLedger(Checker):
    """Follows one channel."""

    promise = "transactions"
    hears = (Deliver, Register)

    def __init__(self, world: World, channel: str, bank: Bank) -> None:
        super().__init__(world)
        self._channel = channel
        self._bank = bank
        self._folded = 0
        self._commands: list[Command] = []
        self._live: dict[int, set[int]] = {}
        self._books: dict[int, tuple[tuple[int, int], ...]] = {}
        self._promised: dict[Key, Promised] = {}
        self._topics: set[int] = set()
        # By topic: its subscriptions, by the log.
        self._subscriptions: dict[int, list[int]] = {}
        # Messages that are locked, or gone, with the number of the command.
        self._locked: dict[Place, int] = {}
        self._gone: dict[Place, int] = {}
        self._applied: dict[int, int] = {}
        # The queue or subscription of each consumer, by the key that its client manager gave.
        self._takes_from: dict[tuple[int, int], int] = {}
        # Places in the streams to client managers that a delivery had.
        self._told: set[tuple[int, int, int, int]] = set()
        # Nodes that began with a checkpoint, and have applied nothing since.
        self._restored: set[int] = set()
        # The client manager, and its run, that has each session; lost sessions have none.
        self._owners: dict[int, tuple[int, int]] = {}
        # Transactions that this home decided to commit and that are not known to be carried out everywhere.
        self._unfinished: set[Key] = set()
        # Sessions that had an open part after the entry before.
        self._had_open: set[int] = set()
        # Of the entry that is being judged: messages that came and went; and the exceptions.
        self._came: set[Place] = set()
        self._went: set[Place] = set()
        self._codes: dict[int, int] = {}

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded:
            return
        self._commands = list(commands_of(entry, payload))

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        self._applied[node] = entry.last
        self._note_contents(node, entry, state)
        books = tuple(sorted((id, held.count) for id, held in _held(state)))
        if entry.last > self._folded:
            self._folded = entry.last
            self._books[entry.last] = books
            self._judge(entry, state)
        elif books != self._books[entry.last]:
            self.fail(f"after {entry.last} node {node} holds {books}, another {self._books[entry.last]}")

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._applied[node] = checkpoint
        if checkpoint:
            self._restored.add(node)

    def on_restored(self, node: int, n: int) -> None:
        self._applied[node] = n
        self._restored.add(node)

    def _note_contents(self, node: int, entry: Entry, state: ChannelState) -> None:
        """Count the contents of states that go through a checkpoint."""
        if entry.kind is EntryKind.CHECKPOINT_MARK:
            when = "checkpoint_with"
        elif node in self._restored:
            self._restored.discard(node)
            when = "restored_with"
        else:
            return
        has = state.transactions
        for what, there in (
            ("open", has.open),
            ("prepared", has.prepared),
            ("staged", has.staged),
            ("decisions", list(has.unfinished())),
        ):
            if there:
                self.world.probe(f"ledger.{when}.{what}")

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Register):
            self._takes_from[node, message.consumer] = message.subscription or message.destination
        if not isinstance(message, Deliver):
            return
        takers = [(target.node, taker.consumer) for target in message.targets for taker in target.takers]
        places = {(message.term, one.node, one.stream, one.number) for one in message.targets}
        is_fresh = not places <= self._told
        self._told |= places
        for source in {self._takes_from[taker] for taker in takers}:
            for piece in message.pieces:
                for number in piece.sequences:
                    self._check_given_out(node, (source, number), is_fresh)

    def _check_given_out(self, node: int, place: Place, is_fresh: bool) -> None:
        """A message that was delivered before it was locked may be delivered again to the same consumer."""
        applied = self._applied[node]
        if is_fresh and self._locked.get(place, applied + 1) <= applied:
            self.fail(f"{place} of {self._channel} is given out while a transaction has it locked")
        if self._gone.get(place, applied + 1) <= applied:
            self.fail(f"{place} of {self._channel} is given out after it was consumed")

    def _judge(self, entry: Entry, state: ChannelState) -> None:
        self._look(state)
        self._gone.update(dict.fromkeys(self._went, entry.last))
        exceptions = state.outcomes.within(entry.first, entry.last)
        self._codes = {
            number: one.code for one in exceptions for number in range(one.first, one.first + one.count)
        }
        for header, payload, sequence in self._commands:
            self._follow(header, payload, sequence, (entry.mid.pid, entry.mid.pe))
        self._check_open(entry, state)
        self._check_decisions(entry, state)
        if self._came or self._went:
            self.fail(
                f"after {entry.last} of {self._channel} the messages {sorted(self._came)} are there and "
                f"{sorted(self._went)} are gone, and no command says so"
            )

    def _check_open(self, entry: Entry, state: ChannelState) -> None:
        """A claim rolls back every open part, a fence those at the fenced client manager."""
        is_open = state.transactions.open
        if entry.kind is EntryKind.PRIMARY_CLAIM and entry.mid.pe == state.term:
            if is_open:
                self.fail(f"{sorted(is_open)} have parts open in {self._channel} behind a claim")
        elif entry.kind is EntryKind.PRODUCER_FENCE:
            pid, pe, term = FenceDetail.decode(entry.detail)
            fenced = [one for one, owner in self._owners.items() if owner[0] == pid and owner[1] <= pe]
            for session in fenced if term == state.term else ():
                self.world.probe("ledger.open_at_fence", int(session in self._had_open))
                if session in is_open:
                    self.fail(f"{session:#x} has a part open in {self._channel}, and {pid} was fenced")
                del self._owners[session]
        elif entry.kind is EntryKind.PRODUCER_OPEN:
            pid = OpenDetail.decode(entry.detail).pid
            self._owners = {one: owner for one, owner in self._owners.items() if owner[0] != pid}
        self._had_open = set(is_open)

    def _check_decisions(self, entry: Entry, state: ChannelState) -> None:
        """A decision is kept until all participants have reported, even if the session ends."""
        for key in sorted(self._unfinished):
            known = state.transactions.decision(*key)
            if known is None or not known.commits or known.is_complete:
                self.fail(f"after {entry.last} {self._channel} has let go of its decision about {key}")

    def _look(self, state: ChannelState) -> None:
        live = {id: set(held.numbers()) for id, held in _held(state)}
        self._topics = {one.id for one in state.directory.topics}
        self._came, self._went = set(), set()
        for id, numbers in live.items():
            before = self._live.get(id, set())
            self._came |= {(id, number) for number in numbers - before}
            if id not in self._topics:
                # A topic drops messages that are too old and that no subscription needs.
                self._went |= {(id, number) for number in before - numbers}
        self._live = live

    def _is_applied(self, sequence: int) -> bool:
        return self._codes.get(sequence, OutcomeCode.APPLIED) == OutcomeCode.APPLIED

    # Effects of each kind of command.

    def _follow(self, header: CommandHeader, payload: Payload, sequence: int, owner: tuple[int, int]) -> None:
        match payload:
            case OpenSession() | ResumeSession():
                code = self._codes.get(sequence, OutcomeCode.APPLIED)
                if code in (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE):
                    self._owners[header.session] = owner
            case Publish():
                for row in range(header.count):
                    if (payload.destination, sequence + row) in self._came:
                        number = header.number + row
                        money = self._bank.deposit(self._channel, header.session, number, sequence + row)
                        self._arrive(sequence + row, money)
            case Subscribe():
                if self._is_applied(sequence):
                    self._subscriptions.setdefault(payload.destination, []).append(sequence)
            case Acknowledge(ranges=ranges):
                source = payload.subscription or payload.destination
                self._went -= {(source, number) for number in ranges.numbers()}
            case Hold(consumes=True):
                # A HOLD that was refused took nothing: what went, went by a command behind it.
                if self._is_applied(sequence):
                    self._collect(payload)
            case CommitTransaction():
                if self._is_applied(sequence):
                    key = (header.session, payload.transaction)
                    self._commit(key, sequence, Promised(payload.messages, payload.consumed), is_home=True)
            case PrepareTransaction():
                if self._is_applied(sequence):
                    self._prepare((header.session, payload.transaction), payload, sequence)
            case DecideTransaction():
                self._decide((header.session, payload.transaction), payload, sequence)
            case ResolveTransaction():
                key = (payload.session, payload.transaction)
                self._learn(key, self._is_applied(sequence), ())
            case ForgetTransaction():
                self._unfinished.discard((payload.session, payload.transaction))
                self._bank.forgotten((payload.session, payload.transaction))
            case FinishTransaction():
                if self._is_applied(sequence):
                    self._finish((payload.session, payload.transaction), payload, sequence)

    def _collect(self, hold: Hold) -> None:
        """An exclusive consumer has consumed the messages below its position, except locked ones."""
        for place in sorted(one for one in self._went if one[0] in hold.destinations):
            if place in self._locked:
                self.fail(f"{place} of {self._channel} was consumed under a hold, and a transaction has it")
            if place[1] < hold.position:
                self._went.remove(place)
                self._bank.collected(self._channel, place[1])

    def _prepare(self, key: Key, wish: PrepareTransaction, sequence: int) -> None:
        if key not in self._promised:
            self.world.probe("ledger.prepared")
            self._promised[key] = Promised(wish.messages, wish.consumed)
            self._locked.update(dict.fromkeys(_places(wish.consumed), sequence))
            self._bank.promised(key, self._channel)

    def _decide(self, key: Key, wish: DecideTransaction, sequence: int) -> None:
        code = self._codes.get(sequence, OutcomeCode.APPLIED)
        if code == OutcomeCode.TX_ROLLED_BACK:
            self._learn(key, False, ())
        elif code == OutcomeCode.APPLIED:
            is_new = self._bank.stories[key].decision is None
            if is_new and wish.participants:
                self._unfinished.add(key)
            self._learn(key, True, tuple([one.channel for one in wish.participants]))
            if is_new and (wish.messages or wish.consumed):
                self._commit(key, sequence, Promised(wish.messages, wish.consumed), is_home=True)
        else:
            self.world.probe(f"ledger.decide.{OutcomeCode(code).name}")

    def _learn(self, key: Key, commits: bool, participants: tuple[str, ...]) -> None:
        story = self._bank.stories.get(key)
        known = story.decision if story is not None else None
        if known is None:
            self._bank.decided(key, commits, participants)
        elif story is not None and story.is_forgotten and not commits:
            self.world.probe("ledger.asked_after_all_was_forgotten")
        elif known != commits:
            self.fail(f"{self._channel} decided {known} about {key} before, and says {commits} now")

    def _finish(self, key: Key, wish: FinishTransaction, sequence: int) -> None:
        promised = self._promised.pop(key, None)
        for place in _places(promised.consumed) if promised is not None else ():
            self._locked.pop(place, None)
        if promised is None:
            self.world.probe("ledger.finished_before")
        elif wish.commits:
            self._commit(key, sequence, promised, is_home=False)
        else:
            self._bank.let_go(key, self._channel)

    def _commit(self, key: Key, sequence: int, part: Promised, *, is_home: bool) -> None:
        """The whole part takes effect now."""
        money = self._bank.committed(key, self._channel, sequence, part.messages, is_home)
        for row, one in enumerate(money):
            self._arrive(sequence + row, one)
        for place in _places(part.consumed):
            if place not in self._went:
                self.fail(f"{place} of {self._channel} was consumed by {key}, and did not go")
            self._went.remove(place)
        for consumed in part.consumed:
            self.world.probe("ledger.consumed_of_subscription", int(consumed.subscription > 0))

    def _arrive(self, number: int, money: Money) -> None:
        """A message is stored in its queue, or in every subscription that its topic has by now."""
        topic = money.destination
        places = {(one, number) for one in self._subscriptions.get(topic, ())}
        if topic in self._topics:
            self._bank.copied(money, len(places))
            # A topic need not keep a message that no subscription needs.
            self._came.discard((topic, number))
        else:
            places.add((topic, number))
        if places - self._came:
            self.fail(f"{number} of {self._channel} was stored, and is not in {sorted(places - self._came)}")
        self._came -= places


def _held(state: ChannelState) -> Iterator[tuple[int, Ranges]]:
    """The numbers in each queue, topic and subscription, by its id."""
    for one in state.directory:
        yield one.id, one.live
        for subscription in one.subscriptions.values() if isinstance(one, Topic) else ():
            yield subscription.id, subscription.needs(one.live)


def _places(consumed: tuple[Consumed, ...]) -> list[Place]:
    """The places of consumed messages."""
    sources = [(one.subscription or one.destination, one.numbers) for one in consumed]
    return [(source, number) for source, numbers in sources for number in numbers.numbers()]
