"""Names to ids: found, made once, refused with a reason."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace

import pytest

from antiphon.bus.effects import LoadChanged, ServiceChanged
from antiphon.bus.messages import Advertised
from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.errors import DestinationUnavailable, InvalidName
from antiphon.wire import frames
from antiphon.wire.commands import (
    CommandKind,
    CreateDestination,
    Outcome,
    OutcomeCode,
    PlaceDestination,
    decode_payload,
    iterate_commands,
)
from tests.unit.client_manager.stage import CHANNEL, KNOWN, OF_TOPIC, Stage, kinds, publish


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
        ("queue:_LOG", InvalidName.code, "system's own"),
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


# -- several channels ------------------------------------------------------------------

CHANNELS = ("a", "b", "c")


def clustered(**settings: int) -> Stage:
    stage = Stage(channels=CHANNELS, **settings)
    stage.connect()
    return stage


def ordered(stage: Stage) -> list[tuple[str, object]]:
    """The commands that wait for their outcome, with their channels."""
    return [
        (envelope.channel, decode_payload(header.kind, payload))
        for envelope in stage.submitted
        for header, payload, _ in iterate_commands(envelope.payload)
    ]


def opened(stage: Stage, conn: int = 1) -> list[tuple[int, int, str]]:
    return [
        (each.request, each.destination, each.channel)
        for each in stage.heard_of(frames.DestinationOpened, conn)
    ]


def test_a_destination_is_found_in_the_channel_where_it_has_its_place() -> None:
    stage = clustered()
    stage.directory["queue:orders"] = 33
    stage.placements["queue:orders"] = "b"
    stage.say(1, destination_open(1, "queue:orders"))
    assert opened(stage) == [(1, 33, "b")]
    assert [asked["question"] for asked in stage.asked] == ["placement", "destination"]
    stage.say(1, destination_open(2, "queue:orders"))
    assert len(stage.asked) == 2, "what is known is not asked for"


def test_a_new_destination_is_placed_on_the_least_loaded_channel_and_made_there() -> None:
    stage = clustered()
    for channel, load in zip(CHANNELS, (900, 500, 500), strict=True):
        stage.tell(LoadChanged(load), channel=channel)
    stage.say(1, destination_open(1, "queue:new"))
    assert ordered(stage) == [("a", PlaceDestination(name="queue:new", channel="b"))]
    stage.confirm()
    assert ordered(stage) == [("b", CreateDestination(kind=1, name="new", settings="{}"))]
    stage.confirm()
    assert opened(stage) == [(1, 101, "b")]
    # What was just placed counts, though the channel has not told of it yet.
    stage.say(1, destination_open(2, "queue:newer"))
    assert ordered(stage) == [("a", PlaceDestination(name="queue:newer", channel="c"))]


@pytest.mark.parametrize("loads", [(), (900, 500, 500)])
def test_a_burst_of_new_names_is_spread_over_the_channels(loads: tuple[int, ...]) -> None:
    """All names that came before the first was placed went to one channel."""
    stage = clustered()
    for channel, load in zip(CHANNELS, loads, strict=False):
        stage.tell(LoadChanged(load), channel=channel)
    stage.say(1, *(destination_open(at, f"queue:{at}") for at in range(1, 61)))
    places = Counter(command.channel for _, command in ordered(stage) if type(command) is PlaceDestination)
    assert places.total() > 20
    assert max(places[channel] for channel in CHANNELS) - min(places[channel] for channel in CHANNELS) <= 1


def test_a_load_that_is_told_in_the_middle_of_a_burst_takes_nothing_of_what_is_under_way() -> None:
    """The channel that told its load first looked empty, and was given most of the next burst."""
    stage = clustered()
    for channel in CHANNELS:
        stage.tell(LoadChanged(500), channel=channel)
    stage.say(1, *(destination_open(at, f"queue:{at}") for at in range(1, 13)))
    stage.tell(LoadChanged(500), channel="a")
    stage.say(1, *(destination_open(at, f"queue:{at}") for at in range(13, 25)))
    places = Counter(command.channel for _, command in ordered(stage) if type(command) is PlaceDestination)
    assert places.total() > 12, "names of both bursts"
    assert max(places[channel] for channel in CHANNELS) - min(places[channel] for channel in CHANNELS) <= 1


def test_a_channel_that_nobody_serves_is_given_nothing() -> None:
    stage = clustered()
    stage.tell(LoadChanged(10_000), channel="c")
    stage.say(1, destination_open(1, "queue:new"))
    assert ordered(stage) == [("a", PlaceDestination(name="queue:new", channel="c"))]


def test_a_channel_that_lost_its_primary_is_given_nothing_until_it_has_one_again() -> None:
    stage = clustered()
    for channel, load in zip(CHANNELS, (900, 500, 700), strict=True):
        stage.tell(LoadChanged(load), channel=channel)
    stage.tell(ServiceChanged(is_served=False), channel="b")
    stage.say(1, destination_open(1, "queue:new"))
    assert ordered(stage) == [("a", PlaceDestination(name="queue:new", channel="c"))]
    stage.tell(ServiceChanged(is_served=True), channel="b")
    stage.say(1, destination_open(2, "queue:newer"))
    stage.confirm()
    assert ("a", PlaceDestination(name="queue:newer", channel="b")) in ordered(stage)


def test_whoever_is_second_makes_it_where_the_first_one_placed_it() -> None:
    stage = clustered()
    stage.say(1, destination_open(1, "queue:new"))
    stage.directory["queue:new"], stage.placements["queue:new"] = 44, "c"
    stage.confirm(Outcome(0, 1, OutcomeCode.EXISTS, 0, "c"))
    assert opened(stage) == [(1, 44, "c")]
    assert stage.submitted == []


def test_a_place_without_a_destination_is_used() -> None:
    """Whoever placed it died before it was made."""
    stage = clustered()
    stage.placements["queue:new"] = "c"
    stage.say(1, destination_open(1, "queue:new"))
    assert ordered(stage) == [("c", CreateDestination(kind=1, name="new", settings="{}"))]
    stage.confirm()
    assert opened(stage) == [(1, 100, "c")]


def test_many_who_ask_at_once_share_one_place_and_one_creation() -> None:
    stage = clustered()
    stage.connect(2)
    stage.say(1, destination_open(1, "queue:new"), destination_open(2, "queue:new"))
    stage.say(2, destination_open(1, "queue:new"))
    stage.confirm_all()
    envelopes = stage.of_kind(SubmitEnvelope)
    assert [kinds(envelope) for envelope in envelopes] == [[CommandKind.PLACE], [CommandKind.CREATE]]
    assert opened(stage) + opened(stage, 2) == [(1, 101, "a"), (2, 101, "a"), (1, 101, "a")]


def test_a_destination_is_made_in_the_channel_that_its_settings_name() -> None:
    stage = clustered()
    wish = frames.DestinationCreate(request=1, name="topic:new", settings='{"channel":"c","retention":60}')
    stage.say(1, wish)
    assert ordered(stage) == [("a", PlaceDestination(name="topic:new", channel="c"))]
    stage.confirm()
    assert ordered(stage) == [("c", CreateDestination(kind=2, name="new", settings='{"retention": 60}'))]
    stage.confirm()
    assert opened(stage) == [(1, 101, "c")]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ('{"channel":"b"}', "topic:there has its place in channel c"),
        ('{"channel":"z"}', "there is no channel 'z'"),
        ('{"channel":7}', "the channel of a destination is the name of one"),
    ],
)
def test_a_channel_that_cannot_be_is_refused(settings: str, text: str) -> None:
    stage = clustered()
    stage.placements["topic:there"] = "c"
    stage.tell(Advertised(("topic:there",), ("c",)))
    stage.say(1, frames.DestinationCreate(request=1, name="topic:there", settings=settings))
    if stage.submitted:
        stage.confirm(Outcome(0, 1, OutcomeCode.EXISTS, 0, "c"))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.code, text in failed.text) == ("destination.refused", True)
    assert not any(isinstance(payload, CreateDestination) for _, payload in ordered(stage))


def test_the_channel_may_be_named_where_there_is_only_one() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.DestinationCreate(request=1, name="queue:new", settings='{"channel":"a"}'))
    assert ordered(stage) == [("a", CreateDestination(kind=1, name="new", settings="{}"))]


def test_an_advertised_place_need_not_be_asked_for() -> None:
    stage = clustered()
    stage.directory["queue:orders"], stage.placements["queue:orders"] = 33, "b"
    stage.tell(Advertised(("queue:orders",), ("b",)))
    stage.say(1, destination_open(1, "queue:orders"))
    assert opened(stage) == [(1, 33, "b")]
    assert [asked["question"] for asked in stage.asked] == ["destination"]


def test_a_remembered_place_that_is_wrong_by_now_is_asked_for_anew() -> None:
    stage = clustered()
    stage.tell(Advertised(("queue:orders",), ("b",)))
    stage.directory["queue:orders"], stage.placements["queue:orders"] = 33, "c"
    stage.say(1, destination_open(1, "queue:orders", create=False))
    assert opened(stage) == [(1, 33, "c")]
    assert [asked["question"] for asked in stage.asked] == ["destination", "placement", "destination"]


def test_a_name_that_moved_away_from_the_system_channel_is_followed() -> None:
    stage = clustered()
    stage.placements["queue:orders"] = "a"
    stage.say(1, destination_open(1, "queue:orders"))
    assert ordered(stage) == [("a", CreateDestination(kind=1, name="orders", settings="{}"))]
    stage.directory["queue:orders"], stage.placements["queue:orders"] = 33, "b"
    stage.confirm(Outcome(0, 1, OutcomeCode.EXISTS, 0, "b"))
    assert opened(stage) == [(1, 33, "b")]


def test_places_that_are_remembered_are_bounded() -> None:
    stage = clustered(placements_kept=2)
    for name in ("queue:1", "queue:2", "queue:3"):
        stage.directory[name], stage.placements[name] = 33, "b"
        stage.tell(Advertised((name,), ("b",)))
    for request, name in enumerate(("queue:3", "queue:2", "queue:1")):
        stage.say(1, destination_open(request, name))
    assert [asked["question"] for asked in stage.asked].count("placement") == 1


def test_without_a_quorum_what_exists_is_found_and_what_does_not_is_refused_after_a_while() -> None:
    stage = clustered()
    stage.directory["queue:orders"], stage.placements["queue:orders"] = 33, "b"
    stage.say(1, destination_open(1, "queue:orders"), destination_open(2, "queue:new"))
    assert opened(stage) == [(1, 33, "b")]
    stage.wait(4_999)
    assert stage.heard_of(frames.Failed) == []
    stage.wait(1)
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (2, DestinationUnavailable.code)
    assert "channel a orders nothing at the moment" in failed.text
    assert stage.manager.next_deadline_ns() is None


def test_whoever_comes_while_a_creation_is_overdue_waits_for_the_same_one() -> None:
    stage = clustered()
    stage.say(1, destination_open(1, "queue:new"))
    stage.wait(5_000)
    stage.say(1, destination_open(2, "queue:new"))
    assert len(stage.of_kind(SubmitEnvelope)) == 1
    stage.wait(4_000)
    assert [failed.request for failed in stage.heard_of(frames.Failed)] == [1]
    stage.confirm_all()
    assert opened(stage) == [(2, 101, "a")]
    stage.wait(10_000)
    assert len(stage.heard_of(frames.Failed)) == 1


def test_what_nobody_waits_for_any_more_is_not_made() -> None:
    stage = clustered()
    stage.say(1, destination_open(1, "queue:new"))
    stage.wait(5_000)
    stage.confirm()
    assert stage.submitted == []
    stage.placements["queue:new"] = "a"
    stage.say(1, destination_open(2, "queue:new"))
    assert ordered(stage) == [("a", CreateDestination(kind=1, name="new", settings="{}"))]


def test_a_place_that_is_refused_is_told() -> None:
    stage = clustered()
    stage.say(1, destination_open(1, "queue:new"))
    stage.confirm(Outcome(0, 1, OutcomeCode.REFUSED, 0, "there are 7 destinations already"))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.code, failed.text) == ("destination.refused", "there are 7 destinations already")


def test_equal_ids_of_two_channels_are_two_destinations() -> None:
    stage = clustered()
    session = stage.open_session()
    for name, channel in (("queue:x", "a"), ("queue:y", "b")):
        stage.directory[name], stage.placements[name] = KNOWN, channel
    stage.say(1, destination_open(1, "queue:x"), destination_open(2, "queue:y"))
    stage.say(1, publish(session, 1))  # in channel a
    stage.confirm(Outcome(1, 1, OutcomeCode.NO_DESTINATION))
    stage.asked.clear()
    stage.say(1, destination_open(3, "queue:y"))
    assert stage.asked == [], "it is another one that is gone"
    stage.say(1, destination_open(4, "queue:x"))
    assert [asked["name"] for asked in stage.asked] == ["queue:x"]


# -- spanning destinations -------------------------------------------------------------------

SPAN = "queue:orders"
AS_PART = '{"channels": "a,b"}'


def create_spanning(channels: object, **settings: object) -> frames.DestinationCreate:
    wish = json.dumps({"channels": channels, **settings}, sort_keys=True)
    return frames.DestinationCreate(request=1, name=SPAN, settings=wish)


def refused(stage: Stage) -> list[str]:
    return [failed.text for failed in stage.heard_of(frames.Failed)]


def part_open(request: int, channel: str, create: bool = True) -> frames.DestinationOpen:
    return frames.DestinationOpen(request=request, name=SPAN, create=create, channel=channel)


@pytest.mark.parametrize(
    ("wish", "placement"), [(2, "b,c"), (["b", "a"], "b,a"), (["c", "a", "b"], "c,a,b"), (3, "a,b,c")]
)
def test_a_spanning_destination_is_placed_first_and_its_parts_are_made_in_order(
    wish: object, placement: str
) -> None:
    stage = clustered()
    stage.tell(LoadChanged(900), channel="a")
    for channel in "bc":
        stage.tell(LoadChanged(500), channel=channel)
    stage.say(1, create_spanning(wish, redelivery_limit=3))
    settings = json.dumps({"channels": placement, "redelivery_limit": 3})
    assert ordered(stage) == [("a", PlaceDestination(name=SPAN, channel=placement, settings=settings))]
    stage.confirm()
    create = CreateDestination(kind=1, name="orders", settings=settings)
    for channel in placement.split(","):
        assert ordered(stage) == [(channel, create)]
        assert opened(stage) == []
        stage.confirm()
    (found,) = stage.heard_of(frames.DestinationOpened)
    assert (found.destination, found.channel, found.channels) == (0, "", tuple(placement.split(",")))


@pytest.mark.parametrize("channels", [1, ["c"]])
def test_a_destination_of_one_channel_is_an_ordinary_one(channels: object) -> None:
    stage = clustered()
    stage.say(1, create_spanning(channels))
    ((_, place),) = ordered(stage)
    assert isinstance(place, PlaceDestination)
    stage.confirm()
    assert ordered(stage) == [(place.channel, CreateDestination(kind=1, name="orders", settings="{}"))]
    stage.confirm()
    assert opened(stage) == [(1, 101, place.channel)]


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"channels": 4}, "cannot be made in 4 channels: there are 3"),
        ({"channels": ["a", "x"]}, "there is no channel 'x'"),
        ({"channels": ["a", "a"]}, "are a number of them, or a list of names"),
        ({"channels": []}, "are a number of them, or a list of names"),
        ({"channels": True}, "are a number of them, or a list of names"),
        ({"channels": "a,b"}, "are a number of them, or a list of names"),
        ({"channels": 0}, "are a number of them, or a list of names"),
        ({"channels": 2, "channel": "a"}, "not both"),
        ({"channels": 2, "exclusive": True}, "an exclusive queue lives in one channel"),
        ({"channel": "a,b"}, "is the name of one"),
    ],
)
def test_channels_that_cannot_be_are_refused_before_anything_is_ordered(
    wish: dict[str, object], text: str
) -> None:
    stage = clustered()
    stage.say(1, frames.DestinationCreate(request=1, name=SPAN, settings=json.dumps(wish)))
    (said,) = refused(stage)
    assert text in said
    assert stage.submitted == []


@pytest.mark.parametrize("wish", [3, 1, ["b", "a"], ["a", "c"], ["a"]])
def test_a_name_keeps_its_channels(wish: object) -> None:
    stage = clustered()
    stage.placements[SPAN] = "a,b"
    stage.say(1, create_spanning(wish))
    stage.confirm(Outcome(0, 1, OutcomeCode.EXISTS, 0, "a,b"))
    assert refused(stage) == [f"{SPAN} has its place in channels a, b"]
    assert stage.submitted == []


@pytest.mark.parametrize("wish", [{"channels": 2}, {"channels": ["a", "b"]}, {}])
def test_to_make_a_spanning_destination_again_makes_the_parts_that_are_missing(
    wish: dict[str, object],
) -> None:
    """The client manager that made it died behind the first part."""
    stage = clustered()
    stage.placements[SPAN] = "a,b"
    stage.say(1, frames.DestinationCreate(request=1, name=SPAN, settings=json.dumps(wish)))
    stage.confirm(Outcome(0, 1, OutcomeCode.EXISTS, 0, "a,b"))
    create = CreateDestination(kind=1, name="orders", settings=AS_PART)
    assert ordered(stage) == [("a", create)]
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, 33))
    assert ordered(stage) == [("b", create)]
    stage.confirm()
    assert stage.heard_of(frames.DestinationOpened)[0].channels == ("a", "b")


def test_a_spanning_name_is_answered_with_its_channels_and_each_part_is_found_by_itself() -> None:
    stage = clustered()
    stage.placements[SPAN] = "b,c"
    stage.spans = {("b", SPAN): (33, "{}"), ("c", SPAN): (44, "{}")}
    stage.say(1, destination_open(1, SPAN, create=False))
    assert stage.heard_of(frames.DestinationOpened)[0].channels == ("b", "c")
    stage.say(1, part_open(2, "c"), part_open(3, "b", create=False))
    assert sorted(opened(stage)[1:]) == [(2, 44, "c"), (3, 33, "b")]
    asked = len(stage.asked)
    stage.say(1, destination_open(4, SPAN), part_open(5, "c"))
    assert len(stage.asked) == asked, "what is known is not asked for"
    stage.say(1, part_open(6, "a"))
    assert refused(stage) == [f"{SPAN} has its place in channels b, c"]
    stage.say(1, part_open(7, "x"))
    assert refused(stage)[1:] == ["there is no channel 'x'"]


@pytest.mark.parametrize("create", [True, False])
def test_a_missing_part_is_made_with_the_settings_of_the_first(create: bool) -> None:
    stage = clustered()
    stage.placements[SPAN] = "a,b"
    settings = '{"channels":"a,b","redelivery_limit":3}'
    stage.spans = {("a", SPAN): (33, settings)}
    stage.say(1, part_open(1, "b", create=create))
    assert ordered(stage) == [("b", CreateDestination(kind=1, name="orders", settings=settings))]
    stage.confirm()
    assert opened(stage) == [(1, 100, "b")]


def test_a_part_behind_the_first_is_not_made_before_it() -> None:
    """Another client may be making the first part, with settings of its own."""
    stage = clustered()
    stage.placements[SPAN] = "a,b"
    stage.say(1, part_open(1, "b"))
    assert ordered(stage) == [("a", CreateDestination(kind=1, name="orders", settings=AS_PART))]
    settings = '{"channels":"a,b","redelivery_limit":3}'
    stage.spans = {("a", SPAN): (33, settings)}
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, 33))
    assert ordered(stage) == [("b", CreateDestination(kind=1, name="orders", settings=settings))]
    stage.confirm()
    assert opened(stage) == [(1, 101, "b")]


@pytest.mark.parametrize("channel", ["a", "b"])
def test_a_spanning_destination_without_any_part_is_not_made_unasked(channel: str) -> None:
    stage = clustered()
    stage.placements[SPAN] = "a,b"
    stage.say(1, part_open(1, channel, create=False))
    assert refused(stage) == [f"there is no destination {SPAN}"]


def test_a_part_that_was_deleted_is_asked_for_anew() -> None:
    stage = clustered()
    stage.placements[SPAN] = "a,b"
    stage.spans = {("a", SPAN): (33, AS_PART), ("b", SPAN): (44, AS_PART)}
    stage.say(1, part_open(1, "b"))
    assert opened(stage) == [(1, 44, "b")]
    stage.spans["b", SPAN] = (55, AS_PART)
    stage.manager._retire("b", 44)
    stage.say(1, part_open(2, "b"))
    assert opened(stage)[1:] == [(2, 55, "b")]


# -- durable subscriptions -----------------------------------------------------------------


PATTERN = "topic:_MATCH.glob.prices.*"


def open_part(request: int, name: str, channel: str) -> frames.DestinationOpen:
    return frames.DestinationOpen(request=request, name=name, create=True, channel=channel)


def test_every_channel_has_a_part_of_a_pattern_without_a_placement() -> None:
    stage = clustered()
    stage.say(1, open_part(1, PATTERN, "b"))
    assert [asked["question"] for asked in stage.asked] == ["destination"]
    assert ordered(stage) == [
        ("b", CreateDestination(kind=2, name="_MATCH.glob.prices.*", settings="{}")),
    ]
    stage.confirm_all()
    ((request, id, channel),) = opened(stage)
    assert (request, channel) == (1, "b") and id > 0
    # Families come and go: nothing is remembered.
    stage.say(1, open_part(2, PATTERN, "b"))
    assert [asked["question"] for asked in stage.asked] == ["destination", "destination"]


def refused_for(stage: Stage, frame: frames.ClientFrame) -> tuple[str, str]:
    stage.say(1, frame)
    failed = stage.heard_of(frames.Failed)[-1]
    return failed.code, failed.text


def test_a_pattern_that_cannot_be_evaluated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = clustered()
    code, text = refused_for(stage, open_part(1, "topic:_MATCH.regex.(", "a"))
    assert code == "local.invalid_pattern" and "no regular expression of RE2" in text
    monkeypatch.setitem(sys.modules, "re2", None)
    code, text = refused_for(stage, open_part(2, "topic:_MATCH.regex.not known yet", "a"))
    assert code == "local.invalid_pattern" and "antiphon[regex]" in text
    code, text = refused_for(stage, open_part(3, "topic:_MATCH.like.a", "a"))
    assert code == "local.invalid_name"
    code, text = refused_for(stage, open_part(4, PATTERN, ""))
    assert code == "destination.refused" and "name one of the channels" in text
    create = frames.DestinationCreate(request=5, name=PATTERN, settings="{}")
    code, text = refused_for(stage, create)
    assert code == "local.invalid_name" and "the system's own" in text
    assert ordered(stage) == []


def test_the_part_of_a_subscription_is_looked_for_in_one_channel() -> None:
    stage = clustered()
    session = stage.open_session()
    there = {"subscription": 7, "destination": 5, "consumers": [], "locked": False}
    stage.subscriptions["", "audit"] = {**there, "channel": "c", "topic": PATTERN, "channels": []}
    stage.say(1, replace(find(session), channel="b"))
    assert [failed.code for failed in stage.heard_of(frames.Failed)] == ["subscription.unknown"]
    stage.say(1, replace(find(session, 10), channel="c"))
    stage.confirm_all()
    (found,) = stage.heard_of(frames.SubscriptionFound)
    assert (found.channel, found.topic) == ("c", PATTERN)
    assert found.channels == CHANNELS, "every channel has a part of it"


def find(session: int, request: int = 9) -> frames.SubscriptionFind:
    return frames.SubscriptionFind(request=request, session=session, name="audit", ends=True)


def test_a_durable_subscription_is_looked_for_in_all_channels() -> None:
    stage = clustered()
    session = stage.open_session()
    there = {
        "subscription": 77,
        "destination": 5,
        **OF_TOPIC,
        "channel": "c",
        "consumers": [],
        "locked": False,
    }
    stage.subscriptions["", "audit"] = there
    stage.say(1, find(session))
    stage.confirm_all()
    (found,) = stage.heard_of(frames.SubscriptionFound)
    assert (found.subscription, found.destination, found.channel) == (77, 5, "c")
    assert len(stage.asked) == 3


def test_a_subscription_that_is_found_is_not_kept_back_by_a_silent_channel() -> None:
    stage = clustered()
    session = stage.open_session()
    stage.silent = {"a"}
    stage.subscriptions["", "audit"] = {
        "subscription": 7,
        "destination": 5,
        **OF_TOPIC,
        "channel": "c",
        "consumers": [],
        "locked": False,
    }
    stage.say(1, find(session))
    stage.confirm_all()
    assert stage.heard_of(frames.SubscriptionFound)[0].channel == "c"
    stage.wait(10_000)
    assert stage.heard_of(frames.Failed) == []


def test_that_there_is_no_subscription_is_said_only_when_all_have_said_so() -> None:
    stage = clustered()
    session = stage.open_session()
    stage.say(1, find(session))
    stage.silent = {"b"}
    stage.say(1, find(session, 10))
    stage.wait(10_000)
    codes = [(failed.request, failed.code) for failed in stage.heard_of(frames.Failed)]
    assert codes == [(9, "subscription.unknown"), (10, "subscription.unavailable")]
    assert "channel b does not answer" in stage.heard_of(frames.Failed)[-1].text


def test_whether_a_subscription_is_in_use_only_the_primary_knows() -> None:
    stage = clustered()
    session = stage.open_session()
    stage.subscriptions["", "audit"] = {
        "subscription": 7,
        "destination": 5,
        **OF_TOPIC,
        "channel": "c",
        "consumers": None,
    }
    stage.say(1, find(session))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.code, "no primary" in failed.text) == ("subscription.unavailable", True)


# -- temporary destinations --------------------------------------------------------------------------


def test_a_temporary_name_says_its_channel_and_is_asked_for_there_each_time() -> None:
    stage = Stage(["a", "b"])
    stage.connect()
    stage.directory["queue:_TEMP.b.7"] = 7
    stage.placements["queue:_TEMP.b.7"] = "b"  # as the stage knows where a name lives
    for request in (1, 2):
        stage.say(1, destination_open(request, "queue:_TEMP.b.7"))
    opened = stage.heard_of(frames.DestinationOpened)
    assert [(one.request, one.destination, one.channel) for one in opened] == [(1, 7, "b"), (2, 7, "b")]
    assert stage.asked == [{"question": "destination", "name": "queue:_TEMP.b.7"}] * 2, "and no placement"


@pytest.mark.parametrize("name", ["queue:_TEMP.b.7", "queue:_TEMP.elsewhere.7", "topic:_TEMP.7"])
def test_a_temporary_destination_that_is_gone_is_not_made_by_its_name(name: str) -> None:
    stage = Stage(["a", "b"])
    stage.connect()
    stage.say(1, destination_open(1, name))
    (failed,) = stage.heard_of(frames.Failed)
    assert failed.code == "destination.unknown"
    assert failed.text == f"there is no destination {name} any more: it lived with the session that made it"
    assert stage.submitted == []


def test_a_session_is_told_the_channel_for_its_temporary_destination_when_that_knows_it() -> None:
    stage = Stage(["a", "b"])
    stage.connect()
    session = stage.open_session()
    for channel, load in (("a", 5 << 20), ("b", 1 << 20)):
        stage.tell(LoadChanged(load), channel=channel)
    wish = frames.DestinationOpen(request=9, name="queue:_TEMP", create=True, session=session)
    stage.say(1, wish)
    assert stage.heard_of(frames.DestinationOpened) == []
    stage.confirm()
    (opened,) = stage.heard_of(frames.DestinationOpened)
    assert (opened.request, opened.destination, opened.channel) == (9, 0, "b")


@pytest.mark.parametrize("name", ["queue:_TEMP.a.7", "queue:_TEMP"])
def test_no_client_chooses_a_temporary_name(name: str) -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.DestinationCreate(request=1, name=name, settings="{}"))
    (failed,) = stage.heard_of(frames.Failed)
    assert failed.code == InvalidName.code


# -- many at once -----------------------------------------------------------------------------------


def created(stage: Stage, conn: int = 1) -> list[tuple[int, list[int], list[tuple[int, str]]]]:
    """Of each answer: its request, the places of what was made, and what was refused, with the code."""
    return [
        (each.request, list(each.made.numbers()), [(at, code) for at, code, _ in each.refused])
        for each in stage.heard_of(frames.DestinationsCreated, conn)
    ]


def create_many(request: int, *names: str, settings: str = "{}") -> frames.DestinationsCreate:
    return frames.DestinationsCreate(request=request, names=names, settings=settings)


def test_many_destinations_are_made_in_few_envelopes_and_answered_name_by_name() -> None:
    stage = Stage()
    stage.connect()
    names = ["topic:one", "queue:_own", "topic:two", "no name", "topic:three"]
    stage.say(1, create_many(7, *names, settings='{"retention":60}'))
    assert ordered(stage) == [
        ("a", CreateDestination(kind=2, name=name, settings='{"retention":60}'))
        for name in ("one", "two", "three")
    ]
    assert created(stage) == [], "one of them has no outcome yet"
    stage.confirm(
        Outcome(1, 1, OutcomeCode.DUPLICATE, 33), Outcome(2, 1, OutcomeCode.REFUSED, 0, "it exists, and")
    )
    refused = [(1, InvalidName.code), (3, InvalidName.code), (4, "destination.refused")]
    assert created(stage) == [(7, [0], refused)]
    # The connection may have as many made again.
    stage.say(1, create_many(8, "topic:one"))
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, 100))
    assert created(stage)[1:] == [(8, [], [])]


def test_many_destinations_are_placed_without_a_question_and_spread() -> None:
    stage = clustered()
    names = [f"queue:{at}" for at in range(60)]
    stage.say(1, create_many(1, *names))
    assert stage.asked == []
    channels: dict[str, str] = {}
    while stage.submitted:
        for channel, payload in ordered(stage):
            if isinstance(payload, PlaceDestination):
                channels[payload.name] = payload.channel
            else:
                assert isinstance(payload, CreateDestination)
                assert channels[f"queue:{payload.name}"] == channel
        stage.confirm()
    assert Counter(channels.values()) == dict.fromkeys(CHANNELS, 20)
    assert created(stage) == [(1, list(range(60)), [])]


def test_one_of_many_that_lives_elsewhere_is_looked_for_there() -> None:
    stage = clustered()
    stage.placements["queue:old"] = "c"
    stage.say(1, create_many(1, "queue:new", "queue:old"))
    stage.confirm(Outcome(1, 1, OutcomeCode.EXISTS, 0, "c"))
    assert sorted(channel for channel, _ in ordered(stage)) == ["a", "c"]
    stage.confirm_all()
    assert created(stage) == [(1, [0, 1], [])]


def test_without_the_system_channel_what_exists_among_many_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DST4"""
    stage = clustered()
    stage.tell(ServiceChanged(is_served=False), channel="a")
    stage.placements["queue:old"] = "c"
    stage.say(1, create_many(1, "queue:old"))
    assert ordered(stage) == [("c", CreateDestination(kind=1, name="old", settings="{}"))]
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, 33))
    assert created(stage) == [(1, [], [])]


