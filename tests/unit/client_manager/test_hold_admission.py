"""What a client may have ordered about holds."""

from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.wire import frames
from antiphon.wire.commands import CommandKind, OutcomeCode, Payload, encode_command, kind_of
from antiphon.wire.holds import HELD_DESTINATIONS_MAX, HOLD_MS_MAX, Hold, ReleaseHold
from tests.unit.client_manager.stage import CHANNEL, Stage, kinds


def hold(name: str = "spark", limit_ms: int = 60_000, destinations: int = 1) -> Hold:
    return Hold(name=name, position=5, limit_ms=limit_ms, destinations=tuple(range(1, destinations + 1)))


def said(session: int, payload: Payload, number: int = 1) -> frames.Command:
    data = encode_command(kind_of(payload), session, 1, number, 0, payload.encode())
    return frames.Command(channel=CHANNEL, command=data)


def on_stage() -> tuple[Stage, int]:
    stage = Stage()
    stage.connect()
    return stage, stage.open_session()


def test_holds_are_ordered_and_confirmed_like_other_commands() -> None:
    stage, session = on_stage()
    largest = hold("x" * 255, HOLD_MS_MAX, HELD_DESTINATIONS_MAX)
    stage.say(1, said(session, hold(), 1), said(session, largest, 2), said(session, ReleaseHold(name="a"), 3))
    (envelope,) = stage.submitted
    assert kinds(envelope)[1:] == [CommandKind.HOLD, CommandKind.HOLD, CommandKind.RELEASE]
    stage.confirm()
    (confirm,) = stage.heard_of(frames.Confirm)
    assert [(item.number, item.count, item.code) for item in confirm.items] == [(1, 3, OutcomeCode.APPLIED)]


BREACHES: dict[str, tuple[Payload, str]] = {
    "no name": (hold(""), "0 bytes"),
    "a long name": (hold("é" * 128), "256 bytes"),
    "no time": (hold(limit_ms=0), "lasts 0 ms"),
    "for ever": (hold(limit_ms=HOLD_MS_MAX + 1), "ms"),
    "too many destinations": (hold(destinations=HELD_DESTINATIONS_MAX + 1), "16385 destinations"),
    "a release of no name": (ReleaseHold(name=""), "0 bytes"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_what_breaks_the_rules_ends_the_connection(breach: str) -> None:
    payload, text = BREACHES[breach]
    stage, session = on_stage()
    stage.say(1, said(session, payload))
    assert stage.goodbye().code == ProtocolError.code
    assert text in stage.goodbye().text
    assert stage.submitted == []
