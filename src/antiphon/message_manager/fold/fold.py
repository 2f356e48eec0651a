"""Fold: applies the commands of the log to the state of a channel, by a table of handlers.

FLD1  Only the log and the state decide: every replica does the same, the primary too. The primary's parts
      hear of every change, and decide nothing here.
FLD2  A command is checked against its session (number, generation) before it is done.
FLD3  Applying never fails. A command that cannot be done has an outcome, and takes its numbers.
"""

from __future__ import annotations

from typing import Any, Final

from antiphon.bus.messages import Entry
from antiphon.bus.ports import Location
from antiphon.errors import ProtocolError
from antiphon.message_manager.fold import (
    burials,
    client_ids,
    destinations,
    event_log,
    expiry,
    families,
    holds,
    messages,
    sessions,
    subscriptions,
    transactions,
)
from antiphon.message_manager.fold.plain import take_plain
from antiphon.message_manager.fold.turns import (
    REFUSED,
    TEXT_MAX,
    Channel,
    CommandRule,
    Envelope,
    Partly,
    Turn,
    Verdict,
    settle,
)
from antiphon.message_manager.state.sessions import Owner
from antiphon.wire.commands import CommandKind, Outcome, iterate_commands

RULES: Final[dict[int, CommandRule[Any]]] = {
    int(rule.kind): rule
    for area in (
        messages,
        burials,
        destinations,
        subscriptions,
        families,
        sessions,
        client_ids,
        transactions,
        holds,
        expiry,
        event_log,
    )
    for rule in area.RULES
}

LOST: Final = "the data servers lost it, and an operator gave it up"
"""The outcome of an envelope that went on without its payload."""

# A plain number: looking up a member of an enum costs as much as a step of the fold.
_LOG_TIME: Final = int(CommandKind.LOG_TIME)


def apply(channel: Channel, entry: Entry, payload: memoryview, location: Location) -> None:
    sequence = entry.first
    end = sequence + entry.count
    envelope = Envelope(payload, Owner(entry.mid.pid, entry.mid.pe), entry.digest, location)
    taken, sequence = take_plain(channel, envelope, sequence, end)
    has_traffic = taken > 0
    try:
        for header, body, offset in iterate_commands(payload, taken):
            upto = sequence + header.count
            if upto > end:
                raise ProtocolError("the commands of an envelope take more numbers than it has")
            apply_command(channel, Turn(header, sequence, offset, envelope), body)
            has_traffic = has_traffic or header.kind != _LOG_TIME
            sequence = upto
    except ProtocolError as error:
        # Only a client manager that does not check lets this happen; replicas agree all the same (FLD3).
        if sequence < end:
            outcome = Outcome(sequence, end - sequence, REFUSED, 0, error.text[:TEXT_MAX])
            channel.state.outcomes.note(outcome)
    if has_traffic and channel.primary is not None:
        channel.primary.proposals.has_traffic = True


def apply_command(channel: Channel, turn: Turn, body: memoryview) -> None:
    """Admit a command (FLD2), decode it, apply it, and note the outcome."""
    _, admit, decode, handler, malformed = RULES[turn.header.kind]
    if not admit(channel, turn):
        return
    try:
        wish = decode(body)
    except ProtocolError as error:
        if malformed is not None:
            malformed(channel, turn)
        verdict: Verdict | Partly | None = Verdict(REFUSED, text=error.text)
    else:
        verdict = handler(channel, turn, wish)
    settle(channel, turn, verdict)


def apply_void(channel: Channel, entry: Entry) -> None:
    """Apply an envelope whose payload is lost for good: its numbers stay empty."""
    channel.state.outcomes.note(Outcome(entry.first, entry.count, REFUSED, 0, LOST))
