"""Bugs of the client manager: in what it tells its clients, and when it carries out a commit."""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch

from antiphon.client_manager.consumers import Consumers
from antiphon.client_manager.coordination import Coordination, Stage
from antiphon.wire.transaction_frames import TransactionFate


def standing_clock_trusted(patch: MonkeyPatch) -> None:
    """A client manager whose clock stood still passes on what lay in its sockets: no heartbeat says so."""
    patch.setattr(Consumers, "time_missed", lambda self, channel, event: None)


def loss_not_told(patch: MonkeyPatch) -> None:
    """A client manager does not tell connected clients what a new primary gave to others."""
    on_registered = Consumers._on_registered

    def registered_in_silence(self: Any, channel: str, message: Any) -> None:
        with MonkeyPatch.context() as within:
            within.setattr(Consumers, "_tell_lost", lambda self, consumer, lost: None)
            on_registered(self, channel, message)

    patch.setattr(Consumers, "_on_registered", registered_in_silence)


def credit_kept(patch: MonkeyPatch) -> None:
    """A client manager itself answers who drains a consumer: the primary goes on with the old credit."""
    drain = Consumers.drain

    def drain_at_once(self: Any, consumer: Any, request: int, messages: int, size: int) -> None:
        drain(self, consumer, request, messages, size)
        self._answer_drain(consumer)

    patch.setattr(Consumers, "drain", drain_at_once)


def decision_not_ordered(patch: MonkeyPatch) -> None:
    """A client manager carries a commit out as soon as all are ready, before the home channel has decided."""
    decide = Coordination._decide

    def decide_and_do(self: Any, transaction: Any) -> None:
        is_deciding = transaction.stage == Stage.DECIDING
        decide(self, transaction)
        if is_deciding:
            self._carry_out(transaction, TransactionFate.COMMITTED, "")

    patch.setattr(Coordination, "_decide", decide_and_do)


BUGS = (standing_clock_trusted, loss_not_told, credit_kept, decision_not_ordered)
