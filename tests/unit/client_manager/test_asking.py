"""Questions to the channels: repeated until they are answered, and given up after a while."""

from __future__ import annotations

import json

from antiphon.bus.codec import decode, encode
from antiphon.bus.effects import PrimaryChanged
from antiphon.bus.messages import About, Query, Reply
from antiphon.client_manager.effects import AskNode, SendToPrimary, SendToReplica
from antiphon.ids import U64_MAX
from antiphon.wire import frames
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, publish

SILENT_MS = 5_000


def staged(**settings: int) -> Stage:
    stage = Stage(**settings)
    stage.connect()
    stage.silent = {CHANNEL}
    return stage


def opening(request: int = 1, name: str = "queue:known") -> frames.DestinationOpen:
    return frames.DestinationOpen(request=request, name=name, create=False)


def lookups(stage: Stage) -> list[Query]:
    return [*stage.to_primary(Query), *stage.to_replica(Query)]


def answer(stage: Stage, lookup: Query, **said: object) -> None:
    stage.tell(Reply(lookup.request, About.NAMES, json.dumps(said)))


def test_a_question_is_asked_again_until_it_is_answered() -> None:
    stage = staged()
    stage.say(1, opening())
    stage.wait(199)
    assert len(stage.to_primary(Query)) == 1
    stage.wait(1)
    first, second = stage.to_primary(Query)
    assert first == second
    answer(stage, first, destination=KNOWN, channel=CHANNEL)
    assert stage.heard_of(frames.DestinationOpened)[0].destination == KNOWN
    assert stage.manager.next_deadline_ns() is None
    answer(stage, first, destination=77, channel=CHANNEL)  # and only the first answer counts
    assert len(stage.heard_of(frames.DestinationOpened)) == 1


def test_a_new_primary_is_asked_at_once() -> None:
    stage = staged()
    stage.say(1, opening())
    stage.tell(PrimaryChanged(term=2, primary=2))
    assert len(stage.to_primary(Query)) == 2


def test_when_the_primary_is_silent_any_replica_may_answer() -> None:
    stage = staged()
    stage.say(1, opening())
    stage.wait(900)
    assert stage.to_replica(Query) == []
    stage.wait(700)
    assert not any(lookup.anybody for lookup in stage.to_primary(Query))
    sent = stage.of_kind(SendToReplica)
    assert [effect.attempt for effect in sent] == [0, 1, 2, 3]
    assert all(isinstance(effect.message, Query) and effect.message.anybody for effect in sent)
    answer(stage, stage.to_replica(Query)[0], destination=KNOWN, channel=CHANNEL)
    assert stage.heard_of(frames.DestinationOpened)[0].destination == KNOWN


def test_a_channel_that_never_answers_is_not_waited_for_for_ever() -> None:
    stage = staged()
    stage.say(1, opening())
    stage.wait(SILENT_MS - 1)
    assert stage.heard_of(frames.Failed) == []
    stage.wait(1)
    (failed,) = stage.heard_of(frames.Failed)
    assert failed.code == "destination.unavailable"
    assert "channel a does not answer" in failed.text
    assert stage.manager.next_deadline_ns() is None
    stage.silent.clear()
    stage.say(1, opening())  # and the next one is asked for anew
    assert stage.heard_of(frames.DestinationOpened)[0].destination == KNOWN


def test_questions_are_asked_again_each_at_its_own_time() -> None:
    stage = staged()
    stage.say(1, opening(1))
    stage.wait(100)
    stage.say(1, opening(2, "queue:other"))
    stage.wait(100)
    assert [lookup.request for lookup in stage.to_primary(Query)] == [1, 2, 1]
    stage.wait(100)
    assert [lookup.request for lookup in stage.to_primary(Query)] == [1, 2, 1, 2]


def test_an_answer_is_not_older_than_what_was_confirmed_here() -> None:
    stage = staged()
    session = stage.open_session()
    stage.say(1, publish(session))
    stage.confirm_all()
    stage.say(1, opening())
    assert stage.to_primary(Query)[0].floor == stage.next_sequence - 1


def test_a_primary_that_cannot_say_yet_is_asked_again() -> None:
    stage = staged()
    stage.say(1, opening())
    (asked,) = stage.to_primary(Query)
    stage.tell(Reply(asked.request, About.NAMES, "", "range.unavailable", "not yet"))
    stage.wait(200)
    assert stage.to_primary(Query) == [asked, asked]
    answer(stage, asked, destination=KNOWN, channel=CHANNEL)
    assert stage.heard_of(frames.DestinationOpened)[0].destination == KNOWN


def test_an_answer_for_a_client_that_is_gone_goes_nowhere() -> None:
    stage = staged()
    stage.say(1, opening())
    stage.lose()
    answer(stage, stage.to_primary(Query)[0], destination=KNOWN, channel=CHANNEL)
    assert stage.heard_of(frames.DestinationOpened) == []


# -- what a channel knows of a session -------------------------------------------------


def ask_session(channel: str = CHANNEL) -> frames.Ask:
    question = {"question": "session", "channel": channel, "session": f"{7:032x}"}
    return frames.Ask(request=4, question=json.dumps(question))


def test_what_becomes_of_a_session_is_asked_of_its_channel() -> None:
    stage = Stage()
    stage.connect()
    stage.sessions[f"{7:032x}"] = {"generation": 3, "last": 9}
    stage.say(1, ask_session())
    assert stage.of_kind(AskNode) == []
    (told,) = stage.heard_of(frames.Answer)
    assert (told.request, json.loads(told.answer)) == (4, {"generation": 3, "last": 9})
    stage.say(1, ask_session())  # its number is free again
    assert len(stage.heard_of(frames.Answer)) == 2


def test_a_session_of_a_channel_that_is_silent_is_refused() -> None:
    stage = staged()
    stage.say(1, ask_session())
    stage.wait(SILENT_MS)
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (4, "channel.unavailable")


def test_other_questions_go_to_the_node() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, ask_session(channel="nowhere"))
    assert len(stage.of_kind(AskNode)) == 1
    assert stage.of_kind(SendToPrimary) == []


def test_questions_go_on_after_the_last_number() -> None:
    """The numbers of a life begin anywhere, also near the end."""
    stage = staged()
    stage.manager._asking._next_number = U64_MAX - 1
    stage.say(1, *(opening(request, f"queue:{request}") for request in (1, 2, 3, 4)))
    asked = stage.to_primary(Query)
    assert [each.request for each in asked] == [U64_MAX - 1, U64_MAX, 1, 2]
    for each in asked:
        sent = encode(each, group=CHANNEL, config_id=1, sender=2, run_id=bytes(16))
        assert decode(sent)[1] == each
        answer(stage, each, destination=KNOWN, channel=CHANNEL)
    assert [each.request for each in stage.heard_of(frames.DestinationOpened)] == [1, 2, 3, 4]
