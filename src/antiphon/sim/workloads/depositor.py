"""Depositor and Stager: whoever brings money into the bank.

A depositor pays in by plain messages, outside of any transaction. A stager is an application that works in
versions: for each it stages messages in some channels, and then commits them all under that version. If its
process dies it begins with the version again, with other messages of the same worth; which of both counts is
decided once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.sim.workloads.committer import Committer, Undertaking
from antiphon.sim.workloads.teller import Account, Branch, Teller
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, Publish
from antiphon.wire.frames import AckMode
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import DropStaged, StagedPublish

_STAGED_SECONDS = 600
_AMOUNT_MAX = 100


class Depositor(Teller):
    """Pays in."""

    ack_mode = AckMode.INDIVIDUAL

    def __init__(self, name: str, branch: Branch, deposits: int) -> None:
        super().__init__(name, branch)
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
        number = self.lane(account.channel).next_number
        batch = self.batch_of(money, number)
        self.bank.on_deposit(account.channel, self.session, number, money)
        wish = Publish(account.destination, account.settings_version, 0, batch)
        self.order(account.channel, CommandKind.PUBLISH, wish.encode(), rows)
        self.start()


@dataclass(slots=True)
class Attempt(Undertaking):
    """One attempt at a version."""

    # By channel: the part id, batches and messages.
    parts: dict[str, tuple[int, int, int]] = field(default_factory=dict)


class Stager(Committer[Attempt]):
    """An application that commits in versions."""

    ack_mode = AckMode.INDIVIDUAL

    def __init__(self, name: str, branch: Branch, versions: int) -> None:
        super().__init__(name, branch)
        self.version = 1
        self._versions = versions

    @property
    def is_idle(self) -> bool:
        return self.version > self._versions and not self.has_unconfirmed

    @property
    def waits_for(self) -> str:
        return f"version {self.version} of {self._versions}"

    def start(self) -> None:
        if self.under_way is None:
            self.later(self.chance.randrange(1, self.manners.pause_ns), self._begin)
        elif not self.under_way.is_committing:
            self._commit(self.under_way)

    def resumed(self) -> None:
        if self.under_way is not None and self.under_way.is_committing:
            self.world.probe("stager.asked")
            self.ask_about(self.under_way)

    def _begin(self) -> None:
        """Stage the messages of a version: always as much money, in other messages."""
        if self.version > self._versions or self.under_way is not None:
            return
        self.last_transaction += 1
        attempt = self.under_way = Attempt(self.last_transaction)
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
        batch = self.transacted(channel, money)
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
        if self.under_way is not attempt or attempt.is_committing:
            return
        attempt.is_committing = True
        staged: dict[str, tuple[int, ...]] = {
            channel: (part,) for channel, (part, _, _) in sorted(attempt.parts.items())
        }
        self.bank.on_version_wished(self.key, self.name, self.version, staged)
        parts = [
            TransactionPart(channel, batches, messages, (), (part,))
            for channel, (part, batches, messages) in sorted(attempt.parts.items())
        ]
        self.commit_across(attempt, parts, self.name, self.version)
        if self.chance.random() < self.manners.death_probability:
            self.world.probe("stager.died_in_commit")
            self.later(self.chance.randrange(3 * MILLISECOND_NS), self.crash)

    def decided(self, fate: TransactionFate) -> None:
        self.bank.on_told(self.key, fate)
        self.under_way = None
        if fate is not TransactionFate.ROLLED_BACK:
            self.version += 1
        if self.is_ready:
            self.start()
