"""Holds: named readers for whom messages are kept, as long as they renew the hold.

A hold is a command in the order of each channel it concerns. The command may be repeated, so after a failure
it is simply sent again, in a new session if need be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from antiphon.client.aio.scope import SessionScope
from antiphon.errors import AntiphonError, DestinationError, LocalError, RangeError, SessionClosed
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from antiphon.wire.holds import HELD_DESTINATIONS_MAX, HOLD_MS_MAX, HOLD_NAME_BYTES_MAX, Hold, ReleaseHold

LIMIT_DEFAULT_S = 86_400.0

_OTHER_SESSION = frozenset(
    (OutcomeCode.STALE, OutcomeCode.SESSION_UNKNOWN, OutcomeCode.GAP, OutcomeCode.FORGOTTEN)
)
_NUMBERED = frozenset((OutcomeCode.APPLIED, OutcomeCode.DUPLICATE, OutcomeCode.OUTDATED))
_ATTEMPTS = 3


class HoldReport(NamedTuple):
    """A hold in one channel: the number up to which its holder is done, and how much is kept behind that.

    The hold ends `limit_s` after its holder's last command, which was `age_s` ago by the channel's time.
    Without `destinations` it holds all of the channel.
    """

    name: str
    channel: str
    position: int
    rows: int
    bytes: int
    age_s: float
    limit_s: float
    consume: bool
    acks: bool
    destinations: tuple[str, ...]


def read_reports(channel: str, rows: list[dict[str, Any]]) -> list[HoldReport]:
    """A replica's report of the holds of its channel."""
    return [
        HoldReport(
            row["name"],
            channel,
            row["position"],
            row["rows"],
            row["bytes"],
            row["age_ms"] / 1000,
            row["limit_ms"] / 1000,
            row["consume"],
            row["acks"],
            tuple(row["destinations"] or ()),
        )
        for row in rows
    ]


def make_hold(
    name: str, position: int, destinations: tuple[int, ...], limit_s: float, *, consume: bool, acks: bool
) -> Hold:
    """The command, or LocalError if there can be no such hold."""
    if not (isinstance(name, str) and 0 < len(name.encode()) <= HOLD_NAME_BYTES_MAX):
        raise LocalError(f"a hold is named by 1 to {HOLD_NAME_BYTES_MAX} bytes of text")
    limit_ms = int(limit_s * 1000)
    if not 0 < limit_ms <= HOLD_MS_MAX:
        raise LocalError(f"the limit of a hold is up to {HOLD_MS_MAX // 1000:,} s; it was {limit_s:g}")
    if len(destinations) > HELD_DESTINATIONS_MAX:
        # More than can be named one by one: then all of the channel.
        destinations = ()
    return Hold(
        name=name,
        position=position,
        limit_ms=limit_ms,
        consumes=consume,
        acks=acks,
        destinations=destinations,
    )


class Holding:
    """Sends the commands, in a session of its own.

    `heard` is shared: the highest number of each channel that was heard of, here or elsewhere.
    """

    def __init__(self, make_scope: Callable[[], SessionScope], heard: dict[str, int]) -> None:
        self._make_scope = make_scope
        self._scope = make_scope()
        self._heard = heard

    async def say(self, channel: str, command: Hold | ReleaseHold) -> None:
        """Have the command ordered; raises why it was not done.

        An outdated command is sent again: a hold has begun or ended since, and now that is known.
        """
        while True:
            heard = self._heard.get(channel, 0)
            outcome = await self._order(channel, replace(command, heard=heard))
            if outcome.code in _NUMBERED:
                self._heard[channel] = max(outcome.sequence, self._heard.get(channel, 0))
            if outcome.code != OutcomeCode.OUTDATED or outcome.sequence <= heard:
                break
        error = _error(channel, command.name, outcome)
        if error is not None:
            raise error

    async def _order(self, channel: str, command: Hold | ReleaseHold) -> ConfirmItem:
        """The outcome of the command, in another session if the present one is over."""
        for attempt in range(_ATTEMPTS):
            is_last = attempt == _ATTEMPTS - 1
            try:
                core = await self._scope.core()
                outcome = await self._scope.order(channel, command)
            except SessionClosed:
                if is_last or self._scope.is_closed:
                    raise
            else:
                core.note_known(channel)
                if outcome.code not in _OTHER_SESSION or is_last:
                    return outcome
            self._scope = self._make_scope()
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._scope.close()


def _error(channel: str, name: str, item: ConfirmItem) -> AntiphonError | None:
    if item.code in (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE):
        return None
    if item.code == OutcomeCode.NO_DESTINATION:
        return DestinationError(
            f"hold {name!r}: none of its destinations in channel {channel} exists any more"
        )
    text = item.text or f"it was refused for a reason this client does not know ({item.code})"
    return RangeError(f"hold {name!r} in channel {channel}: {text}")
