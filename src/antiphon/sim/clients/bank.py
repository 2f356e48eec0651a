"""Rude sessions of a bank: they bring money into accounts of several channels, or take some out.

A depositor pays in by plain messages, outside of any transaction. A stager is an application that works in
versions: it stages messages in some channels, and then commits them all under a version. A stager whose
process died begins with the version again, with other messages of the same worth; one of both counts. A
collector has an account alone for a while and consumes it by reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon.batch import Batch
from antiphon.errors import SessionClosed
from antiphon.sim.checkers.bank import Bank, Key, Money
from antiphon.sim.clients.holder import RudeHolder
from antiphon.sim.clients.process import ClientHabits, ClientHall, ClientProcess
from antiphon.sim.clients.rude import AGAIN_NS, Account, RudeClient, RudeSession
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, Publish
from antiphon.wire.frames import Failed, ServerFrame
from antiphon.wire.transaction_frames import (
    TransactionAsk,
    TransactionCommit,
    TransactionDecided,
    TransactionFate,
    TransactionPart,
)
from antiphon.wire.transactions import TRANSACTED_NUMBER, DropStaged, StagedPublish

_STAGED_SECONDS = 600
_AMOUNT_MAX = 100


@dataclass(slots=True, kw_only=True)
class TellerHabits:
    """How the clients of a bank behave; drawn once per run."""

    transfers: int = 10
    pause_ns: int = 20 * MILLISECOND_NS
    # Between the sends of one transaction.
    send_pause_ns: int = 2 * MILLISECOND_NS
    messages_max: int = 3
    rollback_probability: float = 0.15
    # The process dies when it has sent everything, or has just wished to commit.
    death_probability: float = 0.0
    # Of transactions that were open when the connection was lost: how many go on all the same.
    go_on_probability: float = 0.5
    # How often consumers come back with what they hold.
    keep_probability: float = 0.5
    look_probability: float = 0.1
    drop_probability: float = 0.1
    # How often a consumer is closed while the transaction has messages of it.
    retire_probability: float = 0.0
    # Takes money out, and sends none.
    is_closing: bool = False


@dataclass(slots=True)
class Branch:
    """Where tellers work: each account is made in its channel by the client that comes first."""

    hall: ClientHall
    habits: ClientHabits
    manners: TellerHabits
    bank: Bank
    # Queues and topics, as a client knows them that has found none yet.
    accounts: Sequence[Account]

    def own_accounts(self) -> list[Account]:
        """All accounts, for one client."""
        return [replace(one) for one in self.accounts]


class Coins:
    """Makes messages of a client; no two bodies are equal."""

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self._bodies = 0

    def coin(self, destination: int, amount: int) -> Money:
        """A message of this worth."""
        client = self._client
        self._bodies += 1
        body = f"{client.name}.{client.life}.{self._bodies}:{amount}".encode()
        room = client.chance.randrange(client.habits.body_bytes_max)
        return Money(destination, body.ljust(room, b"."))


class Teller(RudeSession):
    """A session that pays in; the accounts that were found once have not moved."""

    knows_accounts = True

    def __init__(self, client: RudeClient, branch: Branch) -> None:
        super().__init__(client, branch.own_accounts())
        self.manners = branch.manners
        self.bank = branch.bank
        self.coins = Coins(client)

    def batch_of(self, money: Sequence[Money], first_number: int) -> bytes:
        """These messages, as a batch of this session."""
        now_ms = self.world.now_ns // MILLISECOND_NS
        return Batch.of_bodies([one.body for one in money], self.id, first_number, now_ms).encode()


class Depositor(Teller):
    """Pays in by plain messages."""

    def __init__(self, client: RudeClient, branch: Branch, deposits: int) -> None:
        super().__init__(client, branch)
        self.left = deposits

    @property
    def is_idle(self) -> bool:
        return not self.left and super().is_idle

    @property
    def waits_for(self) -> str:
        return f"{self.left} deposits"

    def start(self) -> None:
        self.later(self.chance.randrange(1, self.manners.pause_ns), self._pay_in)

    def _pay_in(self) -> None:
        if not self.left:
            return
        account = self.chance.choice(self.accounts)
        rows = min(self.left, self.chance.randint(1, self.manners.messages_max))
        self.left -= rows
        money = [
            self.coins.coin(account.destination, self.chance.randint(1, _AMOUNT_MAX)) for _ in range(rows)
        ]
        number = self.numbers_in(account.channel).next_number
        batch = self.batch_of(money, number)
        self.bank.on_deposit(account.channel, self.id, number, money)
        wish = Publish(account.destination, account.settings_version, 0, batch)
        self.order(account.channel, CommandKind.PUBLISH, wish.encode(), rows)
        self.start()


@dataclass(slots=True)
class PartOfVersion:
    """The messages that an attempt has staged in one channel."""

    id: int
    batches: int = 0
    messages: int = 0


@dataclass(slots=True)
class VersionAttempt:
    """An attempt at a version: a transaction that the system channel decides."""

    number: int
    is_committing: bool = False
    parts: dict[str, PartOfVersion] = field(default_factory=dict)


class Stager(Teller):
    """An application that commits in versions.

    If the connection is lost while a commit is under way, the stager asks the next client manager for the
    outcome, until the outcome is known or the session is gone.
    """

    def __init__(self, client: RudeClient, branch: Branch, versions: int) -> None:
        super().__init__(client, branch)
        self.version = 1
        self._versions = versions
        self._attempt: VersionAttempt | None = None
        self._last_transaction = 0

    @property
    def is_idle(self) -> bool:
        return self.version > self._versions and super().is_idle

    @property
    def waits_for(self) -> str:
        return f"version {self.version} of {self._versions}"

    @property
    def _key(self) -> Key:
        return self.id, self._last_transaction

    def start(self) -> None:
        if self._attempt is None:
            self.later(self.chance.randrange(1, self.manners.pause_ns), self._begin)
        elif not self._attempt.is_committing:
            self._commit(self._attempt)

    def resumed(self) -> None:
        if self._attempt is not None and self._attempt.is_committing:
            self.world.probe("stager.asked")
            self._ask_about(self._attempt)

    def abandoned(self) -> None:
        self._attempt = None
        self._last_transaction = 0

    def _begin(self) -> None:
        """Stage the messages of a version: every attempt stages the same worth in other messages."""
        if self.version > self._versions or self._attempt is not None:
            return
        self._last_transaction += 1
        attempt = self._attempt = VersionAttempt(self._last_transaction)
        worth = 10 * self.version
        for account in self.chance.sample(self.accounts, self.chance.randint(1, len(self.accounts))):
            self._stage(attempt, account, worth // 2)
            worth -= worth // 2
        self._stage(attempt, self.chance.choice(self.accounts), worth)
        if self.chance.random() < self.manners.drop_probability:
            self.world.probe("stager.dropped")
            channel = self.chance.choice(sorted(attempt.parts))
            wish = DropStaged(parts=(attempt.parts[channel].id,))
            self.order(channel, CommandKind.DROP_STAGED, wish.encode())
        self.later(self.chance.randrange(self.manners.send_pause_ns), lambda: self._commit(attempt))

    def _stage(self, attempt: VersionAttempt, account: Account, amount: int) -> None:
        if not amount:
            return
        channel = account.channel
        if channel not in attempt.parts:
            attempt.parts[channel] = PartOfVersion(self.chance.getrandbits(128))
        part, numbers = attempt.parts[channel], self.numbers_in(channel)
        money = [self.coins.coin(account.destination, amount)]
        batch = self.batch_of(money, TRANSACTED_NUMBER | numbers.rows + 1)
        numbers.rows += 1
        wish = StagedPublish(
            part.id,
            part.batches,
            1,
            _STAGED_SECONDS,
            account.destination,
            account.settings_version,
            0,
            self.client.name,
            batch,
        )
        part.batches += 1
        part.messages += 1
        self.bank.on_staged(channel, part.id, money)
        self.order(channel, CommandKind.STAGE, wish.encode())

    def _commit(self, attempt: VersionAttempt) -> None:
        if self._attempt is not attempt or attempt.is_committing:
            return
        attempt.is_committing = True
        rows = sorted(attempt.parts.items())
        staged: dict[str, tuple[int, ...]] = {channel: (part.id,) for channel, part in rows}
        self.bank.on_version_wished(self._key, self.client.name, self.version, staged)
        parts = [TransactionPart(channel, one.batches, one.messages, (), (one.id,)) for channel, one in rows]
        self.ask(
            lambda request: TransactionCommit(
                request=request,
                session=self.id,
                transaction=attempt.number,
                parts=tuple(parts),
                application=self.client.name,
                version=self.version,
            ),
            lambda frame: self._on_decided(attempt, frame),
        )
        if self.chance.random() < self.manners.death_probability:
            self.world.probe("stager.died_in_commit")
            self.later(self.chance.randrange(3 * MILLISECOND_NS), self.client.crash)

    def _ask_about(self, attempt: VersionAttempt) -> None:
        if self._attempt is attempt:
            self.ask(
                lambda request: TransactionAsk(
                    request=request, session=self.id, transaction=attempt.number, home=""
                ),
                lambda frame: self._on_decided(attempt, frame),
            )

    def _on_decided(self, attempt: VersionAttempt, frame: ServerFrame) -> None:
        if self._attempt is not attempt:
            return
        if isinstance(frame, TransactionDecided):
            self.bank.on_told(self._key, frame.fate)
            self._attempt = None
            if frame.fate is not TransactionFate.ROLLED_BACK:
                self.version += 1
            if frame.fate is not TransactionFate.COMMITTED:
                # Messages that were staged in vain would lie there for minutes.
                for channel, part in attempt.parts.items():
                    wish = DropStaged(parts=(part.id,))
                    self.order(channel, CommandKind.DROP_STAGED, wish.encode())
            if self.is_ready:
                self.start()
        elif isinstance(frame, Failed) and frame.code == SessionClosed.code:
            self.world.probe("client.commit_of_no_session")
            self.replace()
        else:
            self.world.probe("client.commit_refused")
            life, session = self.client.life, self.id

            def again() -> None:
                if (self.client.life, self.id) == (life, session):
                    self._ask_about(attempt)

            self.world.after(AGAIN_NS, again)


class Collector(RudeHolder):
    """Has an account alone under a hold, now and then: messages read and gone past have left the bank."""

    def __init__(self, client: RudeClient, branch: Branch, at: int) -> None:
        account = branch.own_accounts()[at]
        super().__init__(client, account.name, account.settings, consumes=True)
        self._bank = branch.bank

    def on_read(self, number: int, body: bytes) -> None:
        self._bank.on_delivered(self.account.channel, number, body)
