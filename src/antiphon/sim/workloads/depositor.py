"""Depositor and Stager: whoever brings money into the bank.

A depositor pays in by plain messages, outside of any transaction. A stager is an application that works in
versions: for each it stages messages in some channels, and then commits them all under that version. If its
process dies it begins with the version again, with other messages of the same worth; which of both counts is
decided once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.sim.checkers.bank import Bank, Key
from antiphon.sim.workloads.process import ClientHabits, Hall
from antiphon.sim.workloads.teller import Account, Lane, Teller, TellerHabits
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, Publish
from antiphon.wire.frames import AckMode, ServerFrame
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


class Depositor(Teller):
    """Pays in."""

    ack_mode = AckMode.INDIVIDUAL

    def __init__(
        self,
        name: str,
        hall: Hall,
        habits: ClientHabits,
        manners: TellerHabits,
        bank: Bank,
        accounts: Sequence[Account],
        deposits: int,
    ) -> None:
        super().__init__(name, hall, habits, manners, bank, accounts)
        self.left = deposits

    @property
    def is_idle(self) -> bool:
        return not self.left and not self.has_unconfirmed

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
        money = [self.coin(account, self.chance.randint(1, _AMOUNT_MAX)) for _ in range(rows)]
        lane = self.lanes.setdefault(account.channel, Lane())
        batch = self.batch_of(money, lane.next_number)
        self.bank.on_deposit(account.channel, self.session, lane.next_number, money)
        wish = Publish(account.destination, account.settings_version, 0, batch)
        self.order(account.channel, CommandKind.PUBLISH, wish.encode(), rows)
        self.start()


@dataclass(slots=True)
class Attempt:
    """One attempt at a version."""

    number: int
    # By channel: the part id, batches and messages.
    parts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    is_committing: bool = False


class Stager(Teller):
    """An application that commits in versions."""

    ack_mode = AckMode.INDIVIDUAL

    def __init__(
        self,
        name: str,
        hall: Hall,
        habits: ClientHabits,
        manners: TellerHabits,
        bank: Bank,
        accounts: Sequence[Account],
        versions: int,
    ) -> None:
        super().__init__(name, hall, habits, manners, bank, accounts)
        self.version = 1
        self._versions = versions
        self._attempts = 0
        self._attempt: Attempt | None = None

    @property
    def is_idle(self) -> bool:
        return self.version > self._versions and not self.has_unconfirmed

    @property
    def waits_for(self) -> str:
        return f"version {self.version} of {self._versions}"

    @property
    def _key(self) -> Key:
        return self.session, self._attempts

    def start(self) -> None:
        if self._attempt is None:
            self.later(self.chance.randrange(1, self.manners.pause_ns), self._begin)
        elif not self._attempt.is_committing:
            self._commit(self._attempt)

    def resumed(self) -> None:
        if self._attempt is not None and self._attempt.is_committing:
            self.world.probe("stager.asked")
            self._ask(self._attempt)

    def abandoned(self) -> None:
        self._attempt = None
        self._attempts = 0

    def _begin(self) -> None:
        """Stage the messages of a version: always as much money, in other messages."""
        if self.version > self._versions or self._attempt is not None:
            return
        self._attempts += 1
        attempt = self._attempt = Attempt(self._attempts)
        worth = 10 * self.version
        for account in self.chance.sample(self.accounts, self.chance.randint(1, len(self.accounts))):
            self._stage(attempt, account, worth // 2)
            worth -= worth // 2
        self._stage(attempt, self.chance.choice(self.accounts), worth)
        if self.chance.random() < self.manners.drop_probability:
            self.world.probe("stager.dropped")
            channel = self.chance.choice(sorted(attempt.parts))
            wish = DropStaged(parts=(attempt.parts[channel][0],))
            self.order(channel, CommandKind.DROP_STAGED, wish.encode())
        self.later(self.chance.randrange(self.manners.send_pause_ns), lambda: self._commit(attempt))

    def _stage(self, attempt: Attempt, account: Account, amount: int) -> None:
        if not amount:
            return
        channel = account.channel
        part, batches, messages = attempt.parts.get(channel) or (self.chance.getrandbits(128), 0, 0)
        money = [self.coin(account, amount)]
        lane = self.lanes.setdefault(channel, Lane())
        batch = self.batch_of(money, TRANSACTED_NUMBER | lane.rows + 1)
        lane.rows += 1
        wish = StagedPublish(
            part,
            batches,
            1,
            _STAGED_SECONDS,
            account.destination,
            account.settings_version,
            0,
            self.name,
            batch,
        )
        attempt.parts[channel] = part, batches + 1, messages + 1
        self.bank.on_staged(channel, part, money)
        self.order(channel, CommandKind.STAGE, wish.encode())

    def _commit(self, attempt: Attempt) -> None:
        if self._attempt is not attempt or attempt.is_committing:
            return
        attempt.is_committing = True
        staged: dict[str, tuple[int, ...]] = {
            channel: (part,) for channel, (part, _, _) in sorted(attempt.parts.items())
        }
        self.bank.on_version_wished(self._key, self.name, self.version, staged)
        parts = [
            TransactionPart(channel, batches, messages, (), (part,))
            for channel, (part, batches, messages) in sorted(attempt.parts.items())
        ]
        self.say(
            TransactionCommit(
                request=self.ask(lambda frame: self._on_decided(attempt, frame)),
                session=self.session,
                transaction=attempt.number,
                parts=tuple(parts),
                application=self.name,
                version=self.version,
            )
        )
        if self.chance.random() < self.manners.death_probability:
            self.world.probe("stager.died_in_commit")
            self.later(self.chance.randrange(3 * MILLISECOND_NS), self.crash)

    def _ask(self, attempt: Attempt) -> None:
        """The system channel decides; clients need not know its name."""
        if self._attempt is not attempt:
            return
        self.say(
            TransactionAsk(
                request=self.ask(lambda frame: self._on_decided(attempt, frame)),
                session=self.session,
                transaction=attempt.number,
                home="",
            )
        )

    def _on_decided(self, attempt: Attempt, frame: ServerFrame) -> None:
        if self._attempt is not attempt:
            return
        if not isinstance(frame, TransactionDecided):
            self.ask_again(frame, lambda: self._ask(attempt))
            return
        self.bank.on_told(self._key, frame.fate)
        self._attempt = None
        if frame.fate is not TransactionFate.ROLLED_BACK:
            self.version += 1
        if self.is_ready:
            self.start()
