"""Committer: a teller whose transactions a client manager decides, over several channels.

If the connection is lost while a commit is under way, the next client manager is asked what became of it, and
so is one that cannot say it yet; unless the session is gone, and with it whoever knew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from antiphon.errors import SessionClosed
from antiphon.sim.checkers.bank import Key
from antiphon.sim.workloads.teller import AGAIN_NS, Branch, Teller
from antiphon.wire.frames import Failed, ServerFrame
from antiphon.wire.transaction_frames import (
    TransactionAsk,
    TransactionCommit,
    TransactionDecided,
    TransactionFate,
    TransactionPart,
)


@dataclass(slots=True)
class Undertaking:
    """A transaction that is under way."""

    number: int
    # The channel that decides; nothing: the system channel, whose name clients need not know.
    home: str = ""
    is_committing: bool = False


Own = TypeVar("Own", bound=Undertaking)


class Committer(Teller, Generic[Own]):
    """One transaction after the other."""

    def __init__(self, name: str, branch: Branch) -> None:
        super().__init__(name, branch)
        self.under_way: Own | None = None
        self.last_transaction = 0

    @property
    def key(self) -> Key:
        """The last transaction, as the bank knows it."""
        return self.session, self.last_transaction

    def abandoned(self) -> None:
        self.under_way = None
        self.last_transaction = 0

    def decided(self, fate: TransactionFate) -> None:
        """What became of the transaction that is under way."""
        raise NotImplementedError

    def commit_across(
        self, ours: Own, parts: Sequence[TransactionPart], application: str = "", version: int = 0
    ) -> None:
        """Wish that a client manager commits all parts, or none."""
        self.say(
            TransactionCommit(
                request=self.next_request(lambda frame: self._on_decided(ours, frame)),
                session=self.session,
                transaction=ours.number,
                parts=tuple(parts),
                application=application,
                version=version,
            )
        )

    def ask_about(self, ours: Own) -> None:
        """Ask what became of it."""
        if self.under_way is not ours:
            return
        self.say(
            TransactionAsk(
                request=self.next_request(lambda frame: self._on_decided(ours, frame)),
                session=self.session,
                transaction=ours.number,
                home=ours.home,
            )
        )

    def _on_decided(self, ours: Own, frame: ServerFrame) -> None:
        if self.under_way is not ours:
            return
        if isinstance(frame, TransactionDecided):
            self.decided(frame.fate)
        else:
            self._ask_again(ours, frame)

    def _ask_again(self, ours: Own, refusal: ServerFrame) -> None:
        """Nobody could say what became of a commit: ask later, or give up if the session is gone."""
        if isinstance(refusal, Failed) and refusal.code == SessionClosed.code:
            self.world.probe("client.commit_of_no_session")
            self.replace_session()
            return
        life, session = self.life, self.session

        def later() -> None:
            if (self.life, self.session) == (life, session):
                self.ask_about(ours)

        self.world.probe("client.commit_refused")
        self.world.after(AGAIN_NS, later)
