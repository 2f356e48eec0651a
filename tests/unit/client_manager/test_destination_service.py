"""Names to ids: found, made once, refused with a reason."""

from __future__ import annotations

import pytest

from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.errors import InvalidName
from antiphon.wire import frames
from antiphon.wire.commands import CommandKind, CreateDestination, Outcome, OutcomeCode, iterate_commands
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, kinds, publish


def destination_open(request: int, name: str, create: bool = True) -> frames.DestinationOpen:
    return frames.DestinationOpen(request=request, name=name, create=create)


def test_a_known_destination_is_found_and_asked_for_once() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(1, "queue:known", create=False))
    stage.say(1, destination_open(2, "queue:known"))
    opened = stage.heard_of(frames.DestinationOpened)
    assert [(each.request, each.destination, each.channel) for each in opened] == [
        (1, KNOWN, CHANNEL),
        (2, KNOWN, CHANNEL),
    ]
    assert stage.asked == [{"question": "destination", "name": "queue:known"}]


def test_a_missing_destination_is_made_and_its_id_is_its_sequence_number() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(1, "queue:new"))
    (envelope,) = stage.submitted
    ((header, payload, _),) = iterate_commands(envelope.payload)
    assert (header.session, header.number) == (0, 0)
    assert CreateDestination.decode(payload) == CreateDestination(kind=1, name="new", settings="{}")
    assert stage.heard_of(frames.DestinationOpened) == []

    stage.confirm()
    (opened,) = stage.heard_of(frames.DestinationOpened)
    assert (opened.request, opened.destination, opened.settings_version) == (1, 100, 1)


def test_many_who_ask_at_once_share_one_creation() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.say(1, destination_open(1, "queue:new"), destination_open(2, "queue:new"))
    stage.say(2, destination_open(1, "queue:new"))
    assert [kinds(e) for e in stage.of_kind(SubmitEnvelope)] == [[CommandKind.CREATE]]
    stage.confirm()
    ids = [each.destination for conn in (1, 2) for each in stage.heard_of(frames.DestinationOpened, conn)]
    assert ids == [100, 100, 100]


def test_a_destination_another_client_manager_made_first_is_the_answer() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(1, "queue:new"))
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, 33))
    assert stage.heard_of(frames.DestinationOpened)[0].destination == 33


def test_a_refused_creation_is_told_and_may_be_tried_again() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(1, "queue:new"))
    stage.confirm(Outcome(0, 1, OutcomeCode.REFUSED, 0, "too many destinations"))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code, failed.text) == (1, "destination.refused", "too many destinations")
    stage.say(1, destination_open(2, "queue:new"))
    stage.confirm()
    assert stage.heard_of(frames.DestinationOpened)[0].request == 2


def test_a_missing_destination_is_not_made_unasked() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(1, "queue:new", create=False))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.code, failed.text) == ("destination.unknown", "there is no destination queue:new")
    assert stage.submitted == []


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("orders", InvalidName.code, "neither queue: nor topic:"),
        ("queue:", InvalidName.code, "0 bytes"),
        ("queue:a\nb", InvalidName.code, "control character"),
        ("queue:" + "x" * 256, InvalidName.code, "256 bytes"),
        ("queue:_DMQ", InvalidName.code, "system's own"),
        ("topic:", InvalidName.code, "0 bytes"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_a_reason(name: str, code: str, text: str) -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(1, name))
    (failed,) = stage.heard_of(frames.Failed)
    assert failed.code == code
    assert text in failed.text
    assert stage.manager.connection_count == 1


def test_a_waiting_client_that_is_gone_does_no_harm() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.say(1, destination_open(1, "queue:new"))
    stage.say(2, destination_open(1, "queue:new"))
    stage.lose(1)
    stage.confirm()
    assert stage.heard_of(frames.DestinationOpened, 1) == []
    assert stage.heard_of(frames.DestinationOpened, 2)[0].destination == 100


def test_a_deleted_destination_is_asked_for_anew_and_its_id_still_does_no_harm() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, destination_open(1, "queue:known"))
    stage.say(1, publish(session, 1))
    stage.confirm(Outcome(1, 1, OutcomeCode.NO_DESTINATION, 0, "deleted"))

    stage.directory = {"queue:known": 55}
    stage.say(1, destination_open(2, "queue:known"))
    assert stage.heard_of(frames.DestinationOpened)[-1].destination == 55
    # Who has not heard of it yet is told by the outcome, not by a goodbye.
    stage.say(1, publish(session, 2))
    assert stage.manager.connection_count == 1


def test_an_id_is_asked_for_when_this_client_manager_has_not_seen_it() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.say(1, publish(session, 2))
    assert stage.asked == [{"question": "destination", "id": KNOWN}]
