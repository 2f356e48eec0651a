"""The application's own ids: a message whose id its destination remembers is not stored."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch.layout import RULES_AT, BatchRule
from antiphon.message_manager.state import known_ids
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    PUBLISH_BATCH_OFFSET,
    AlterDestination,
    DeleteDestination,
    Outcome,
    OutcomeCode,
    PurgeDestination,
)
from antiphon.wire.transactions import TRANSACTED_NUMBER, Consumed, PrepareTransaction, StagedPublish
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import Channel, Client, delivers, finish, of_node, rows_of

KNOWN, DUPLICATE = OutcomeCode.KNOWN, OutcomeCode.DUPLICATE

WINDOW_MS = 600_000


def row(id: str | bytes | None, body: bytes = b"body", **more: Any) -> dict[str, Any]:
    return {"body": body, "dedup_id": id, **more}


class Scene:
    """Two sessions that publish to one destination; every entry is captured and restored on the way."""

    def __init__(self, settings: str = "{}", kind: int = 1) -> None:
        self.channel = RestoredChannel()
        self.one, self.other = Client(0xA1), Client(0xB2)
        self.channel.order(self.one.open(), self.other.open())
        self.destination = self.channel.create("orders", kind, settings)
        self.channel.pass_time(1_000)

    @property
    def store(self) -> Queue | Topic:
        store = self.channel.manager.state.directory.get(self.destination)
        assert store is not None
        return store

    @property
    def live(self) -> list[int]:
        return list(self.store.live.numbers())

    @property
    def remembered(self) -> int:
        return self.channel.manager.state.known_ids.count(self.destination)

    def publish(self, client: Client, *rows: dict[str, Any]) -> tuple[int, list[Outcome]]:
        """The first number, and the outcomes of rows that were not stored."""
        before = self.channel.manager.applied
        first = self.channel.order(client.publish_rows(self.destination, *rows))
        _, _, outcomes = self.channel.manager.state.outcomes.page(before, self.channel.manager.applied)
        return first, list(outcomes)


@pytest.mark.parametrize("kind", [1, 2])
def test_a_message_with_an_id_is_stored_once_whoever_sends_it(kind: int) -> None:
    scene = Scene(kind=kind)
    first, outcomes = scene.publish(scene.one, row("an order"))
    assert outcomes == [] and scene.live == [first]
    again, outcomes = scene.publish(scene.other, row(b"an order", b"another body"))
    assert outcomes == [Outcome(again, 1, KNOWN, first)]
    assert scene.live == [first]
    assert (scene.store.published, scene.store.duplicates) == (1, 1)


def test_an_id_is_remembered_when_its_message_is_long_gone() -> None:
    scene = Scene()
    first, _ = scene.publish(scene.one, row("gone"))
    scene.channel.order(scene.one.ack(scene.destination, (first, first + 1)))
    assert scene.live == []
    assert scene.publish(scene.other, row("gone"))[1][0].original == first
    assert scene.live == []


def test_of_a_batch_exactly_the_others_are_stored_under_their_own_numbers() -> None:
    scene = Scene()
    first, _ = scene.publish(scene.one, row("a"), row("b"), row("c"))
    again, outcomes = scene.publish(
        scene.other, row("x"), row("b"), row("c"), row(None), row("a"), row("y"), row("x")
    )
    assert outcomes == [
        Outcome(again + 1, 2, KNOWN, first + 1),
        Outcome(again + 4, 1, KNOWN, first),
        Outcome(again + 6, 1, KNOWN, again),
    ]
    assert scene.live == [first, first + 1, first + 2, again, again + 3, again + 5]
    assert scene.store.last_stored == again + 5
    after, _ = scene.publish(scene.other, row("z"))
    assert after == again + 7


def test_the_rules_of_rows_that_are_not_stored_are_not_noted() -> None:
    scene = Scene()
    scene.publish(scene.one, row("a"))
    again, _ = scene.publish(
        scene.other,
        row("a", priority=9, expires_ms=99_000, persistent=False),
        row("b", priority=9, expires_ms=99_000, persistent=False),
    )
    rules = scene.store.rules
    assert list(rules.priorities[9].numbers()) == [again + 1]
    assert [(one.start, one.stop) for one in rules.expires] == [(again + 1, again + 2)]
    assert list(rules.transient.numbers()) == [again + 1]


def test_consumers_get_what_is_stored_and_nothing_else() -> None:
    scene = Scene()
    scene.channel.register(1, scene.destination)
    scene.channel.flush()
    first, _ = scene.publish(scene.one, row("a", b"first"))
    again, _ = scene.publish(scene.other, row("a"), row("b"), row("a"), row("c"))
    (deliver,) = delivers(scene.channel.flush())
    numbers = [number for piece in deliver.pieces for number in piece.sequences]
    assert numbers == [first, again + 1, again + 3]


def test_a_repeated_command_is_told_the_same_again() -> None:
    scene = Scene()
    first, _ = scene.publish(scene.one, row("a"), row("b"))
    rows = (row("new"), row("a"), row("b"), row("newer"))
    again, told = scene.publish(scene.other, *rows)
    assert told == [Outcome(again + 1, 2, KNOWN, first)]
    channel = scene.channel
    twice = channel.order(scene.other.publish_rows(scene.destination, *rows, number=1))
    _, _, outcomes = channel.manager.state.outcomes.page(twice - 1, channel.manager.applied)
    assert list(outcomes) == [
        Outcome(twice, 1, DUPLICATE, again),
        Outcome(twice + 1, 2, KNOWN, first),
        Outcome(twice + 3, 1, DUPLICATE, again + 3),
    ]
    assert scene.store.published == 4


def test_a_row_that_was_applied_before_does_not_meet_its_own_id() -> None:
    scene = Scene()
    first, _ = scene.publish(scene.one, row("a"), row("b"))
    channel = scene.channel
    # The same command, longer: its first two numbers are known to the session.
    longer = scene.one.publish_rows(scene.destination, row("a"), row("b"), row("c"), number=1)
    second = channel.order(longer)
    _, _, outcomes = channel.manager.state.outcomes.page(second - 1, channel.manager.applied)
    assert list(outcomes) == [Outcome(second, 2, DUPLICATE, first)]
    assert scene.live == [first, first + 1, second + 2]


def test_another_destination_remembers_for_itself() -> None:
    scene = Scene()
    scene.publish(scene.one, row("a"))
    elsewhere = scene.channel.create("elsewhere")
    assert scene.channel.outcome(scene.one.publish_rows(elsewhere, row("a"))) is None


# -- how long ----------------------------------------------------------------------------------------


def test_an_id_is_forgotten_at_the_first_mark_that_is_a_window_behind_the_mark_after_it() -> None:
    scene = Scene()
    scene.publish(scene.one, row("a"))
    scene.channel.pass_time(5_000)  # the age counts from here
    scene.channel.pass_time(WINDOW_MS - 1)
    assert scene.publish(scene.other, row("a"))[1]
    scene.channel.pass_time(1)
    assert scene.remembered == 0
    assert not scene.publish(scene.other, row("a"))[1]


def test_a_known_message_does_not_make_its_id_younger() -> None:
    scene = Scene('{"dedup_window":10}')
    scene.publish(scene.one, row("a"))
    scene.channel.pass_time(1)
    for _ in range(9):
        scene.channel.pass_time(1_000)
        assert scene.publish(scene.other, row("a"))[1]
    scene.channel.pass_time(1_000)
    assert not scene.publish(scene.other, row("a"))[1]


def test_log_time_moves_on_without_traffic_until_all_ids_are_forgotten() -> None:
    scene = Scene()
    scene.publish(scene.one, row("a"))
    state = scene.channel.manager.state
    assert state.due_ms() == 0
    scene.channel.pass_time(1_000)
    assert state.due_ms() == state.log_time_ms + WINDOW_MS
    scene.channel.pass_time(WINDOW_MS)
    assert state.due_ms() is None


def test_of_too_many_ids_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ids, "IDS_MAX", 3)
    scene = Scene()
    scene.publish(scene.one, *[row(str(number)) for number in range(3)])
    scene.channel.pass_time(1_000)
    scene.publish(scene.one, row("3"))
    assert scene.remembered == 3
    assert not scene.publish(scene.other, row("0"))[1]
    assert [len(scene.publish(scene.other, row(str(number)))[1]) for number in (2, 3, 0)] == [1, 1, 1]


def test_marks_of_ids_that_made_room_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ids, "IDS_MAX", 2)
    scene = Scene()
    for number in range(20):
        scene.publish(scene.one, row(str(number)))
        scene.channel.pass_time(1)
    assert len(scene.channel.manager.state.known_ids._of[scene.destination]._marks) == 2


def test_a_destination_without_a_window_remembers_nothing() -> None:
    scene = Scene('{"dedup_window":0}')
    scene.publish(scene.one, row("a"))
    assert not scene.publish(scene.other, row("a"))[1]
    assert scene.remembered == 0
    assert scene.store.published == 2


@pytest.mark.parametrize("kind", [1, 2])
def test_a_changed_window_holds_for_the_ids_that_are_there(kind: int) -> None:
    def alter(settings: str) -> None:
        wish = AlterDestination(destination=scene.destination, settings=settings)
        assert scene.channel.outcome(of_node(wish)) is None

    scene = Scene(kind=kind)
    scene.publish(scene.one, row("a"))
    scene.channel.pass_time(1_000)
    alter('{"dedup_window":2}')
    scene.channel.pass_time(1_999)
    assert scene.publish(scene.other, row("a"))[1]
    scene.channel.pass_time(1)
    assert not scene.publish(scene.other, row("a"))[1]
    alter('{"dedup_window":0}')
    assert scene.remembered == 0


@pytest.mark.parametrize("value", ["-1", "604801", "true", '"soon"', "null", "1e999"])
def test_a_window_that_cannot_be_is_refused(value: str) -> None:
    channel = Channel()
    settings = f'{{"dedup_window":{value}}}'
    channel.create("orders", settings=settings)
    _, _, (outcome,) = channel.manager.state.outcomes.page(0, channel.manager.applied)
    assert outcome.code == OutcomeCode.REFUSED
    assert "dedup_window is 0 to 604,800 seconds" in outcome.text


def test_a_purge_keeps_the_ids_and_a_deletion_does_not() -> None:
    scene = Scene()
    scene.publish(scene.one, row("a"))
    scene.channel.order(of_node(PurgeDestination(destination=scene.destination)))
    assert scene.live == []
    assert scene.publish(scene.other, row("a"))[1]
    scene.channel.order(of_node(DeleteDestination(destination=scene.destination)))
    assert scene.remembered == 0
    scene.destination = scene.channel.create("orders")
    assert not scene.publish(scene.other, row("a"))[1]


# -- transactions --------------------------------------------------------------------------------------


def test_a_transaction_is_decided_at_its_commit_and_a_rollback_remembers_nothing() -> None:
    scene = Scene()
    one, other, queue = scene.one, scene.other, scene.destination
    channel = scene.channel
    channel.order(one.tx_publish_rows(queue, row("a"), row("b")))
    channel.order(other.tx_publish_rows(queue, row("b"), row("c")))
    assert scene.remembered == 0
    assert channel.outcome(other.tx_commit(1, 2)) is None
    stored = scene.live
    assert len(stored) == 2
    # The transaction of the first is whole; the message that is known by now is left out.
    first = channel.order(one.tx_commit(1, 2))
    assert scene.live == [*stored, first]
    assert scene.store.duplicates == 1


def test_a_rolled_back_message_does_not_stand_in_the_way() -> None:
    scene = Scene()
    channel = scene.channel
    channel.order(scene.one.tx_publish_rows(scene.destination, row("a")), scene.one.close())
    assert scene.remembered == 0
    assert not scene.publish(scene.other, row("a"))[1]


def test_a_prepared_part_remembers_its_ids_when_it_is_finished() -> None:
    scene = Scene()
    channel, one = scene.channel, scene.one
    channel.order(one.tx_publish_rows(scene.destination, row("a"), row("b")))
    prepare = PrepareTransaction(transaction=1, home="b", batches=1, messages=2, consumed=(), staged=())
    assert channel.outcome(one._command(prepare, 0)) is None
    # Another sender comes before the decision.
    published, outcomes = scene.publish(scene.other, row("b"))
    assert outcomes == []
    first = channel.order(finish(one.session, 1, commits=True, messages=2))
    assert scene.live == [published, first]
    assert scene.publish(scene.other, row("a"))[1][0].original == first


def test_a_transaction_whose_messages_are_all_known_still_acknowledges() -> None:
    scene = Scene()
    channel = scene.channel
    source = channel.create("source")
    number = channel.order(scene.one.publish(source, [b"x"]))
    scene.publish(scene.other, row("a"))
    channel.order(scene.one.tx_publish_rows(scene.destination, row("a")))
    consumed = Consumed(source, 0, Ranges([(number, number + 1)]))
    assert channel.outcome(scene.one.tx_commit(1, 1, consumed)) is None
    left = channel.manager.state.directory.get(source)
    assert left is not None and not left.live
    assert scene.store.published == 1


def test_a_staged_message_with_an_id_is_refused() -> None:
    scene = Scene()
    batch = rows_of([row("a")]).build(scene.one.session, TRANSACTED_NUMBER | 1).encode()
    wish = StagedPublish(7, 0, 1, 60, scene.destination, 1, 0, "app", batch)
    outcome = scene.channel.outcome(scene.one._numbered(wish, None))
    assert outcome is not None and outcome.code == OutcomeCode.REFUSED
    assert "its commit is made once by its version" in outcome.text
    assert not scene.channel.manager.state.transactions.staged


# -- replicas ------------------------------------------------------------------------------------------


def test_a_replica_that_joins_later_remembers_the_same() -> None:
    scene = Scene()
    scene.publish(scene.one, row("a"))
    scene.channel.pass_time(1_000)
    _, captured = scene.channel.manager.state.capture()
    applied = scene.channel.manager.applied
    scene.publish(scene.other, row("a"), row("b"))
    late = scene.channel.replica(captured, applied)
    assert late.state.digest() == scene.channel.manager.state.digest()
    assert late.state.known_ids.count(scene.destination) == 2


def test_a_batch_that_says_it_has_ids_and_has_none_is_refused() -> None:
    scene = Scene()
    command = bytearray(scene.one.publish(scene.destination, [b"plain"]))
    command[PUBLISH_BATCH_OFFSET + RULES_AT] |= BatchRule.DEDUP
    outcome = scene.channel.outcome(bytes(command))
    assert outcome is not None and outcome.code == OutcomeCode.REFUSED
    assert scene.live == []