def test_those_of_many_that_take_too_long_are_refused_and_may_be_asked_for_again() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, create_many(1, "queue:one", "queue:two"))
    stage.wait(6_000)
    assert created(stage) == [(1, [], [(0, "destination.unavailable"), (1, "destination.unavailable")])]
    stage.say(1, create_many(2, "queue:two", "queue:three"))
    stage.confirm_all()
    assert created(stage)[1:] == [(2, [0, 1], [])]


def test_a_client_that_has_left_does_no_harm_to_the_rest_of_many() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.say(1, create_many(1, "queue:one", "queue:two"))
    stage.say(2, create_many(1, "queue:two", "queue:one", "queue:one"))
    stage.lose(1)
    stage.confirm_all()
    assert created(stage, 2) == [(1, [0, 1, 2], [])]


def test_a_connection_has_so_many_made_at_once_and_no_more() -> None:
    stage = Stage(names_max=600)
    stage.connect()
    names = [f"queue:{at}" for at in range(501)]
    stage.say(1, create_many(1, *names), create_many(2), create_many(3, *names[:400]))
    stage.say(1, create_many(4, *names[:201]))
    failed = [(each.request, each.code) for each in stage.heard_of(frames.Failed)]
    assert failed == [(1, "limit"), (2, "limit"), (4, "limit")]
    stage.confirm_all()
    stage.say(1, create_many(5, *names[:500]))
    stage.confirm_all()
    assert [request for request, _, _ in created(stage)] == [3, 5]


def test_settings_that_no_channel_can_have_refuse_all_of_them() -> None:
    stage = clustered()
    stage.say(1, create_many(1, "queue:one", settings='{"channel":7}'))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (1, "destination.refused")
    stage.say(1, create_many(2, "queue:one", settings='{"channel":"z"}'))
    assert created(stage) == [(2, [], [(0, "destination.refused")])]


def test_only_so_many_names_are_remembered_and_the_others_are_asked_for_anew() -> None:
    stage = Stage(placements_kept=2)
    stage.connect()
    stage.say(1, create_many(1, "queue:one", "queue:two", "queue:three"))
    stage.confirm()
    stage.directory["queue:one"] = 100
    stage.say(1, destination_open(2, "queue:three"), destination_open(3, "queue:one"))
    assert [asked["name"] for asked in stage.asked] == ["queue:one"]
    assert sorted(opened(stage)) == [(2, 102, "a"), (3, 100, "a")]
