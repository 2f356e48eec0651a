"""Transactions happen wholly or not at all, over all channels, and clients are told the truth.

    all or nothing   a part is committed whole; a transaction that is committed in one channel is committed in
                     every channel that has a part of it, and only after its home has decided so
    promises         the home decides to commit when every participant has promised, and no promised part was
                     rolled back
    truth            a client is told the outcome that happened, then and at the end
    no dirty read    a delivered or browsed message has been committed, under that number and with that
                     content
    closed ranges    a range of numbers that was shown never gains a message
    once             a version of an application is committed once, and versions go up
    log order        the consumers of a subscription are shown messages for the first time by their numbers
    conservation     the money paid in and brought by versions is the money taken out when all accounts are
                     empty; a message to a topic counts once for each subscription

Clients tell the bank their wishes before they send them; each channel's `ChannelLedger` tells the bank the
effects of each entry, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.sim.checkers.acknowledgement import Finality
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World
from antiphon.wire.transaction_frames import TransactionFate

Key = tuple[int, int]
"""A transaction: session and number."""


class Money(NamedTuple):
    """A message: its destination, and a body that no other message has."""

    destination: int
    body: bytes

    @property
    def amount(self) -> int:
        return amount_of(self.body)


def amount_of(body: bytes) -> int:
    """The amount in a body `name:amount`, which dots fill up."""
    return int(body.rstrip(b".").rpartition(b":")[2])


@dataclass(slots=True)
class Story:
    """Everything known of one transaction."""

    # By channel, in the order of the client's sends.
    sent: dict[str, list[Money]] = field(default_factory=dict)
    # The channels with a part of the transaction; empty until the client wishes to commit.
    channels: tuple[str, ...] = ()
    staged: dict[str, tuple[int, ...]] = field(default_factory=dict)
    withdrawn: int = 0
    application: str = ""
    version: int = 0
    promised: set[str] = field(default_factory=set)
    let_go: set[str] = field(default_factory=set)
    committed: dict[str, int] = field(default_factory=dict)
    decision: bool | None = None
    # Every participant has carried out the decision: a later question may be answered "none".
    is_forgotten: bool = False
    told: TransactionFate | None = None


class Bank(Checker):
    """Compares the clients' wishes, the logs, and the answers and messages that clients get."""

    promise = "transactions"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.stories: dict[Key, Story] = {}
        # Every message that is or was visible, by channel and number.
        self.seen_as: dict[tuple[str, int], Money] = {}
        self._place_of: dict[bytes, tuple[str, int]] = {}
        self._deposits: dict[tuple[str, int, int], Money] = {}
        self._staged: dict[tuple[str, int], list[Money]] = {}
        # By channel: the checker of the delivery counts that consumers were told.
        self.redeliveries: dict[str, Redeliveries] = {}
        self.finality = Finality(world)
        self._shown_through: dict[tuple[str, int], int] = {}
        # By channel and subscription: the highest number shown as delivered for the first time.
        self._taken_first: dict[tuple[str, int], int] = {}
        self._done: dict[str, int] = {}
        self._paid_in = 0
        self._withdrawn = 0
        self._delivered = 0
        self._topic_messages = 0

    @property
    def figures(self) -> dict[str, int]:
        stories = self.stories.values()
        return {
            "transactions": len(stories),
            "committed": sum(1 for one in stories if one.committed),
            "across": sum(1 for one in stories if len(one.committed) > 1),
            "told": sum(1 for one in stories if one.told is not None),
            "delivered": self._delivered,
            "versions": sum(self._done.values()),
            "withdrawn": self._withdrawn,
            "to topics": self._topic_messages,
        }

    # Wishes of clients.

    def on_deposit(self, channel: str, session: int, number: int, money: Sequence[Money]) -> None:
        for row, one in enumerate(money):
            self._deposits[channel, session, number + row] = one

    def on_sent_within(self, key: Key, channel: str, money: Sequence[Money]) -> None:
        self._story(key).sent.setdefault(channel, []).extend(money)

    def on_staged(self, channel: str, part: int, money: Sequence[Money]) -> None:
        self._staged.setdefault((channel, part), []).extend(money)

    def on_commit_wished(self, key: Key, channels: Sequence[str], withdrawn: int = 0) -> None:
        """A client wishes to commit its parts in these channels; `withdrawn` money leaves the bank by
        that."""
        story = self._story(key)
        story.channels, story.withdrawn = tuple(channels), withdrawn

    def on_version_wished(
        self, key: Key, application: str, version: int, staged: dict[str, tuple[int, ...]]
    ) -> None:
        """A client wishes to commit the staged messages as a version."""
        story = self._story(key)
        story.channels, story.staged = tuple(staged), staged
        story.application, story.version = application, version

    def _story(self, key: Key) -> Story:
        return self.stories.setdefault(key, Story())

    # Answers and messages that clients get.

    def on_told(self, key: Key, fate: TransactionFate) -> None:
        """A client learned the outcome of its transaction."""
        story = self.stories[key]
        self.world.probe(f"bank.told.{fate.name}")
        if story.told not in (None, fate):
            self.fail(f"{_name(key)} was told {story.told.name} and then {fate.name}")
        story.told = fate
        self._check_told(key, story)
        if fate is TransactionFate.COMMITTED and not story.committed and story.decision is None:
            self.fail(f"{_name(key)} was told that it is committed, and nobody has decided that")
        if fate is TransactionFate.COMMITTED_BEFORE and self._done.get(story.application, 0) < story.version:
            self.fail(f"version {story.version} of {story.application} is said to be committed, and is not")

    def _check_told(self, key: Key, story: Story) -> None:
        if story.told is TransactionFate.COMMITTED:
            if story.decision is False:
                self.fail(f"{_name(key)} was told that it is committed, and its home rolled it back")
        elif story.told is not None and (story.committed or story.decision):
            self.fail(f"{_name(key)} was told {story.told.name}, and was committed")

    def on_delivered(self, channel: str, number: int, body: bytes) -> None:
        """A message reached a client, by delivery or in a page."""
        self._delivered += 1
        known = self.seen_as.get((channel, number))
        if known is None:
            self.fail(f"dirty read: {body[:20]!r} is shown as {number} of {channel}, and not committed")
        if known.body != body:
            self.fail(f"{number} of {channel} is {known.body[:20]!r}, and is shown as {body[:20]!r}")

    def on_taken(
        self, channel: str, session: int, consumer: int, subscription: int, number: int, count: int
    ) -> None:
        """A consumer was given a message with its count of earlier deliveries."""
        at = (channel, subscription)
        if subscription and not count:
            if number <= self._taken_first.get(at, 0):
                self.fail(f"{number} is shown behind {self._taken_first[at]} to subscription {at}")
            self._taken_first[at] = number
        if (of_channel := self.redeliveries.get(channel)) is not None:
            of_channel.shown(session, consumer, number, count)

    def on_shown(self, channel: str, destination: int, through: int) -> None:
        """A client has seen all of a queue through a number."""
        self.world.probe("bank.page_shown")
        at = (channel, destination)
        self._shown_through[at] = max(self._shown_through.get(at, 0), through)

    # Effects of the logs; each is told once.

    def deposit(self, channel: str, session: int, number: int, sequence: int) -> Money:
        """A number of a session was stored outside of a transaction."""
        money = self._deposits.get((channel, session, number))
        if money is None:
            self.fail(f"{sequence} of {channel} is a deposit that nobody made")
        self._paid_in += money.amount
        self._show(channel, sequence, money)
        return money

    def copied(self, money: Money, copies: int) -> None:
        """A message came to a topic with this many subscriptions: each subscription has the money."""
        self.world.probe(f"bank.copies.{min(copies, 2)}")
        self._topic_messages += 1
        self._paid_in += money.amount * (copies - 1)

    def _show(self, channel: str, number: int, money: Money) -> None:
        at = (channel, number)
        if (place := self._place_of.setdefault(money.body, at)) != at:
            self.fail(f"{money.body[:20]!r} is stored twice, at {place} and at {at}")
        if number <= self._shown_through.get((channel, money.destination), 0):
            self.fail(f"queue {money.destination} of {channel} gains {number}, in a range that was shown")
        self.seen_as[at] = money

    def promised(self, key: Key, channel: str) -> None:
        """A participant has promised to commit its part."""
        story = self._story(key)
        story.promised.add(channel)
        story.let_go.discard(channel)
        if story.decision is False:
            # The promise came too late, and the client will be told so.
            self.world.probe("bank.promised_in_vain")

    def decided(self, key: Key, commits: bool, participants: Sequence[str]) -> None:
        story = self._story(key)
        self.world.probe(f"bank.decided.{commits}")
        story.decision = commits
        if not commits:
            self._check_told(key, story)
            return
        for channel in participants:
            if channel not in story.promised:
                self.fail(f"{_name(key)} is committed, and {channel} never promised its part")
            if channel in story.let_go:
                self.fail(f"{_name(key)} is committed, and {channel} has let go of its part")
        if story.application:
            if story.version <= self._done.get(story.application, 0):
                self.fail(f"version {story.version} of {story.application} is committed once more")
            self._done[story.application] = story.version
        self._check_told(key, story)

    def committed(self, key: Key, channel: str, sequence: int, messages: int, is_home: bool) -> list[Money]:
        """A part took effect, with so many messages from this number on; they must be the client's."""
        story = self._story(key)
        if not is_home and story.decision is not True:
            self.fail(f"{channel} commits its part of {_name(key)}, which its home has not decided to commit")
        if channel in story.committed:
            self.fail(f"{channel} commits its part of {_name(key)} twice")
        money = story.sent.get(channel, [])
        for part in story.staged.get(channel, ()):
            money = money + self._staged[channel, part]
        if len(money) != messages:
            self.fail(f"{_name(key)} brings {messages} messages to {channel}, {len(money)} were sent")
        for row, one in enumerate(money):
            self._show(channel, sequence + row, one)
        if not story.committed:
            self._withdrawn += story.withdrawn
        if story.staged:
            self._paid_in += sum(one.amount for one in money)
        story.committed[channel] = sequence
        self._check_told(key, story)
        return money

    def collected(self, channel: str, number: int) -> None:
        """A message went because the only consumer of its queue has passed it."""
        self.world.probe("bank.collected")
        self._withdrawn += self.seen_as[channel, number].amount

    def let_go(self, key: Key, channel: str) -> None:
        """A participant has rolled back a part that it had promised."""
        story = self._story(key)
        if story.decision:
            self.fail(f"{channel} lets go of its part of {_name(key)}, which its home has decided to commit")
        story.let_go.add(channel)

    def forgotten(self, key: Key) -> None:
        story = self._story(key)
        if story.decision and set(story.committed) != set(story.channels):
            missing = sorted(set(story.channels) - set(story.committed))
            self.fail(f"{_name(key)} may be forgotten, and {missing} have not committed their parts")
        story.is_forgotten = True

    def at_quiet(self, facts: dict[int, int]) -> None:
        for key, story in self.stories.items():
            if story.committed and set(story.committed) != set(story.channels):
                self.fail(
                    f"{_name(key)} has parts in {story.channels}, and is committed in {list(story.committed)}"
                )
            if story.told is TransactionFate.COMMITTED and not story.committed:
                self.fail(f"{_name(key)} was told that it is committed, and never was")
            self._check_told(key, story)
        if self._paid_in != self._withdrawn:
            self.fail(f"{self._paid_in} was paid in, and {self._withdrawn} taken out of empty accounts")


def _name(key: Key) -> str:
    return f"transaction {key[1]} of session {key[0]:#x}"
