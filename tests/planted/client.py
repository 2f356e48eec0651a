"""Bugs of the client library's core."""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch

from antiphon.client.core.consumer_requests import CreditOnDemand


def taken_goes_back_unseen(patch: MonkeyPatch) -> None:
    """A consumer that retires also gives back what the application has taken, as if nobody had seen it."""
    retire = CreditOnDemand.retire

    def retire_wholly(self: Any, session: Any, consumer: Any) -> None:
        retire(self, session, consumer)
        session.return_unseen(consumer, consumer.held.copy())

    patch.setattr(CreditOnDemand, "retire", retire_wholly)


BUGS = (taken_goes_back_unseen,)
